//! Programs in the namespaces of a running pod. A gateway's image has only muxgate, so the programs
//! run in an ephemeral container of the benchmark's image, which `kubectl debug` adds to the pod.

use anyhow::Result;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use crate::namespace::TestNamespace;
use crate::{pods, wait};

/// The ephemeral container. It ends at once when its pod is deleted, which `sleep` alone does not
/// as the first process of a container.
const IDLE: [&str; 3] = ["bash", "-c", "trap exit TERM; sleep infinity & wait"];

/// Runs a command in the pod's network namespace. Returns its output.
///
/// # Errors
/// If the container does not start, or the command fails.
pub async fn run(ns: &TestNamespace, pod: &Pod, command: &[&str]) -> Result<String> {
    exec(ns, pod, "debug", &[], command).await
}

/// Runs a command among the processes of the pod's container `of`, whose first process has the ID
/// 1. When the container ends, no further command can run there. Returns the command's output.
///
/// # Errors
/// As [`run`].
pub async fn run_among(
    ns: &TestNamespace,
    pod: &Pod,
    of: &str,
    command: &[&str],
) -> Result<String> {
    let target = format!("--target={of}");
    exec(ns, pod, &format!("debug-{of}"), &[&target], command).await
}

async fn exec(
    ns: &TestNamespace,
    pod: &Pod,
    container: &str,
    options: &[&str],
    command: &[&str],
) -> Result<String> {
    let name = pod.name_any();
    attach(ns, &name, container, options).await?;
    let exec = ["exec", &name, "--container", container, "--"];
    ns.kubectl(&[&exec, command].concat()).await
}

/// Adds the ephemeral container, unless the pod has it already, and waits until it runs.
async fn attach(ns: &TestNamespace, pod: &str, container: &str, options: &[&str]) -> Result<()> {
    let found = ns.api::<Pod>().get(pod).await?;
    let spec = found.spec.unwrap_or_default();
    let containers = spec.ephemeral_containers.unwrap_or_default();
    if !containers.iter().any(|found| found.name == container) {
        let (image, name) = (
            format!("--image={}", pods::IMAGE),
            format!("--container={container}"),
        );
        let words = [
            "debug",
            pod,
            &image,
            &name,
            "--profile=restricted",
            "--attach=false",
        ];
        ns.kubectl(&[&words, options, &["--"], &IDLE].concat())
            .await?;
    }
    let runs = |pod: &Pod| {
        let statuses = pod.status.iter();
        let mut statuses = statuses
            .flat_map(|status| &status.ephemeral_container_statuses)
            .flatten();
        statuses.any(|status| {
            let state = status.state.as_ref();
            status.name == container && state.is_some_and(|state| state.running.is_some())
        })
    };
    let what = format!("its container {container} runs");
    wait::for_object(&ns.api::<Pod>(), pod, &what, pods::START, runs).await?;
    Ok(())
}
