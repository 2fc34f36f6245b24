//! The document with a gateway's configuration, as far as each version of the operator can read it.
//! Pure.
//!
//! A ConfigMap can have documents of other versions, with fields that this version does not know.
//! Therefore the functions read YAML values, not a `Config`.

use muxtunnel_gateway_config::Target;
use serde_yaml::{Mapping, Value};

/// The mapping in a YAML text.
pub(super) fn parsed(text: &str) -> Option<Value> {
    let document = serde_yaml::from_str(text).ok();
    document.filter(Value::is_mapping)
}

/// The items of the list at `path`. Empty without such a list.
pub(super) fn items<'a>(document: &'a Value, path: &[&str]) -> &'a [Value] {
    let found = path
        .iter()
        .try_fold(document, |value, name| value.get(name));
    found
        .and_then(Value::as_sequence)
        .map_or(&[], Vec::as_slice)
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

/// The hosts of all targets that the gateway may dial or request: the targets of forwards, and the
/// hosts, or patterns of hosts, of allow rules.
pub(super) fn hosts(document: &Value) -> impl Iterator<Item = &str> {
    let forwards = items(document, &["forwards"]).iter();
    let allowed = items(document, &["policy", "allow"]).iter();
    let targets = forwards.filter_map(host_of_forward);
    targets.chain(allowed.filter_map(host_of_rule))
}

/// The host of a forward's target.
pub(super) fn host_of_forward(forward: &Value) -> Option<&str> {
    forward.get("target")?.get("host")?.as_str()
}

/// The host in a rule `HOST[:PORTS][,peer=IDENTITY]`. The host of a rule with an IPv6 address or a
/// Unix socket is no name of a Service.
pub(super) fn host_of_rule(rule: &Value) -> Option<&str> {
    rule.as_str()?.split([':', ',']).next()
}

/// The target of a forward, if it has a host and a port.
pub(super) fn target_of_forward(forward: &Value) -> Option<Target> {
    let host = host_of_forward(forward)?.to_owned();
    let port = forward.get("target")?.get("port")?.as_u64()?;
    let port = u16::try_from(port).ok()?;
    Some(Target::Tcp { host, port })
}
