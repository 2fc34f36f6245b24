//! The exit of a link. Pure.

use kube::ResourceExt;
use muxtunnel_crds::tunnel_condition;
use serde_json::{Value, json};

use super::service::Target;
use crate::args::Exposure;
use crate::object::{self, Peer, Tunnel};
use crate::peer::problem_of_exit;

/// The end of the host in an address that only pods of the same cluster can resolve.
const INTERNAL: [&str; 2] = [".svc", ".svc.cluster.local"];

/// How entries reach an exit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reach {
    /// `host:port`.
    pub(super) address: String,
    pub(super) public_keys: Vec<String>,
}

/// The manifest of a new exit, which permits only the target.
pub(super) fn manifest(
    namespace: &str,
    name: &str,
    target: &Target,
    exposure: Exposure,
    address: Option<&str>,
) -> Value {
    let type_ = match exposure {
        Exposure::LoadBalancer => "LoadBalancer",
        Exposure::NodePort => "NodePort",
    };
    let mut manifest = json!({
        "apiVersion": "muxtunnel.dev/v1alpha1", "kind": "MuxTunnel",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "side": "Exit",
            "exit": {"service": {"type": type_}},
            // The short name is for clients of `connect` and of proxies.
            "policy": {"allow": [target.rule(&target.host()), target.rule(&target.service)]},
        },
    });
    if let Some(address) = address {
        manifest["spec"]["carrier"] = json!({"address": address});
    }
    manifest
}

/// The name under which an existing exit permits the target.
///
/// # Errors
/// Why the link cannot use the exit, and what to do.
pub(super) fn host(exit: &Tunnel, target: &Target) -> Result<String, String> {
    if let Some(problem) = problem_of_exit(exit) {
        return Err(format!(
            "{problem}. Choose another name with --exit or --name"
        ));
    }
    if exit.spec["carrier"].get("rendezvous").is_some() {
        return Err(
            "meets its entries at a rendezvous, which link does not support. Choose another name with --exit or \
             --name"
                .to_owned(),
        );
    }
    let rules = |field: &str| {
        exit.spec["policy"][field]
            .as_array()
            .cloned()
            .unwrap_or_default()
    };
    let (allow, deny) = (rules("allow"), rules("deny"));
    let matches =
        |rules: &[Value], host: &str| rules.iter().any(|rule| matches(rule, host, target.port));
    let permits = |host: &String| matches(&allow, host) && !matches(&deny, host);
    target.hosts().into_iter().find(permits).ok_or_else(|| {
        format!(
            "does not permit the target {host}:{port}. Add {{host: {host}, port: {port}}} to spec.policy.allow \
             (kubectl edit muxtunnel {name} -n {namespace}), or choose another name with --exit or --name",
            host = target.host(),
            port = target.port,
            name = exit.name_any(),
            namespace = exit.namespace().unwrap_or_default(),
        )
    })
}

/// Whether a MuxPeer permits the target: it has no rules, or a rule that names the target.
pub(super) fn peer_permits(peer: &Peer, host: &str, port: u16) -> bool {
    let rules = |field: &str| peer.spec[field].as_array().cloned().unwrap_or_default();
    let names = |rules: &[Value]| rules.iter().any(|rule| matches(rule, host, port));
    let allow = rules("allow");
    (allow.is_empty() || names(&allow)) && !names(&rules("deny"))
}

/// Whether a rule applies to all peers and names the host and the port. Rules with a network are
/// ignored, because only the exit knows the addresses of the host.
fn matches(rule: &Value, host: &str, port: u16) -> bool {
    let Some(pattern) = rule["host"].as_str().filter(|_| rule["peer"].is_null()) else {
        return false;
    };
    let is_host = match pattern.strip_prefix('*') {
        Some(rest) => host.len() > rest.len() && host.ends_with(rest),
        None => pattern.eq_ignore_ascii_case(host),
    };
    let first = rule["port"].as_u64();
    let last = rule["endPort"].as_u64().or(first);
    let port = u64::from(port);
    is_host && first.is_none_or(|first| first <= port) && last.is_none_or(|last| port <= last)
}

/// The keys and the address of the exit, from its status. `given`: the address of --address.
///
/// # Errors
/// What is missing.
pub(super) fn reach(
    exit: &Tunnel,
    given: Option<&str>,
    is_same_cluster: bool,
) -> Result<Reach, String> {
    let public_keys = public_keys(exit);
    if public_keys.is_empty() {
        return Err(no_key(exit));
    }
    let status = exit.status.as_ref();
    let address = status.and_then(|status| status.exit.as_ref()?.address.clone());
    let address = match (given, address) {
        (Some(given), _) => given.to_owned(),
        (None, Some(address)) if is_same_cluster || !is_internal(&address) => address,
        (None, address) => {
            let address = address.map_or_else(String::new, |address| {
                format!("; {address} is only valid inside of its cluster")
            });
            return Err(format!(
                "the exit has no address for other clusters yet{address}. If its Service gets no address, give \
                 --address; {}",
                object::state(exit, tunnel_condition::READY)
            ));
        }
    };
    Ok(Reach {
        address,
        public_keys,
    })
}

