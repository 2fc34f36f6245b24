//! Rules for targets, from their form on the command line to their form in a file.

use std::fmt::Display;

use muxtunnel_gateway_config::Rule;

/// The fields of a rule, such as `{"host":"web","port":80}`.
pub(crate) fn rule(text: impl Display) -> String {
    let rule: Rule = text.to_string().parse().unwrap();
    serde_json::to_string(&rule).unwrap()
}

/// The rules of a list.
pub(crate) fn rules<T: Display>(texts: &[T]) -> String {
    texts.iter().map(rule).collect::<Vec<_>>().join(", ")
}
