//! The operator of a cluster: where it is, and which of its pods leads.

use anyhow::{Context, Result};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, ResourceExt};

use crate::TestNamespace;

/// The namespace it is installed in.
pub const NAMESPACE: &str = "muxtunnel-system";
/// The Lease of the operators.
const LEASE: &str = "muxtunnel";

/// The operator that holds the Lease: its pod, and the identity of its process.
///
/// # Errors
/// If the API server cannot be asked, or the process that holds the Lease is in no pod that there is.
pub async fn leader(ns: &TestNamespace) -> Result<(Pod, String)> {
    let leases: Api<Lease> = Api::namespaced(ns.client.clone(), NAMESPACE);
    let pods: Api<Pod> = Api::namespaced(ns.client.clone(), NAMESPACE);
    let lease = leases.get(LEASE).await?;
    let holder = lease.spec.and_then(|spec| spec.holder_identity);
    let holder = holder.with_context(|| format!("nobody holds the Lease {LEASE}"))?;
    let pods = pods.list(&ListParams::default()).await?;
    let mut pods = pods.into_iter();
    // POD_NUMBER
    let pod = pods.find(|pod| holder.starts_with(&format!("{}_", pod.name_any())));
    let pod = pod.with_context(|| format!("no pod in {NAMESPACE} is {holder:?}"))?;
    Ok((pod, holder))
}
