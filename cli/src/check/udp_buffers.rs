//! Checks whether the buffers of UDP sockets suffice for carriers that run over UDP. The
//! node limits these buffers, and no pod can change the limit.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use muxtunnel_codes::Code;
use muxtunnel_contract::labels::COMPONENT;
use muxtunnel_contract::sysctls::{KCP_BUFFER_BYTES, QUIC_BUFFER_BYTES, RMEM_MAX, WMEM_MAX};

use super::fix::{self, Owner, Right};
use super::{Check, Finding, Scope, readable};
use crate::end::Failure;
use crate::object::{Gateways, PAGE};

/// The components that have UDP sockets.
const ENDS: [&str; 2] = ["entry", "exit"];

/// Compares the buffers that the gateways of an object report with the buffers that they request.
/// Returns `None` if the object's carriers do not run over UDP.
///
/// # Errors
/// An error of the API server. A missing right to list pods is no error.
pub(super) async fn check(
    scope: &Scope<'_>,
    owner: &Owner,
    object: &Gateways,
) -> Result<Option<Check>, Failure> {
    let Some(wanted) = wanted(object) else {
        return Ok(None);
    };
    let place = owner.text();
    let description = format!("{place}: UDP buffers have the size that the gateways request");
    let value = |name: &str| {
        let mut sysctls = object.status.as_ref()?.sysctls.iter();
        sysctls.find(|one| one.name == name).map(|one| &one.value)
    };
    let (Some(receive), Some(send)) = (value(RMEM_MAX), value(WMEM_MAX)) else {
        let why = "the gateways have not reported the sizes of their UDP buffers";
        return Ok(Some(Check::skipped(description, why)));
    };
    let short: BTreeSet<_> = [receive, send]
        .into_iter()
        .flat_map(|value| short(value, wanted))
        .collect();
    if short.is_empty() {
        return Ok(Some(Check::good(description)));
    }
    let nodes = nodes(&pods(scope, owner).await?, &short);
    let mut cause = format!(
        "{RMEM_MAX} is {receive} and {WMEM_MAX} is {send}; the gateways request {wanted} bytes for each"
    );
    let fix = if nodes.is_empty() {
        format!("kubectl get pods {} -o wide", owner.children())
    } else {
        let nodes: Vec<_> = nodes.iter().map(String::as_str).collect();
        cause.push_str(&format!(", on {}", nodes.join(", ")));
        let fixes = nodes
            .iter()
            .map(|node| fix::udp_buffers(node, &owner.namespace));
        fixes.collect::<Vec<_>>().join("\n")
    };
    let finding = Finding::new(Code::UdpBuffersSmall, cause, fix);
    Ok(Some(Check::warning(description, finding)))
}

/// Requested bytes of each buffer.
fn wanted(object: &Gateways) -> Option<usize> {
    let carrier = &object.spec["carrier"];
    match (carrier["protocol"].as_str(), carrier["transport"].as_str()) {
        (Some("QUIC" | "HTTP3"), _) => Some(QUIC_BUFFER_BYTES),
        (_, Some("Auto" | "KCP")) => Some(KCP_BUFFER_BYTES),
        _ => None,
    }
}

/// The ends whose gateways have smaller buffers than `wanted`. If all ends have the same size,
/// `value` is `BYTES`, and the result has `None` for the end. Otherwise `value` is `BYTES (END),
/// ...`.
fn short(value: &str, wanted: usize) -> Vec<Option<&str>> {
    let short = value.split(", ").filter_map(|part| {
        let (bytes, end) = match part.split_once(' ') {
            Some((bytes, end)) => (bytes, Some(end.trim_matches(['(', ')']))),
            None => (part, None),
        };
        (bytes.parse::<usize>().ok()? < wanted).then_some(end)
    });
    short.collect()
}

/// The pods of an object, at most [`PAGE`], or none if the user may not list them.
async fn pods(scope: &Scope<'_>, owner: &Owner) -> Result<Vec<Pod>, Failure> {
    let api: Api<Pod> = Api::namespaced(scope.cluster.client.clone(), &owner.namespace);
    let selected = ListParams::default().labels(&owner.selector());
    let right = Right::new("list", "", "pods", Some(&owner.namespace));
    let answer = api.list(&selected.limit(PAGE)).await;
    let pods = readable(answer, "the pods can be read", &right)?;
    Ok(pods.map_or_else(|_| Vec::new(), |pods| pods.items))
}

/// The nodes on which the gateways of these ends run.
fn nodes(pods: &[Pod], short: &BTreeSet<Option<&str>>) -> BTreeSet<String> {
    let is_short = |pod: &&Pod| {
        let end = pod.labels().get(COMPONENT).map(String::as_str);
        let is_end = end.is_some_and(|end| ENDS.contains(&end));
        is_end && (short.contains(&None) || short.contains(&end))
    };
    let runs = |pod: &&Pod| {
        let phase = pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        phase == Some("Running")
    };
    let pods = pods.iter().filter(is_short).filter(runs);
    pods.filter_map(|pod| pod.spec.as_ref()?.node_name.clone())
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn tunnel(carrier: Value) -> Gateways {
        serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "shop"}, "spec": {"carrier": carrier},
        }))
        .unwrap()
    }

    #[test]
    fn only_carriers_that_are_datagrams_want_buffers() {
        for (carrier, expected) in [
            (json!({"protocol": "QUIC"}), Some(8_388_608)),
            (json!({"protocol": "HTTP3"}), Some(8_388_608)),
            (json!({"transport": "Auto"}), Some(4_194_304)),
            (json!({"transport": "KCP"}), Some(4_194_304)),
            (json!({"protocol": "Native", "transport": "TCP"}), None),
            (json!({"protocol": "HTTP2"}), None),
            (Value::Null, None),
        ] {
            assert_eq!(wanted(&tunnel(carrier.clone())), expected, "{carrier}");
        }
    }

    #[test]
    fn the_end_that_has_less_is_known_where_gateways_differ() {
        assert_eq!(short("8388608", 8_388_608), []);
        assert_eq!(short("212992", 8_388_608), [None]);
        let differ = "212992 (entry), 8388608 (exit)";
        assert_eq!(short(differ, 8_388_608), [Some("entry")]);
        assert_eq!(short("", 8_388_608), []);
    }

    #[test]
    fn nodes_are_those_of_gateways_that_run_at_these_ends() {
        let pod = |end: &str, node: &str, phase: &str| -> Pod {
            serde_json::from_value(json!({
                "metadata": {"name": node, "labels": {"app.kubernetes.io/component": end}},
                "spec": {"containers": [], "nodeName": node},
                "status": {"phase": phase},
            }))
            .unwrap()
        };
        let pods = [
            pod("entry", "n1", "Running"),
            pod("exit", "n2", "Running"),
            pod("exit", "n2", "Running"),
            pod("exit", "n3", "Failed"),
            pod("probe", "n4", "Running"),
        ];
        let of = |short: &[Option<&str>]| -> Vec<String> {
            let short = short.iter().copied().collect();
            nodes(&pods, &short).into_iter().collect()
        };
        assert_eq!(of(&[Some("exit")]), ["n2"]);
        assert_eq!(of(&[None]), ["n1", "n2"]);
        assert_eq!(of(&[Some("rendezvous")]), [""; 0]);
    }
}
