//! The documents of earlier pods: their gateways get no permission that the present configuration
//! does not have. Pure.
//!
//! A gateway of another version refuses a document with a field that it does not know. Therefore
//! [`reduced`] adds no field and no permission to a document. It removes forwards, rules, peers and
//! networks that the present configuration does not have, and adds denials. It compares YAML
//! values, so it needs no version of the document's fields.

use muxtunnel_gateway_config::{
    Config, GatewayKey, KEY_BYTES, KeyRole, NAT64_PREFIXES_MAX, PROTECTED_MAX, Peer, RULES_MAX,
    Rule,
};
use serde_yaml::Value;

use crate::tunnel_controller::document::{
    host_of_forward, host_of_rule, items, parsed, set_items, target_of_forward,
};

/// The fields of a forward that decide who reaches which target.
const DECISIVE: [&[&str]; 6] = [
    &["listen"],
    &["target"],
    &["protocol"],
    &["auth"],
    &["direction"],
    &["proxyProtocol", "accept"],
];
/// A name that no authority certifies: `invalid` is reserved (RFC 2606).
const NO_NAME: &str = "spiffe://nobody.invalid/nobody";
/// A public key without a known private key.
const NO_KEY: &[u8; KEY_BYTES] = b"Nobody has the private key of me";
/// The security mode whose peers have names.
const PUBLIC_KEYS: &str = "PublicKeys";
/// The place of the peers in a document.
const PEERS: [&str; 2] = ["security", "peers"];

/// The document `text` without what `present` does not permit. Returns an unchanged document as it
/// is. A text that is not YAML stays unchanged, because no gateway can read it.
#[must_use]
pub fn reduced(text: &str, present: &Config) -> String {
    let (Some(before), Ok(present)) = (parsed(text), serde_yaml::to_value(present)) else {
        return text.to_owned();
    };
    let mut document = before.clone();
    reduce(&mut document, &present);
    match document == before {
        true => text.to_owned(),
        false => serde_yaml::to_string(&document).unwrap_or_else(|_| text.to_owned()),
    }
}

fn reduce(document: &mut Value, present: &Value) {
    retain(document, &["forwards"], |forward| {
        let mut now = items(present, &["forwards"]).iter();
        now.any(|now| is_same(forward, now))
    });
    for path in [
        &["policy", "allow"][..],
        &["allowListen"],
        &["trustedProxies"],
    ] {
        let permitted = items(present, path);
        retain(document, path, |rule| permitted.contains(rule));
    }
    deny(document, items(present, &["policy", "deny"]));
    for (name, most) in [
        ("protected", PROTECTED_MAX),
        ("nat64Prefixes", NAT64_PREFIXES_MAX),
    ] {
        let path = ["policy", name];
        if !items(document, &path).is_empty() {
            append(document, &path, items(present, &path).to_vec(), most);
        }
    }
    peers(document, present);
}

fn retain(document: &mut Value, path: &[&str], keeps: impl Fn(&Value) -> bool) {
    let before = items(document, path);
    let after: Vec<_> = before.iter().filter(|item| keeps(item)).cloned().collect();
    if after.len() != before.len() {
        set_items(document, path, after);
    }
}

/// Adds the items that the list does not have. If the list then has more than `most` items, the list
/// has only the given items, because a gateway refuses a longer list.
fn append(document: &mut Value, path: &[&str], given: Vec<Value>, most: usize) {
    let mut all = items(document, path).to_vec();
    let before = all.len();
    for item in &given {
        if !all.contains(item) {
            all.push(item.clone());
        }
    }
    if all.len() > most {
        set_items(document, path, given);
    } else if all.len() > before {
        set_items(document, path, all);
    }
}

fn is_same(forward: &Value, now: &Value) -> bool {
    let at = |forward: &Value, path: &[&str]| {
        let found = path.iter().try_fold(forward, |value, name| value.get(name));
        found.cloned()
    };
    forward.get("name") == now.get("name")
        && DECISIVE
            .iter()
            .all(|path| at(forward, path) == at(now, path))
}

/// Adds the denials whose text form the document's version knows.
fn deny(document: &mut Value, denied: &[Value]) {
    let own = ["allow", "deny"].map(|name| items(document, &["policy", name]));
    let known: Vec<_> = own.into_iter().flatten().filter_map(key_of_rule).collect();
    let is_known = |rule: &&Value| match key_of_rule(rule) {
        None => rule.is_string(),
        Some(key) => key == "peer" || known.contains(&key),
    };
    let given = denied.iter().filter(is_known).cloned().collect();
    append(document, &["policy", "deny"], given, RULES_MAX);
}

