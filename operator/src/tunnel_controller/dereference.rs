//! Step 1: reads what the spec names, from what the watches brought.
//!
//! In: the tunnel. Out: the Services that its forwards name, as far as they exist, those that their namespace does not
//! permit it to name, and the Jobs that tried sysctls for it ([`probes`]). What is not permitted is not looked up, so
//! nothing that is said of it tells whether it exists. Must not judge: a missing Service is a finding of
//! [`super::validate`].

mod probes;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use muxtunnel_crds::MuxTunnel;

use super::certify::renewal::Joined;
use super::error::DereferenceError;
use super::problem::Problem;
use super::references::{ServiceName, references};
use crate::caches::{Cluster, Endpoints, Targets};
use crate::grants::Grants;

pub mod join;
pub use probes::{ProbeOutcome, REFUSED, SeenProbe};

/// What the spec names.
#[derive(Debug, Default)]
pub struct Dereferenced {
    /// The target Services that exist and may be named. At most one a forward.
    pub services: BTreeMap<ServiceName, Service>,
    /// What is behind them, as far as it can be known.
    pub endpoints: BTreeMap<ServiceName, Endpoints>,
    /// The Services of other namespaces that do not permit this tunnel to name them.
    pub forbidden: BTreeSet<ServiceName>,
    /// Where the API server is, which exits are kept from.
    pub api_server: Vec<IpAddr>,
    /// What the tunnel joins by, or why it cannot; `None`: it names no bundle.
    pub join: Option<Result<Joined, Problem>>,
    /// The Jobs that tried, or try, sysctls.
    pub probes: Vec<SeenProbe>,
}

/// Reads the target Services, each once, and looks at the Jobs that try sysctls.
///
/// # Errors
/// [`DereferenceError`]; not where a Service is missing.
pub async fn dereference(
    cluster: &Cluster,
    (targets, grants): (&Targets, &Grants),
    tunnel: &MuxTunnel,
) -> Result<Dereferenced, DereferenceError> {
    let namespace = tunnel.namespace().unwrap_or_default();
    let named = references(&tunnel.spec, &namespace);
    let mut found = Dereferenced {
        probes: probes::probes(cluster, tunnel, &namespace).await?,
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
        if let Some(service) = targets.get(&named.namespace, &named.name)? {
            if let Some(endpoints) = targets.endpoints(&named.namespace, &named.name) {
                found.endpoints.insert(named.clone(), endpoints);
            }
            found.services.insert(named, Arc::unwrap_or_clone(service));
        }
    }
    Ok(found)
}
