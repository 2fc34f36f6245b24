//! Step 1: reads what the spec names. Client required.
//!
//! In: the tunnel. Out: the Services that its forwards name, as far as they exist. Must not judge:
//! a missing Service is a finding of [`super::validate`].

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Service;
use kube::{Api, Client, ResourceExt};
use muxtunnel_crds::MuxTunnel;

/// A named object could not be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot get Service {name}: {source}")]
pub struct DereferenceError {
    name: String,
    source: kube::Error,
}

/// What the spec names.
#[derive(Debug, Default)]
pub struct Dereferenced {
    /// The target Services that exist, by name. At most one a forward.
    pub services: BTreeMap<String, Service>,
}

/// Reads the target Services, each once.
///
/// # Errors
/// [`DereferenceError`] where the API server does not answer, or refuses; not where a Service is
/// missing.
pub async fn dereference(
    client: &Client,
    tunnel: &MuxTunnel,
) -> Result<Dereferenced, DereferenceError> {
    let namespace = tunnel.namespace().unwrap_or_default();
    let api: Api<Service> = Api::namespaced(client.clone(), &namespace);
    let mut services = BTreeMap::new();
    for forward in &tunnel.spec.forwards {
        let target = forward.target.as_ref();
        let Some(target) = target.and_then(|target| target.service.as_ref()) else {
            continue;
        };
        if services.contains_key(&target.name) {
            continue;
        }
        let found = api
            .get_opt(&target.name)
            .await
            .map_err(|source| DereferenceError {
                name: target.name.clone(),
                source,
            })?;
        if let Some(service) = found {
            services.insert(target.name.clone(), service);
        }
    }
    Ok(Dereferenced { services })
}