/// Whether only pods of the exit's cluster can resolve the address.
pub(crate) fn is_internal(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    INTERNAL.iter().any(|end| host.ends_with(end))
}

/// The public keys in the status of a tunnel.
pub(super) fn public_keys(tunnel: &Tunnel) -> Vec<String> {
    let status = tunnel.status.as_ref();
    status.map_or_else(Vec::new, |status| status.public_keys.clone())
}

/// Why a tunnel has no public key.
pub(super) fn no_key(tunnel: &Tunnel) -> String {
    let type_ = tunnel_condition::CREDENTIALS_VALID;
    let type_ = match object::condition(tunnel, type_) {
        Some(_) => type_,
        None => tunnel_condition::READY,
    };
    let state = object::state(tunnel, type_);
    format!("status.publicKeys is empty; {state}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target() -> Target {
        Target {
            service: "web".into(),
            namespace: "backend".into(),
            port: 80,
            port_name: None,
        }
    }

    fn exit(spec: Value, status: Value) -> Tunnel {
        serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "backend", "generation": 1},
            "spec": spec, "status": status,
        }))
        .unwrap()
    }

    fn permitting(policy: Value) -> Tunnel {
        exit(json!({"side": "Exit", "policy": policy}), json!({}))
    }

    #[test]
    fn a_new_exit_permits_only_the_target() {
        let made = manifest(
            "backend",
            "web",
            &target(),
            Exposure::NodePort,
            Some("far.example.com"),
        );
        assert_eq!(
            made["spec"],
            json!({
                "side": "Exit", "exit": {"service": {"type": "NodePort"}},
                "carrier": {"address": "far.example.com"},
                "policy": {"allow": [
                    {"host": "web.backend.svc", "port": 80},
                    {"host": "web", "port": 80},
                ]},
            })
        );
        assert_eq!(
            host(&exit(made["spec"].clone(), json!({})), &target()).unwrap(),
            "web.backend.svc"
        );
    }

    #[test]
    fn an_existing_exit_is_used_if_it_permits_the_target() {
        for (policy, wanted) in [
            (json!({"allow": [{"host": "web"}]}), "web"),
            (
                json!({"allow": [{"host": "*", "port": 1, "endPort": 1000}]}),
                "web.backend.svc",
            ),
            (
                json!({"allow": [{"host": "*.backend.svc", "port": 80}]}),
                "web.backend.svc",
            ),
            (
                json!({"allow": [{"host": "*"}], "deny": [{"host": "*.svc"}]}),
                "web",
            ),
        ] {
            assert_eq!(host(&permitting(policy), &target()).unwrap(), wanted);
        }
        for policy in [
            json!({}),
            json!({"allow": [{"host": "web", "port": 81}]}),
            json!({"allow": [{"host": "web", "port": 80, "peer": "another"}]}),
            json!({"allow": [{"cidr": "10.0.0.0/8"}]}),
            json!({"allow": [{"host": "web"}], "deny": [{"host": "*"}]}),
        ] {
            let error = host(&permitting(policy.clone()), &target()).unwrap_err();
            assert!(
                error.contains("Add {host: web.backend.svc, port: 80} to spec.policy.allow"),
                "{policy}: {error}"
            );
        }
        for (spec, said) in [
            (json!({"side": "Both"}), "of side Both"),
            (
                json!({"side": "Exit", "carrier": {"security": {"mode": "None"}}}),
                "security mode None",
            ),
            (
                json!({"side": "Exit", "carrier": {"rendezvous": {}}}),
                "rendezvous",
            ),
        ] {
            let error = host(&exit(spec, json!({})), &target()).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn an_existing_peer_may_be_too_narrow() {
        for (spec, wanted) in [
            (json!({}), true),
            (
                json!({"allow": [{"host": "web.backend.svc", "port": 80}]}),
                true,
            ),
            (
                json!({"allow": [{"host": "web.backend.svc", "port": 81}]}),
                false,
            ),
            (json!({"deny": [{"host": "*"}]}), false),
        ] {
            let peer: Peer =
                serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap();
            assert_eq!(peer_permits(&peer, "web.backend.svc", 80), wanted, "{spec}");
        }
    }

    #[test]
    fn an_exit_is_reached_by_its_keys_and_an_address_outside_of_its_cluster() {
        let of = |address: &str| {
            exit(
                json!({}),
                json!({"publicKeys": ["mtx1"], "exit": {"address": address}}),
            )
        };
        let wanted = |address: &str| Reach {
            address: address.into(),
            public_keys: vec!["mtx1".into()],
        };
        let (inside, outside) = ("web-exit.backend.svc:64000", "192.0.2.1:64000");
        assert_eq!(reach(&of(outside), None, false), Ok(wanted(outside)));
        assert_eq!(reach(&of(inside), None, true), Ok(wanted(inside)));
        assert_eq!(reach(&of(inside), Some("a:1"), false), Ok(wanted("a:1")));
        let error = reach(&of(inside), None, false).unwrap_err();
        assert!(
            error.contains("only valid inside of its cluster"),
            "{error}"
        );
        let error = reach(&exit(json!({}), json!({})), None, false).unwrap_err();
        assert!(error.starts_with("status.publicKeys is empty; "), "{error}");
    }
}
