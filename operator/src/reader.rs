//! Reads of objects that no watch covers. A step with a [`Reader`] can change nothing in the
//! cluster.

use k8s_openapi::NamespaceResourceScope;
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::core::ObjectList;
use kube::{Api, Client, Resource};

use crate::watches::Watched;

/// Reads from the API server.
#[derive(Clone)]
pub struct Reader(Client);

impl Reader {
    /// Reads with `client`.
    pub const fn new(client: Client) -> Self {
        Self(client)
    }

    /// The object with this name, or `None` if it does not exist.
    pub async fn get<K: Watched + Resource<Scope = NamespaceResourceScope>>(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<K>, kube::Error> {
        let api: Api<K> = Api::namespaced(self.0.clone(), namespace);
        api.get_opt(name).await
    }

    /// The object with this name, without its type.
    pub async fn get_untyped(
        &self,
        resource: &ApiResource,
        namespace: &str,
        name: &str,
    ) -> Result<Option<DynamicObject>, kube::Error> {
        let api: Api<DynamicObject> = Api::namespaced_with(self.0.clone(), namespace, resource);
        api.get_opt(name).await
    }

    /// One page of a list.
    pub async fn list<K: Watched + Resource<Scope = NamespaceResourceScope>>(
        &self,
        namespace: &str,
        params: &ListParams,
    ) -> Result<ObjectList<K>, kube::Error> {
        let api: Api<K> = Api::namespaced(self.0.clone(), namespace);
        api.list(params).await
    }
}
