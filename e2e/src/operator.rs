//! The operator of a cluster: its namespace, its pods, and its leading pod.

use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, ResourceExt};

use crate::{TestNamespace, pods, wait};

/// The operator's namespace.
pub const NAMESPACE: &str = "muxtunnel-system";
/// The label of the operator's pods.
pub const LABEL: &str = "app.kubernetes.io/component=operator";
/// The Lease that the leading operator holds.
const LEASE: &str = "muxtunnel";
/// Time-out until a scaled operator has its pods.
const SCALED_WITHIN: Duration = Duration::from_secs(180);

/// The requested number of the operator's pods in the cluster of `ns`.
///
/// # Errors
/// If the API server does not answer.
pub async fn replicas(ns: &TestNamespace) -> Result<i32> {
    let deployments: Api<Deployment> = Api::namespaced(ns.client.clone(), NAMESPACE);
    let operator = deployments.get("muxtunnel").await?;
    Ok(operator.spec.and_then(|spec| spec.replicas).unwrap_or(1))
}

/// Scales the operator in the cluster of `ns`. Returns when it has `replicas` pods and all of them
/// are ready.
///
/// # Errors
/// If the operator does not have its pods in time.
pub async fn scale(ns: &TestNamespace, replicas: i32) -> Result<()> {
    let (namespace, count) = (
        format!("--namespace={NAMESPACE}"),
        format!("--replicas={replicas}"),
    );
    let scale = ["scale", "deployment/muxtunnel", &namespace, &count];
    ns.cluster.run("kubectl", &scale).await?;
    let pods: Api<Pod> = Api::namespaced(ns.client.clone(), NAMESPACE);
    let what = format!("{replicas} operators");
    wait::until(&what, SCALED_WITHIN, async || {
        let operators = ListParams::default().labels(LABEL);
        let pods = pods.list(&operators).await?.items;
        let all = i32::try_from(pods.len())? == replicas && pods.iter().all(pods::is_ready);
        Ok(all.then_some(()))
    })
    .await
}

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
