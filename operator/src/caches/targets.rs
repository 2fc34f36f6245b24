//! The Services that tunnels name as targets, and their endpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;

use super::groups::Group;
use super::{Caches, NotKnown};
use crate::undecoded;

/// The Services of all watched namespaces, and their endpoints. A tunnel may name a Service in
/// another namespace.
#[derive(Clone)]
pub struct Targets(Arc<[(Option<String>, Caches)]>);

/// The endpoints of a Service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Endpoints {
    /// Whether at least one endpoint of the Service is ready.
    pub ready: bool,
    /// The numbers of the TCP ports at the endpoints, by the name of the Service's port.
    pub ports: BTreeMap<String, BTreeSet<u16>>,
}

impl Endpoints {
    fn of(slices: &[Arc<EndpointSlice>]) -> Self {
        let mut found = Self::default();
        for slice in slices {
            found.ready |= !slice.endpoints.is_empty();
            for port in slice.ports.iter().flatten() {
                let is_tcp = matches!(port.protocol.as_deref(), None | Some("TCP"));
                let number = port.port.and_then(|number| u16::try_from(number).ok());
                let Some(number) = number.filter(|_| is_tcp) else {
                    continue;
                };
                let name = port.name.clone().unwrap_or_default();
                found.ports.entry(name).or_default().insert(number);
            }
        }
        found
    }
}

impl Targets {
    /// The targets in each watched namespace. `None` means all namespaces.
    pub fn new(scopes: impl IntoIterator<Item = (Option<String>, Caches)>) -> Self {
        Self(scopes.into_iter().collect())
    }

    /// Returns the endpoints of this Service, or `None` if they are not known.
    pub fn endpoints(&self, namespace: &str, name: &str) -> Option<Endpoints> {
        let slices = &self.scope(namespace)?.endpoint_slices;
        let group = Group::Service(namespace.to_owned(), name.to_owned());
        let slices = slices.group(&group).ok()?;
        let is_decoded = slices
            .iter()
            .all(|slice| undecoded::reason(slice.as_ref()).is_none());
        is_decoded.then(|| Endpoints::of(&slices))
    }

    fn scope(&self, namespace: &str) -> Option<&Caches> {
        let watches = |scope: &Option<String>| scope.as_deref().is_none_or(|own| own == namespace);
        let mut scopes = self.0.iter();
        scopes.find_map(|(scope, caches)| watches(scope).then_some(caches))
    }

    /// Returns this Service, or `None` if it does not exist or its namespace is not watched.
    pub fn get(&self, namespace: &str, name: &str) -> Result<Option<Arc<Service>>, NotKnown> {
        match self.scope(namespace) {
            Some(caches) => caches.services.get(namespace, name),
            None => Ok(None),
        }
    }
}
