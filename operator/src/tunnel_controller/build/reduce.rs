//! The documents of earlier pods: their gateways get no permission that the present configuration
//! does not have. Pure.
//!
//! A gateway of another version refuses a document with a field that it does not know. Therefore
//! [`reduced`] adds no field and no permission to a document. It removes ports, rules, peers and
//! networks that the present configuration does not have, and adds denials. It compares YAML
//! values, so it needs no version of the document's fields.

mod peers;

use muxtunnel_gateway_config::{Cidr, Config, NAT64_PREFIXES_MAX, PROTECTED_MAX, Peer, RULES_MAX};
use serde_yaml::Value;

use crate::tunnel_controller::document::{
    PEERS, PORTS, REVERSE_FORWARDS, TARGETS, at, change_items, host, items, parsed, set_items,
    targets,
};
pub(super) use peers::{Asked, withdraw_members, withdraw_of_peers, withdraw_peers};

/// The fields of a port that decide who reaches which target.
const DECISIVE: [&[&str]; 7] = [
    &["listen"],
    &[TARGETS[0]],
    &[TARGETS[1]],
    &["protocol"],
    &["usersFile"],
    &["acceptProxyProtocol"],
    &["proxyProtocol", "accept"],
];
/// The fields of a rule that each version knows.
const RULE: [&str; 6] = ["host", "cidr", "unix", "port", "endPort", "peer"];
/// The place of the mode of the security.
const MODE: [&str; 2] = ["security", "mode"];
/// The place of an entry's exits.
const CONNECT: [&str; 1] = ["connect"];
/// The fields with the identities of an exit.
const IDENTITIES: [&str; 2] = ["publicKeys", "certificateNames"];

/// The document `text` without what `present` does not permit. Returns an unchanged document as it
/// is. A text that is not YAML stays unchanged, because no gateway can read it.
pub fn reduced(text: &str, present: &Config) -> String {
    let present = serde_yaml::to_value(present);
    changed(text, |document| {
        if let Ok(present) = &present {
            reduce(document, present);
        }
    })
}

/// The document `text` after `change`, or `text` itself if the document stays unchanged.
fn changed(text: &str, change: impl FnOnce(&mut Value)) -> String {
    let Some(before) = parsed(text) else {
        return text.to_owned();
    };
    let mut document = before.clone();
    change(&mut document);
    match document == before {
        true => text.to_owned(),
        false => serde_yaml::to_string(&document).unwrap_or_else(|_| text.to_owned()),
    }
}

fn reduce(document: &mut Value, present: &Value) {
    for list in PORTS {
        retain(document, &[list], |port| {
            let mut now = items(present, &[list]).iter();
            now.any(|now| is_same(port, now))
        });
    }
    for path in [&["allow"], &["allowListen"], &["trustedProxies"]] {
        #[expect(
            clippy::disallowed_types,
            reason = "no iteration, and YAML values have no order"
        )]
        let permitted: std::collections::HashSet<_> =
            items(present, path).iter().map(canonical).collect();
        retain(document, path, |rule| permitted.contains(&canonical(rule)));
    }
    deny(document, items(present, &["deny"]));
    for (name, most) in [
        ("protectedCIDRs", PROTECTED_MAX),
        ("nat64Prefixes", NAT64_PREFIXES_MAX),
    ] {
        if !items(document, &[name]).is_empty() {
            append(document, &[name], items(present, &[name]).to_vec(), most);
        }
    }
    peers(document, present);
}

/// The item, or a network in its long form: other versions may write `10.0.0.7/32` as `10.0.0.7`.
fn canonical(item: &Value) -> Value {
    let network = item.as_str().and_then(|text| text.parse::<Cidr>().ok());
    network.map_or_else(|| item.clone(), |network| format!("{network:#}").into())
}

fn retain(document: &mut Value, path: &[&str], keeps: impl Fn(&Value) -> bool) {
    change_items(document, path, |item| keeps(item).then(|| item.clone()));
}

