//! Category tunnels: each condition of a tunnel, exit or rendezvous that is not true, peers that are
//! not Ready, and buffers that are too small for carriers over UDP.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::Api;
use muxtunnel_codes::Code;
use muxtunnel_crds::condition;
use serde::de::DeserializeOwned;

use super::fix::{self, Owner, Right};
use super::{Check, Finding, Scope, readable, udp_buffers};
use crate::cluster::{place, refusal};
use crate::end::Failure;
use crate::object::{self, Kind, Known, Peer, Status};

pub(super) async fn run(scope: &Scope<'_>) -> Result<Vec<Check>, Failure> {
    let (client, namespace) = (&scope.cluster.client, scope.namespace());
    let (mut objects, mut checks) = (Vec::new(), Vec::new());
    for kind in Kind::ALL {
        let api = object::api(client, kind, namespace);
        match read(scope, kind.name(), kind.plural(), &api).await? {
            Ok(found) => objects.extend(found.into_iter().map(|object| (kind, object))),
            Err(check) => checks.push(check),
        }
    }
    let peers = object::peers_api(client, namespace);
    let peers = match read(scope, "MuxPeer", "muxpeers", &peers).await? {
        Ok(peers) => peers,
        Err(check) => {
            checks.push(check);
            Vec::new()
        }
    };
    if objects.is_empty() && checks.is_empty() {
        let place = place(namespace);
        let why = format!("there are no tunnels, exits and rendezvous in {place}");
        checks.push(Check::skipped("the conditions are true", why));
    }
    for (kind, object) in &objects {
        let owner = Owner::new(kind.name(), object);
        checks.extend(judge(&owner, object, |_| true));
        checks.extend(udp_buffers::check(scope, &owner, object).await?);
    }
    for peer in &peers {
        checks.extend(judge_peer(peer));
    }
    Ok(checks)
}

/// The objects of a kind. `Err`: the check that they could not be read.
async fn read<S: Status + DeserializeOwned>(
    scope: &Scope<'_>,
    kind: &str,
    resource: &str,
    api: &Api<Known<S>>,
) -> Result<Result<Vec<Known<S>>, Check>, Failure> {
    let description = format!("the conditions of the kind {kind} can be read");
    let right = Right::new("list", "muxtunnel.dev", resource, scope.namespace());
    let answer = object::all(api).await;
    if answer
        .as_ref()
        .is_err_and(|error| refusal(error) == Some(404))
    {
        let why = format!("the definition of {kind} is not installed");
        return Ok(Err(Check::skipped(description, why)));
    }
    // A missing right is a finding, because a skipped check would hide that the user may not list
    // the objects.
    let missing = |_| Check::finding(description.clone(), right.missing());
    Ok(readable(answer, &description, &right)?.map_err(missing))
}

/// The checks of a peer. A peer that is suspended, has expired or is not connected is Ready, because
/// the exit does what the spec requests.
fn judge_peer(peer: &Peer) -> Vec<Check> {
    let is_ready = |one: &Condition| one.type_ == condition::READY;
    judge(&Owner::new("MuxPeer", peer), peer, is_ready)
}

/// Returns one good check if the `wanted` conditions of the object are true. Otherwise returns one
/// finding for each of them that is not true, or one finding for a status of an older spec.
fn judge<S: Status>(
    owner: &Owner,
    object: &Known<S>,
    wanted: impl Fn(&Condition) -> bool,
) -> Vec<Check> {
    let place = owner.text();
    let conditions = object::conditions(object).iter().filter(|one| wanted(one));
    let conditions: Vec<_> = conditions.collect();
    if conditions.is_empty() || !conditions.iter().all(|one| object::is_current(object, one)) {
        let cause = match conditions.as_slice() {
            [] => "the object has no conditions",
            _ => "the conditions describe an older spec",
        };
        let fix = fix::condition(Code::StatusOutdated.reason(), owner);
        let description = format!("{place}: the operator reports its state");
        return vec![Check::finding(
            description,
            Finding::new(Code::StatusOutdated, cause, fix),
        )];
    }
    let unmet = conditions.iter().filter(|one| one.status != "True");
    let unmet: Vec<_> = unmet
        .map(|one| {
            let finding = Finding {
                code: object::code(one).unwrap_or_else(|| one.reason.clone()),
                reason: one.reason.clone(),
                cause: object::message(one).to_owned(),
                fix: fix::condition(&one.reason, owner),
            };
            Check::finding(format!("{place}: {}", one.type_), finding)
        })
        .collect();
    match unmet.as_slice() {
        [] => vec![Check::good(format!("{place}: the conditions are true"))],
        _ => unmet,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::check::Verdict;
    use crate::object::Gateways;

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

    fn judged(tunnel: &Gateways) -> Vec<Check> {
        judge(&Owner::new("MuxTunnel", tunnel), tunnel, |_| true)
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
        let good = judged(&tunnel(&conditions[1..2], 2));
        let all = "MuxTunnel shop/web: the conditions are true";
        assert_eq!(good, [Check::good(all)]);
        let checks = judged(&tunnel(&conditions, 2));
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
            let checks = judged(&tunnel);
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
            "status": {"conditions": [
                {
                    "type": "Ready", "status": status, "reason": reason, "message": "the cause",
                    "observedGeneration": 1, "lastTransitionTime": "2030-01-01T00:00:00Z",
                },
                {
                    "type": "Connected", "status": "False", "reason": "Idle", "message": "",
                    "observedGeneration": 1, "lastTransitionTime": "2030-01-01T00:00:00Z",
                },
            ]},
        }))
        .unwrap()
    }

    #[test]
    fn a_peer_that_is_not_ready_is_a_finding() {
        for reason in ["Connected", "Idle", "Suspended", "Expired"] {
            let good = Check::good("MuxPeer shop/laptop: the conditions are true");
            assert_eq!(judge_peer(&peer(reason, "True", 1)), [good]);
        }
        for (peer, reason, fix) in [
            (
                peer("ExitNotFound", "False", 1),
                "ExitNotFound",
                "kubectl get muxexits -n shop",
            ),
            (
                peer("Idle", "True", 2),
                "StatusOutdated",
                "kubectl describe muxpeer laptop -n shop",
            ),
        ] {
            let checks = judge_peer(&peer);
            let Verdict::Finding(finding) = &checks[0].verdict else {
                panic!("{checks:?}");
            };
            assert_eq!((&*finding.reason, &*finding.fix), (reason, fix));
        }
    }
}
