//! Category tunnels: each condition of a tunnel, exit or rendezvous that is not true, peers that are
//! not Ready, and buffers that are too small for carriers over UDP.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use muxtunnel_codes::Code;
use muxtunnel_crds::condition;

use super::fix::{self, Owner, Right};
use super::{Check, Finding, Scope, operators, readable, udp_buffers};
use crate::cluster::refusal;
use crate::end::Failure;
use crate::object::{self, Gateways, Kind, Peer};

pub(super) async fn run(scope: &Scope<'_>) -> Result<Vec<Check>, Failure> {
    let (mut objects, mut checks) = (Vec::new(), Vec::new());
    for kind in Kind::ALL {
        match read(scope, kind).await? {
            Ok(found) => objects.extend(found.into_iter().map(|object| (kind, object))),
            Err(check) => checks.push(check),
        }
    }
    if objects.is_empty() && checks.is_empty() {
        let place = scope
            .namespace()
            .map_or("any namespace".to_owned(), |name| {
                format!("namespace {name}")
            });
        let why = format!("there are no tunnels, exits and rendezvous in {place}");
        checks.push(Check::skipped("all conditions are true", why));
    }
    let is_off = |one: &Condition| one.reason == Code::WanDisabled.reason();
    let asks = objects
        .iter()
        .any(|(_, object)| object::conditions(object).iter().any(is_off));
    let operators = match asks {
        // If the user may not list operators, the command of the fix lists the releases.
        true => {
            operators(
                &scope.cluster.client,
                scope.args.operator_namespace.as_deref(),
            )
            .await
        }
        false => Ok(Vec::new()),
    };
    let operators = operators.ok();
    for (kind, object) in &objects {
        checks.extend(judge(*kind, object, operators.as_deref()));
        checks.extend(udp_buffers::check(scope, *kind, object).await?);
    }
    checks.extend(peers(scope).await?);
    Ok(checks)
}

/// The objects of a kind. `Err`: the check that they could not be read.
async fn read(scope: &Scope<'_>, kind: Kind) -> Result<Result<Vec<Gateways>, Check>, Failure> {
    let namespace = scope.namespace();
    let (name, resource) = (kind.name(), kind.plural());
    let description = format!("the conditions of the kind {name} can be read");
    let right = Right {
        verb: "list",
        group: "muxtunnel.dev",
        resource,
        namespace,
    };
    let answer = object::all(&object::api(&scope.cluster.client, kind, namespace)).await;
    if answer
        .as_ref()
        .is_err_and(|error| refusal(error) == Some(404))
    {
        let why = format!("the definition of {name} is not installed");
        return Ok(Err(Check::skipped(description, why)));
    }
    // A missing right is a finding, because a skipped check would hide that the user may not list
    // the objects.
    let missing = |_| Check::finding(description.clone(), right.missing());
    Ok(readable(answer, &description, &right)?.map_err(missing))
}

/// The checks of all peers. Without peers: none.
async fn peers(scope: &Scope<'_>) -> Result<Vec<Check>, Failure> {
    let namespace = scope.namespace();
    let right = Right {
        verb: "list",
        group: "muxtunnel.dev",
        resource: "muxpeers",
        namespace,
    };
    let answer = object::peers(&scope.cluster.client, namespace).await;
    if answer
        .as_ref()
        .is_err_and(|error| refusal(error) == Some(404))
    {
        // The category installation reports a missing definition.
        return Ok(Vec::new());
    }
    let peers = readable(answer, "the conditions of peers can be read", &right)?;
    Ok(match peers {
        Ok(peers) => peers.iter().map(judge_peer).collect(),
        Err(skipped) => vec![skipped],
    })
}

/// A peer that is suspended or has expired is Ready, because the exit does what the spec requests.
fn judge_peer(peer: &Peer) -> Check {
    let (namespace, name) = (peer.namespace().unwrap_or_default(), peer.name_any());
    let place = format!("MuxPeer {namespace}/{name}");
    if object::holds(peer, condition::READY) {
        return Check::good(format!("{place}: the exit has read the peer"));
    }
    let describe = || format!("kubectl describe muxpeer {name} -n {namespace}");
    match object::condition(peer, condition::READY) {
        Some(ready) if object::is_current(peer, ready) => {
            let fix = match ready.reason.as_str() {
                "ExitNotFound" => format!("kubectl get muxexits -n {namespace}"),
                "KeyInvalid" => format!("kubectl edit muxpeer {name} -n {namespace}"),
                "KeyConflict" => format!("kubectl get muxpeers -n {namespace} -o wide"),
                _ => describe(),
            };
            let finding = Finding {
                code: object::code(ready).unwrap_or_else(|| ready.reason.clone()),
                reason: ready.reason.clone(),
                cause: object::message(ready).to_owned(),
                fix,
            };
            Check::finding(format!("{place}: the exit has read the peer"), finding)
        }
        ready => {
            let cause = match ready {
                Some(_) => "the peer's conditions describe an older spec",
                None => "the peer has no conditions",
            };
            let finding = Finding::new(Code::StatusOutdated, cause, describe());
            Check::finding(format!("{place}: the operator reports its state"), finding)
        }
    }
}