/// Adds the items that the list does not have. If the list then has more than `most` items, the list
/// has only the given items, because a gateway refuses a longer list.
fn append(document: &mut Value, path: &[&str], given: Vec<Value>, most: usize) {
    let mut all = items(document, path).to_vec();
    let before = all.len();
    for item in &given {
        if !all.iter().any(|known| canonical(known) == canonical(item)) {
            all.push(item.clone());
        }
    }
    if all.len() > most {
        set_items(document, path, given);
    } else if all.len() > before {
        set_items(document, path, all);
    }
}

fn is_same(port: &Value, now: &Value) -> bool {
    port.get("name") == now.get("name")
        && DECISIVE.iter().all(|path| at(port, path) == at(now, path))
}

/// Adds the denials whose fields the document's version knows.
fn deny(document: &mut Value, denied: &[Value]) {
    let own = ["allow", "deny"].map(|name| items(document, &[name]));
    let own: Vec<_> = own.into_iter().flatten().collect();
    let knows = |field: &Value| {
        let base = RULE.iter().any(|known| field.as_str() == Some(known));
        base || own.iter().any(|rule| rule.get(field).is_some())
    };
    let is_known = |rule: &&Value| {
        let fields = rule.as_mapping();
        fields.is_some_and(|fields| fields.keys().all(knows))
    };
    let given = denied.iter().filter(is_known).cloned().collect();
    append(document, &["deny"], given, RULES_MAX);
}

/// Removes the peers that may no longer open a carrier. The other peers get their present rules. The
/// exits of an entry get their present identities.
fn peers(document: &mut Value, present: &Value) {
    if at(document, &MODE) != at(present, &MODE) {
        return;
    }
    withdraw_peers(document, items(present, &PEERS));
    change_items(document, &CONNECT, |exit| {
        let mut exit = exit.clone();
        let mut now = items(present, &CONNECT).iter();
        if let Some(now) = now.find(|now| now.get("name") == exit.get("name")) {
            for field in IDENTITIES {
                set_items(&mut exit, &[field], items(now, &[field]).to_vec());
            }
        }
        Some(exit)
    });
}

/// The document `text` of a MuxExit with the peers that `accepted` still has.
pub(super) fn with_peers(text: &str, accepted: &[&Peer]) -> String {
    let accepted = accepted.iter().map(serde_yaml::to_value);
    let accepted: Vec<_> = accepted.filter_map(Result::ok).collect();
    changed(text, |document| withdraw_peers(document, &accepted))
}

/// Removes the targets whose hosts `is_refused` names, and the allow rules for them. Adds deny rules
/// for these hosts, which end the open streams.
pub(super) fn withdraw(document: &mut Value, is_refused: impl Fn(&str) -> bool) {
    let is_for = |item: &Value| host(item).is_some_and(&is_refused);
    let is_entry = document.get("role").and_then(Value::as_str) == Some("Entry");
    let reverse = items(document, &[REVERSE_FORWARDS]).iter();
    let dialled = reverse.filter(|_| is_entry).flat_map(targets);
    // A target has the form of a rule. A pattern gets no deny rule, because it may cover Services
    // that are still permitted.
    let is_pattern = |rule: &Value| host(rule).is_some_and(|host| host.starts_with('*'));
    let allowed = items(document, &["allow"]).iter();
    let allowed = allowed.filter(|rule| !is_pattern(rule));
    let room = RULES_MAX.saturating_sub(items(document, &["deny"]).len());
    let denied = dialled.chain(allowed).filter(|item| is_for(item));
    let denied: Vec<_> = denied.take(room).cloned().collect();
    for list in PORTS {
        change_items(document, &[list], |port| without(port, is_for));
    }
    retain(document, &["allow"], |rule| !is_for(rule));
    append(document, &["deny"], denied, RULES_MAX);
}

/// The port without the targets that `is_refused` names. `None` if it then has no target.
fn without(port: &Value, is_refused: impl Fn(&Value) -> bool) -> Option<Value> {
    let mut port = port.clone();
    for field in TARGETS {
        retain(&mut port, &[field], |target| !is_refused(target));
    }
    // Clients of a proxy name their targets.
    let is_proxy = port.get("protocol").is_some();
    (is_proxy || targets(&port).next().is_some()).then_some(port)
}

#[cfg(test)]
mod tests;