/// The key of a rule `TARGET,KEY=VALUE`.
fn key_of_rule(rule: &Value) -> Option<&str> {
    let (_, more) = rule.as_str()?.split_once(',')?;
    more.split('=').next()
}

/// Removes the peers that may no longer open a carrier. The other peers get their present rules.
fn peers(document: &mut Value, present: &Value) {
    let mode = |document: &Value| document.get("security")?.get("mode").cloned();
    let own = mode(document);
    if own == mode(present) {
        replace_peers(document, items(present, &PEERS));
    }
}

/// The document `text` of an exit in mode PublicKeys with the peers that `accepted` still has.
/// Another document stays unchanged.
pub(super) fn with_peers(text: &str, accepted: &[&Peer]) -> String {
    let accepted = accepted.iter().map(serde_yaml::to_value);
    let (Some(before), Ok(accepted)) = (parsed(text), accepted.collect::<Result<Vec<_>, _>>())
    else {
        return text.to_owned();
    };
    let mut document = before.clone();
    if document.get("role").and_then(Value::as_str) == Some("Exit") {
        withdraw_peers(&mut document, &accepted);
    }
    match document == before {
        true => text.to_owned(),
        false => serde_yaml::to_string(&document).unwrap_or_else(|_| text.to_owned()),
    }
}

/// Like [`reduced`], for the peers of an exit in mode PublicKeys. `present`: the accepted peers.
pub(super) fn withdraw_peers(document: &mut Value, present: &[Value]) {
    let mode = document.get("security").and_then(|own| own.get("mode"));
    if mode.and_then(Value::as_str) == Some(PUBLIC_KEYS) {
        replace_peers(document, present);
    }
}

fn replace_peers(document: &mut Value, present: &[Value]) {
    let own = items(document, &PEERS);
    if own.is_empty() {
        return;
    }
    let name = |peer: &Value| peer.get("name").cloned();
    let kept = own.iter().filter_map(|own| {
        let mut same = present.iter();
        let same = same.find(|now| *now == own || name(own).is_some() && name(now) == name(own));
        same.cloned()
    });
    let mut kept: Vec<_> = kept.collect();
    if kept.is_empty() {
        // An empty list would be invalid.
        kept.push(nobody(document));
    }
    set_items(document, &PEERS, kept);
}

/// A peer that nobody is.
fn nobody(document: &Value) -> Value {
    let mode = document.get("security").and_then(|own| own.get("mode"));
    if mode.and_then(Value::as_str) != Some(PUBLIC_KEYS) {
        return Value::from(NO_NAME);
    }
    let is_entry = document.get("role").and_then(Value::as_str) == Some("Entry");
    let role = match is_entry {
        true => KeyRole::Exit,
        false => KeyRole::Entry,
    };
    let key = GatewayKey::new(role, *NO_KEY);
    key.map_or_else(|_| Value::from(NO_NAME), |key| Value::from(key.to_string()))
}

/// Removes the forwards to the hosts that `is_refused` names, and the allow rules for them. Adds deny
/// rules for these hosts, which end the open streams.
pub(super) fn withdraw(document: &mut Value, is_refused: impl Fn(&str) -> bool) {
    let is_to = |forward: &Value| host_of_forward(forward).is_some_and(&is_refused);
    let is_for = |rule: &Value| host_of_rule(rule).is_some_and(&is_refused);
    let text = |value: &Value, name: &str| value.get(name)?.as_str().map(str::to_owned);
    let dials = |forward: &Value| text(forward, "direction").as_deref() == Some("ExitToEntry");
    let is_entry = text(document, "role").as_deref() == Some("Entry");
    let forwards = items(document, &["forwards"]).iter();
    let dialled = forwards.filter(|forward| is_entry && dials(forward) && is_to(forward));
    let dialled = dialled.filter_map(|forward| Some(Rule::of_target(&target_of_forward(forward)?)));
    let dialled = dialled.map(|rule| Value::from(rule.to_string()));
    // A pattern gets no deny rule, because it may cover Services that are still permitted.
    let is_pattern = |rule: &&Value| rule.as_str().is_some_and(|rule| rule.starts_with('*'));
    let allowed = items(document, &["policy", "allow"]).iter();
    let allowed = allowed.filter(|rule| is_for(rule) && !is_pattern(rule));
    let room = RULES_MAX.saturating_sub(items(document, &["policy", "deny"]).len());
    let denied: Vec<_> = dialled.chain(allowed.cloned()).take(room).collect();
    retain(document, &["forwards"], |forward| !is_to(forward));
    retain(document, &["policy", "allow"], |rule| !is_for(rule));
    append(document, &["policy", "deny"], denied, RULES_MAX);
}

#[cfg(test)]
mod tests;
