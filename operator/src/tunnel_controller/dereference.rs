//! Step 1: reads what the spec names. Client required.
//!
//! In: the tunnel. Out: the Services that its forwards name, as far as they exist, those that their namespace does not
//! permit it to name, and the Jobs that tried sysctls for it ([`probes`]). What is not permitted is not even read, so
//! nothing that is said of it tells whether it exists. Must not judge: a missing Service is a finding of
//! [`super::validate`].

mod probes;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_openapi::api::core::v1::Service;
use kube::{Api, Client, ResourceExt};
use muxtunnel_crds::MuxTunnel;

use super::observe::Problem;
use super::references::{ServiceName, references};
use crate::certificates::join::Bundle;
use crate::grants::{Grants, NotKnown};

pub mod join;
pub use probes::{ProbeOutcome, REFUSED, SeenProbe};

/// A named object could not be read.
#[derive(Debug, thiserror::Error)]
pub enum DereferenceError {
    /// The API server does not answer, or refuses.
    #[error("cannot get Service {name} of namespace {namespace}: {source}")]
    Get {
        /// Name of the Service.
        name: String,
        /// Its namespace.
        namespace: String,
        /// The client's error.
        source: Box<kube::Error>,
    },
    /// What other namespaces permit has not been heard yet; children stay as they are.
    #[error(transparent)]
    Grants(#[from] NotKnown),
    /// The Jobs that tried sysctls, or their pods.
    #[error("cannot list the {kind} that tried sysctls: {source}")]
    Probes {
        /// Jobs or pods.
        kind: &'static str,
        /// The client's error.
        source: kube::Error,
    },
}

/// What the spec names.
#[derive(Debug, Default)]
pub struct Dereferenced {
    /// The target Services that exist and may be named. At most one a forward.
    pub services: BTreeMap<ServiceName, Service>,
    /// The Services of other namespaces that do not permit this tunnel to name them.
    pub forbidden: BTreeSet<ServiceName>,
    /// Where the API server is, which exits are kept from.
    pub api_server: Vec<IpAddr>,
    /// The bundle that the tunnel joins by, or why there is none; `None`: it names none.
    pub join: Option<Result<Bundle, Problem>>,
    /// The Jobs that tried, or try, sysctls.
    pub probes: Vec<SeenProbe>,
}

/// Reads the target Services, each once, and looks at the Jobs that try sysctls.
///
/// # Errors
/// [`DereferenceError`]; not where a Service is missing.
pub async fn dereference(
    client: &Client,
    grants: &Grants,
    tunnel: &MuxTunnel,
) -> Result<Dereferenced, DereferenceError> {
    let namespace = tunnel.namespace().unwrap_or_default();
    let named = references(&tunnel.spec, &namespace);
    let mut found = Dereferenced {
        probes: probes::probes(client, tunnel, &namespace).await?,
        ..Dereferenced::default()
    };
    for service in named.foreign {
        if !grants.permit(&namespace, &service)? {
            found.forbidden.insert(service);
        }
    }
    for named in named.services {
        if found.forbidden.contains(&named) {
            continue;
        }
        let api: Api<Service> = Api::namespaced(client.clone(), &named.namespace);
        let service = api
            .get_opt(&named.name)
            .await
            .map_err(|source| DereferenceError::Get {
                name: named.name.clone(),
                namespace: named.namespace.clone(),
                source: Box::new(source),
            })?;
        if let Some(service) = service {
            found.services.insert(named, service);
        }
    }
    Ok(found)
}
