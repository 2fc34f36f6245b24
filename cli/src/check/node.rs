//! Category node: the sysctls and kernel features of nodes. The check derives them from the
//! kubelet's version, and with `--probe` tests them with pods.

use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt};
use muxtunnel_codes::Code;

use super::fix::Right;
use super::probe::{self, Images};
use super::{Check, Finding, Scope, installation, readable, version};
use crate::end::Failure;
use crate::object;

/// Greatest number of nodes with test pods. Further nodes are reported as skipped.
const PROBED_MAX: usize = 32;

pub(super) async fn run(scope: &Scope<'_>) -> Result<Vec<Check>, Failure> {
    let description = "the nodes can be read";
    let right = Right::new("list", "", "nodes", None);
    let nodes: Api<Node> = Api::all(scope.cluster.client.clone());
    let nodes = match readable(object::all(&nodes).await, description, &right)? {
        Ok(nodes) => nodes,
        // The user has requested these checks with `--probe`, so an error is a finding and not a
        // skipped check.
        Err(_) if scope.args.probe => {
            return Ok(vec![Check::finding(description, right.missing())]);
        }
        Err(check) => return Ok(vec![check]),
    };
    let mut checks: Vec<_> = nodes.iter().map(kubelet).collect();
    let tried = "sysctls and kernel features of nodes, tested with pods";
    if !scope.args.probe {
        let why = format!(
            "not requested; use --probe, which creates short-lived pods in namespace {}",
            scope.cluster.namespace
        );
        checks.push(Check::skipped(tried, why));
        return Ok(checks);
    }
    let Some(images) = images(scope).await? else {
        let cause = "the images are unknown: no operator is installed, and no flag names them";
        let fix = "muxtunnel check --only node --probe --gateway-image IMAGE --netem-image IMAGE";
        let finding = Finding::new(Code::ProbeInconclusive, cause, fix);
        checks.push(Check::finding(tried, finding));
        return Ok(checks);
    };
    let (on, off): (Vec<_>, Vec<_>) = nodes.iter().partition(|node| takes_pods(node));
    for (at, node) in on.iter().enumerate() {
        let name = node.name_any();
        if at < PROBED_MAX {
            checks.extend(probe::node(scope.cluster, &name, &images).await?);
        } else {
            let why = format!("one call of check tests at most {PROBED_MAX} nodes");
            checks.push(Check::skipped(format!("{name}: {tried}"), why));
        }
    }
    let why = "the node accepts no pods (not ready, cordoned, or not Linux)";
    checks.extend(
        off.iter()
            .map(|node| Check::skipped(format!("{}: {tried}", node.name_any()), why)),
    );
    Ok(checks)
}

/// The images of the flags, otherwise the images of the first operator.
async fn images(scope: &Scope<'_>) -> Result<Option<Images>, Failure> {
    let args = scope.args;
    if let (Some(gateway), Some(netem)) = (&args.gateway_image, &args.netem_image) {
        return Ok(Some(Images {
            gateway: gateway.clone(),
            netem: netem.clone(),
        }));
    }
    let namespace = args.operator_namespace.as_deref();
    let operators = installation::operators(&scope.cluster.client, namespace)
        .await
        .map_err(|error| crate::cluster::failed("cannot read the operator's images", error))?;
    let found = operators.iter().find_map(installation::images);
    Ok(found.map(|(gateway, netem)| Images {
        gateway: args.gateway_image.clone().unwrap_or(gateway),
        netem: args.netem_image.clone().unwrap_or(netem),
    }))
}

fn kubelet(node: &Node) -> Check {
    let name = node.name_any();
    let (major, minor) = version::LEAST;
    let info = node
        .status
        .as_ref()
        .and_then(|status| status.node_info.as_ref());
    let theirs = info.map_or("unknown", |info| info.kubelet_version.as_str());
    let description = format!("{name}: the kubelet's version {theirs} is {major}.{minor} or newer");
    if version::parse(theirs).is_some_and(|version| version >= version::LEAST) {
        return Check::good(description);
    }
    let cause = format!(
        "the kubelet's version is {theirs}; this kubelet refuses net.ipv4.tcp_rmem as unsafe"
    );
    let fix = format!("kubectl drain {name} --ignore-daemonsets --delete-emptydir-data");
    Check::finding(description, Finding::new(Code::KubeletTooOld, cause, fix))
}

/// Whether the node is ready, not cordoned, and runs Linux.
fn takes_pods(node: &Node) -> bool {
    let ready = node
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten())
        .any(|condition| condition.type_ == "Ready" && condition.status == "True");
    let cordoned = node
        .spec
        .as_ref()
        .and_then(|spec| spec.unschedulable)
        .unwrap_or(false);
    let linux = node
        .labels()
        .get("kubernetes.io/os")
        .is_none_or(|os| os == "linux");
    ready && !cordoned && linux
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::check::Verdict;

    fn node(kubelet: &str, ready: &str, cordoned: bool, os: &str) -> Node {
        serde_json::from_value(json!({
            "metadata": {"name": "n", "labels": {"kubernetes.io/os": os}},
            "spec": {"unschedulable": cordoned},
            "status": {
                "conditions": [{"type": "Ready", "status": ready}],
                "nodeInfo": {
                    "architecture": "", "bootID": "", "containerRuntimeVersion": "", "kernelVersion": "",
                    "kubeProxyVersion": "", "kubeletVersion": kubelet, "machineID": "", "operatingSystem": "",
                    "osImage": "", "systemUUID": "",
                },
            },
        }))
        .unwrap()
    }

    #[test]
    fn an_old_kubelet_is_a_finding() {
        assert_eq!(
            kubelet(&node("v1.32.1", "True", false, "linux")).verdict,
            Verdict::Good
        );
        let Verdict::Finding(finding) = kubelet(&node("v1.31.9", "True", false, "linux")).verdict
        else {
            panic!("no finding");
        };
        assert_eq!(finding.code, "MT0387");
    }

    #[test]
    fn pods_are_tried_only_where_they_would_run() {
        assert!(takes_pods(&node("v1.33.0", "True", false, "linux")));
        assert!(!takes_pods(&node("v1.33.0", "False", false, "linux")));
        assert!(!takes_pods(&node("v1.33.0", "True", true, "linux")));
        assert!(!takes_pods(&node("v1.33.0", "True", false, "windows")));
    }
}
