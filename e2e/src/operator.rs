//! The operator of a cluster: its namespace, and its leading pod.

use anyhow::{Context, Result};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, ResourceExt};

use crate::TestNamespace;

/// The operator's namespace.
pub const NAMESPACE: &str = "muxtunnel-system";
/// The label of the operator's pods.
pub const LABEL: &str = "app.kubernetes.io/component=operator";
/// The Lease that the leading operator holds.
const LEASE: &str = "muxtunnel";

/// Returns the pod of the operator that holds the Lease, and the identity of its process.
///
/// # Errors
/// If the API server does not answer, or no existing pod runs the process that holds the Lease.
pub async fn leader(ns: &TestNamespace) -> Result<(Pod, String)> {
    let leases: Api<Lease> = Api::namespaced(ns.client.clone(), NAMESPACE);
    let pods: Api<Pod> = Api::namespaced(ns.client.clone(), NAMESPACE);
    let lease = leases.get(LEASE).await?;
    let holder = lease.spec.and_then(|spec| spec.holder_identity);
    let holder = holder.with_context(|| format!("no operator holds the Lease {LEASE}"))?;
    let pods = pods.list(&ListParams::default().labels(LABEL)).await?;
    let mut pods = pods.into_iter();
    // The identity of a process is POD_NUMBER.
    let pod = pods.find(|pod| holder.starts_with(&format!("{}_", pod.name_any())));
    let pod = pod.with_context(|| format!("no pod in {NAMESPACE} is the holder {holder:?}"))?;
    Ok((pod, holder))
}
