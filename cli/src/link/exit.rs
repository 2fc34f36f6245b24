//! The exit of a link. Pure.

use kube::{Resource, ResourceExt};
use muxtunnel_crds::{MuxExit, condition};
use serde_json::{Value, json};

use super::service::Target;
use crate::args::Exposure;
use crate::object::{self, Gateways, Peer};
use crate::peer::problem_of_exit;
use crate::target::{Address, authority};

/// The end of a host that only pods of the same cluster can resolve.
const INTERNAL: [&str; 2] = [".svc", ".svc.cluster.local"];
/// The port of an exit's Service.
pub(crate) const PORT: u16 = 443;

/// How entries reach an exit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reach {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) public_keys: Vec<String>,
}

/// The manifest of a new exit, which permits only the target.
pub(super) fn manifest(
    namespace: &str,
    name: &str,
    target: &Target,
    exposure: Exposure,
    address: Option<&Address>,
) -> Value {
    let mut spec = json!({
        "service": {"type": exposure},
        // The short name is for clients of `connect` and of proxies.
        "allow": [target.rule(&target.host()), target.rule(&target.service)],
    });
    if let Some(Address { host, port }) = address {
        spec["advertisedEndpoint"] = json!({"host": host, "port": port.unwrap_or(PORT)});
        if let (Exposure::NodePort, Some(port)) = (exposure, port) {
            spec["service"]["nodePort"] = json!(port);
        }
    }
    json!({
        "apiVersion": MuxExit::api_version(&()), "kind": MuxExit::kind(&()),
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    })
}

/// The name under which an existing exit permits the target.
///
/// # Errors
/// Why the link cannot use the exit, and what to do.
pub(super) fn host(exit: &Gateways, target: &Target) -> Result<String, String> {
    let rendezvous = exit
        .spec
        .get("rendezvous")
        .map(|_| "meets its entries at a rendezvous, which link does not support".to_owned());
    if let Some(problem) = problem_of_exit(exit).or(rendezvous) {
        return Err(format!(
            "{problem}. Choose another name with --exit or --name"
        ));
    }
    let permits = |host: &String| {
        matches(&exit.spec["allow"], host, target.port)
            && !matches(&exit.spec["deny"], host, target.port)
    };
    target.hosts().into_iter().find(permits).ok_or_else(|| {
        format!(
            "does not permit the target {host}:{port}. Add {{host: {host}, port: {port}}} to spec.allow (kubectl edit \
             muxexit {name} -n {namespace}), or choose another name with --exit or --name",
            host = target.host(),
            port = target.port,
            name = exit.name_any(),
            namespace = exit.namespace().unwrap_or_default(),
        )
    })
}

/// Whether a MuxPeer permits the target: it has no rules, or a rule that names the target.
pub(super) fn peer_permits(peer: &Peer, host: &str, port: u16) -> bool {
    let allow = &peer.spec["allow"];
    let is_empty = allow.as_array().is_none_or(Vec::is_empty);
    (is_empty || matches(allow, host, port)) && !matches(&peer.spec["deny"], host, port)
}

/// Whether a rule names the host and the port. Rules with a network are ignored, because only the
/// exit knows the addresses of the host.
fn matches(rules: &Value, host: &str, port: u16) -> bool {
    let names = |rule: &Value| {
        let is_host = match rule["host"].as_str() {
            Some(pattern) => match pattern.strip_prefix('*') {
                Some(rest) => host.len() > rest.len() && host.ends_with(rest),
                None => pattern.eq_ignore_ascii_case(host),
            },
            None => false,
        };
        let first = rule["port"].as_u64();
        let last = rule["endPort"].as_u64().or(first);
        let port = u64::from(port);
        is_host && first.is_none_or(|first| first <= port) && last.is_none_or(|last| port <= last)
    };
    rules.as_array().into_iter().flatten().any(names)
}

/// The keys and the address of the exit, from its status. `given`: the address of --address.
///
/// # Errors
/// What is missing.
pub(super) fn reach(
    exit: &Gateways,
    given: Option<&Address>,
    is_same_cluster: bool,
) -> Result<Reach, String> {
    let public_keys = object::public_keys(exit).to_vec();
    if public_keys.is_empty() {
        return Err(no_key(exit));
    }
    let endpoints = object::endpoints(exit);
    let mut usable = endpoints.iter();
    let usable = usable.find(|one| is_same_cluster || !is_internal(&one.host));
    let (host, port) = match (given, usable) {
        (Some(given), _) => (given.host.clone(), given.port.unwrap_or(PORT)),
        (None, Some(one)) => (one.host.clone(), one.port),
        (None, None) => {
            let inside = endpoints.first().map_or_else(String::new, |one| {
                let address = authority(&one.host, one.port);
                format!("; {address} is only valid inside of its cluster")
            });
            return Err(format!(
                "the exit has no address for other clusters yet{inside}. If its Service gets no address, give \
                 --address; {}",
                object::state(exit, condition::READY)
            ));
        }
    };
    Ok(Reach {
        host,
        port,
        public_keys,
    })
}

/// Whether only pods of the exit's cluster can resolve the host.
pub(crate) fn is_internal(host: &str) -> bool {
    INTERNAL.iter().any(|end| host.ends_with(end))
}

/// Why an object has no public key.
pub(super) fn no_key(object: &Gateways) -> String {
    let type_ = condition::CREDENTIALS_VALID;
    let type_ = match object::condition(object, type_) {
        Some(_) => type_,
        None => condition::READY,
    };
    let state = object::state(object, type_);
    format!("status.publicKeys is empty; {state}")
}
