//! The document with a gateway's configuration, as far as each version of the operator can read it.
//! Pure.
//!
//! A ConfigMap can have documents of other versions, with fields that this version does not know.
//! Therefore the functions read YAML values, not a `Config`.

use muxtunnel_gateway_config::Cidr;
use serde_yaml::{Mapping, Value};

/// The mapping in a YAML text.
pub(super) fn parsed(text: &str) -> Option<Value> {
    let document = serde_yaml::from_str(text).ok();
    document.filter(Value::is_mapping)
}

/// The value at `path`.
pub(super) fn at<'a>(document: &'a Value, path: &[&str]) -> Option<&'a Value> {
    let mut path = path.iter();
    path.try_fold(document, |value, name| value.get(name))
}

/// The items of the list at `path`. Empty without such a list.
pub(super) fn items<'a>(document: &'a Value, path: &[&str]) -> &'a [Value] {
    let list = at(document, path).and_then(Value::as_sequence);
    list.map_or(&[], Vec::as_slice)
}

/// Replaces the list at `path`. An empty list is removed.
pub(super) fn set_items(document: &mut Value, path: &[&str], items: Vec<Value>) {
    let Some((name, parents)) = path.split_last() else {
        return;
    };
    let mut value = document;
    for parent in parents {
        let Some(fields) = value.as_mapping_mut() else {
            return;
        };
        let parent = Value::from(*parent);
        if items.is_empty() && !fields.contains_key(&parent) {
            return;
        }
        value = fields
            .entry(parent)
            .or_insert_with(|| Value::Mapping(Mapping::new()));
    }
    let Some(fields) = value.as_mapping_mut() else {
        return;
    };
    if items.is_empty() {
        fields.remove(*name);
    } else {
        fields.insert(Value::from(*name), Value::Sequence(items));
    }
}

/// Replaces each item of the list at `path` by the result of `change`. `None` removes the item.
pub(super) fn change_items(
    document: &mut Value,
    path: &[&str],
    change: impl FnMut(&Value) -> Option<Value>,
) {
    let before = items(document, path);
    let after: Vec<_> = before.iter().filter_map(change).collect();
    if after != before {
        set_items(document, path, after);
    }
}

/// The peers of an exit.
pub(super) const PEERS: [&str; 2] = ["security", "peers"];
/// The networks of an exit's peers.
pub(super) const NETWORK_PEERS: [&str; 2] = ["network", "peers"];
/// The listeners that peers may request.
pub(super) const LISTENS: [&str; 1] = ["allowListen"];
/// The networks of one peer in [`NETWORK_PEERS`].
pub(super) const CIDRS: &str = "CIDRs";

/// The networks of one peer in [`NETWORK_PEERS`].
pub(super) fn cidrs_of(peer: &Value) -> Vec<Cidr> {
    let texts = items(peer, &[CIDRS]).iter().filter_map(Value::as_str);
    texts.filter_map(|text| text.parse().ok()).collect()
}

/// The addresses that both lists have.
pub(super) fn lessened(own: &[Cidr], other: &[Cidr]) -> Vec<Cidr> {
    let within = |cidr: &&Cidr, all: &[Cidr]| all.iter().any(|network| network.has(**cidr));
    let (kept, narrowed) = (own.iter(), other.iter());
    let kept = kept.filter(|cidr| within(cidr, other));
    let narrowed = narrowed.filter(|cidr| within(cidr, own) && !own.contains(cidr));
    kept.chain(narrowed).copied().collect()
}

/// The lists of listening ports.
pub(super) const PORTS: [&str; 3] = ["forwards", REVERSE_FORWARDS, "proxies"];
/// The list of ports whose targets the entry dials.
pub(super) const REVERSE_FORWARDS: &str = "reverseForwards";
/// The fields of a port that contain targets.
pub(super) const TARGETS: [&str; 2] = ["targets", "fallbackTargets"];

/// The hosts of all targets that the gateway may dial or request: the targets of ports, and the
/// hosts, or patterns of hosts, of allow rules.
pub(super) fn hosts(document: &Value) -> impl Iterator<Item = &str> {
    let lists = PORTS.into_iter();
    let ports = lists.flat_map(|list| items(document, &[list]));
    let allowed = items(document, &["allow"]).iter();
    ports.flat_map(targets).chain(allowed).filter_map(host)
}

/// The targets of a port.
pub(super) fn targets(port: &Value) -> impl Iterator<Item = &Value> {
    TARGETS.into_iter().flat_map(|field| items(port, &[field]))
}

/// The host of a target or of a rule.
pub(super) fn host(item: &Value) -> Option<&str> {
    item.get("host")?.as_str()
}