/// Returns one good check if all conditions of the object are true. Otherwise returns one finding
/// for each condition that is not true, or one finding for a status of an older spec.
fn judge(kind: Kind, object: &Gateways, operators: Option<&[Deployment]>) -> Vec<Check> {
    let owner = Owner::new(kind, object);
    let place = format!("{} {}/{}", kind.name(), owner.namespace, owner.name);
    let conditions = object::conditions(object);
    if conditions.is_empty() || !conditions.iter().all(|one| object::is_current(object, one)) {
        let cause = match conditions {
            [] => "the object has no conditions",
            _ => "the conditions describe an older spec",
        };
        let fix = fix::condition(Code::StatusOutdated.reason(), &owner, operators);
        let description = format!("{place}: the operator reports its state");
        return vec![Check::finding(
            description,
            Finding::new(Code::StatusOutdated, cause, fix),
        )];
    }
    let unmet: Vec<_> = conditions
        .iter()
        .filter(|one| one.status != "True")
        .map(|one| {
            let finding = Finding {
                code: object::code(one).unwrap_or_else(|| one.reason.clone()),
                reason: one.reason.clone(),
                cause: object::message(one).to_owned(),
                fix: fix::condition(&one.reason, &owner, operators),
            };
            Check::finding(format!("{place}: {}", one.type_), finding)
        })
        .collect();
    match unmet.as_slice() {
        [] => vec![Check::good(format!("{place}: all conditions are true"))],
        _ => unmet,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::check::Verdict;

    fn tunnel(conditions: &[(&str, &str, &str, &str)], of: i64) -> Gateways {
        let conditions: Vec<Value> = conditions
            .iter()
            .map(|(type_, status, reason, message)| {
                json!({
                    "type": type_, "status": status, "reason": reason, "message": message,
                    "observedGeneration": of, "lastTransitionTime": "2030-01-01T00:00:00Z",
                })
            })
            .collect();
        serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "shop", "generation": 2},
            "spec": {},
            "status": {"conditions": conditions},
        }))
        .unwrap()
    }

    #[test]
    fn each_condition_that_does_not_hold_is_a_finding_with_its_code() {
        let conditions = [
            (
                "Ready",
                "False",
                "GatewaysNotReady",
                "MT0302 exit: 0 of 1 gateways ready",
            ),
            (
                "Available",
                "True",
                "Reconciled",
                "MT0301 All objects match the spec.",
            ),
            ("TuningApplied", "Unknown", "OfTomorrow", "MT0999 wait"),
        ];
        let good = judge(Kind::Tunnel, &tunnel(&conditions[1..2], 2), Some(&[]));
        let all = "MuxTunnel shop/web: all conditions are true";
        assert_eq!(good, [Check::good(all)]);
        let checks = judge(Kind::Tunnel, &tunnel(&conditions, 2), Some(&[]));
        let findings: Vec<_> = checks
            .iter()
            .map(|check| match &check.verdict {
                Verdict::Finding(finding) => (
                    check.description.as_str(),
                    finding.code.as_str(),
                    finding.cause.as_str(),
                ),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(
            findings,
            [
                (
                    "MuxTunnel shop/web: Ready",
                    "MT0302",
                    "exit: 0 of 1 gateways ready"
                ),
                ("MuxTunnel shop/web: TuningApplied", "MT0999", "wait"),
            ]
        );
    }

    #[test]
    fn a_status_that_is_missing_or_old_is_a_finding() {
        let ready = [(
            "Ready",
            "True",
            "Reconciled",
            "MT0301 All objects match the spec.",
        )];
        for tunnel in [tunnel(&[], 2), tunnel(&ready, 1)] {
            let checks = judge(Kind::Tunnel, &tunnel, Some(&[]));
            let Verdict::Finding(finding) = &checks[0].verdict else {
                panic!("{checks:?}");
            };
            assert_eq!((checks.len(), finding.code.as_str()), (1, "MT0391"));
        }
    }

    fn peer(reason: &str, status: &str, generation: i64) -> Peer {
        serde_json::from_value(json!({
            "metadata": {"name": "laptop", "namespace": "shop", "generation": generation},
            "spec": {},
            "status": {"conditions": [{
                "type": "Ready", "status": status, "reason": reason, "message": "the cause",
                "observedGeneration": 1, "lastTransitionTime": "2030-01-01T00:00:00Z",
            }]},
        }))
        .unwrap()
    }

    #[test]
    fn a_peer_that_is_not_ready_is_a_finding() {
        for reason in ["Connected", "Idle", "Suspended", "Expired"] {
            let check = judge_peer(&peer(reason, "True", 1));
            assert_eq!(
                check,
                Check::good("MuxPeer shop/laptop: the exit has read the peer")
            );
        }
        for (peer, code, fix) in [
            (
                peer("ExitNotFound", "False", 1),
                "ExitNotFound",
                "kubectl get muxexits -n shop",
            ),
            (
                peer("Idle", "True", 2),
                "MT0391",
                "kubectl describe muxpeer laptop -n shop",
            ),
        ] {
            let Verdict::Finding(finding) = judge_peer(&peer).verdict else {
                panic!("{code}");
            };
            assert_eq!(finding.fix, fix);
            assert!(
                finding.code == code || finding.reason == code,
                "{finding:?}"
            );
        }
    }
}
