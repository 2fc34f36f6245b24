//! The CEL rules of the schemas, with the messages of the API server's refusals.
//!
//! Each function returns one rule. Messages contain the offending value, so rules have a
//! `messageExpression`. For every rule, `tests/bad_objects` has an object that breaks it. A local
//! test checks these objects with kube's CEL, and an e2e test with an API server, because their
//! results can differ.

mod benchmark;
mod carrier;
mod class;
mod connect;
mod exit;
mod gateway;
mod network;
mod ports;
mod security;
mod services;
mod sysctls;

use kube::core::{Message, Rule};

pub(crate) use benchmark::*;
pub(crate) use carrier::*;
pub(crate) use class::*;
pub(crate) use connect::*;
pub(crate) use exit::*;
pub(crate) use gateway::*;
pub(crate) use network::*;
pub(crate) use ports::*;
pub(crate) use security::*;
pub use services::OWN_SERVICE_ENDS;
pub(crate) use services::*;
pub use sysctls::is_unsafe_sysctl;
pub(crate) use sysctls::*;

/// Builds a rule. A message that quotes an element of a list must use `format`. With `+`, the API
/// server estimates an unbounded length for a result of `filter` or `string`, and refuses the
/// definition.
fn rule(expression: impl Into<String>, message_expression: impl Into<String>) -> Rule {
    Rule::new(expression).message(Message::Expression(message_expression.into()))
}

/// CEL: the object at the beginning of `path`, such as `self.carrier.protocol`, has every field of
/// the path.
fn has(path: &str) -> String {
    let ends = path.match_indices('.').map(|(index, _)| index).skip(1);
    let prefixes = ends.chain([path.len()]).map(|end| &path[..end]);
    let all: Vec<_> = prefixes.map(|prefix| format!("has({prefix})")).collect();
    format!("({})", all.join(" && "))
}

/// CEL: the text at `path`, or `default` if the text is absent.
fn value(path: &str, default: &str) -> String {
    format!("({} ? {path} : '{default}')", has(path))
}

/// CEL: the list `self.PATH` has an item. An empty list is the same as an absent list.
fn given(path: &str) -> String {
    let path = format!("self.{path}");
    format!("({} && {path}.size() > 0)", has(&path))
}

/// CEL: the list has an item, or, with `LIST[].FIELD`, an item with this field.
fn any(path: &str) -> String {
    match path.split_once("[].") {
        Some((list, field)) => {
            format!("(has(self.{list}) && self.{list}.exists(f, has(f.{field})))")
        }
        None => given(path),
    }
}

/// CEL: the list of `names`.
fn set(names: &[&str]) -> String {
    format!("['{}']", names.join("', '"))
}

/// `names` in a sentence: `A, B or C`.
fn or(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [name] => (*name).to_owned(),
        [names @ .., last] => format!("{} or {last}", names.join(", ")),
    }
}

/// Unless the condition `unless` holds, no item `f` of `list` has the fault `fault`, which is a condition. The
/// message is `text` with `values`: expressions, or fields of the first item with the fault (`.FIELD`).
fn no_item(unless: &str, list: &str, fault: &str, text: &str, values: &[&str]) -> Rule {
    let absent = match list {
        "self" => String::new(),
        list => format!("!has({list}) || "),
    };
    let unless = match unless {
        "" => String::new(),
        unless => format!("{unless} || "),
    };
    let values = values.iter().map(|value| match value.starts_with('.') {
        true => format!("{list}.filter(f, {fault})[0]{value}"),
        false => (*value).to_owned(),
    });
    let values: Vec<_> = values.collect();
    rule(
        format!("{unless}{absent}{list}.all(f, !({fault}))"),
        format!("'{text}'.format([{}])", values.join(", ")),
    )
}

/// The value of `field` never changes. `kind` is the kind of the object.
pub(crate) fn immutable(field: &str, kind: &str) -> Rule {
    rule(
        format!("self.{field} == oldSelf.{field}"),
        format!(
            "'{field} cannot be changed from ' + oldSelf.{field} + ' to ' + self.{field} + ': create another {kind}'"
        ),
    )
}

/// With `condition`, the object has none of `fields`. `FIELD[]` is a list. `reason` is the begin of
/// the message.
fn excludes(condition: &str, reason: &str, fields: &[&str]) -> Rule {
    let is_set = |field: &str| match field.strip_suffix("[]") {
        Some(list) => given(list),
        None => has(&format!("self.{field}")),
    };
    let any: Vec<_> = fields.iter().map(|field| is_set(field)).collect();
    let first = fields.iter().rev().fold(String::new(), |rest, field| {
        let name = field.trim_end_matches("[]");
        if rest.is_empty() {
            format!("'{name}'")
        } else {
            format!("{} ? '{name}' : {rest}", is_set(field))
        }
    });
    rule(
        format!("!{condition} || !({})", any.join(" || ")),
        format!("'{reason}: remove ' + ({first})"),
    )
}

/// Children have the object's name with a suffix, and the name of a Service must be a DNS-1035
/// label.
pub(crate) fn name() -> Rule {
    rule(
        "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        "'metadata.name ' + self.metadata.name + ' must have only lower-case letters, digits and hyphens, and begin with \
         a letter'",
    )
}

/// Objects of two kinds have no child of one name. `example` names two objects that would.
pub(crate) fn name_without(ending: &str, example: &str) -> Rule {
    rule(
        format!("!self.metadata.name.endsWith('{ending}')"),
        format!(
            "'metadata.name ' + self.metadata.name + ' must not end in {ending}, because {example}: choose another name'"
        ),
    )
}

/// The name of a peer is the value of a label of metrics.
pub(crate) fn label_name() -> Rule {
    rule(
        "self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$') && !self.metadata.name.matches('^mt[exr]1')",
        "'metadata.name ' + self.metadata.name + ' must have only lower-case letters, digits and hyphens, begin and end \
         with a letter or digit, and not begin like a key'",
    )
}

pub(crate) fn ttl_needs_expiration() -> Rule {
    rule(
        "!has(self.ttlSecondsAfterExpiration) || has(self.expirationTime)",
        "'ttlSecondsAfterExpiration %d needs expirationTime, which it counts from'.format([self.ttlSecondsAfterExpiration])",
    )
}

pub(crate) fn peer_identity() -> Rule {
    rule(
        "has(self.publicKeys) != has(self.certificateNames)",
        "'a MuxPeer needs exactly one of publicKeys and certificateNames: the keys or the names of the entry'",
    )
}
