//! The CEL rules of the schemas, with the messages of the API server's refusals.
//!
//! Each function returns one rule. Messages contain the offending value, so rules have a
//! `messageExpression`. For every rule, `tests/bad_objects` has an object that breaks it. A local
//! test checks these objects with kube's CEL, and an e2e test with an API server, because their
//! results can differ.

mod sysctls;

use kube::core::{Message, Rule};

pub use sysctls::is_unsafe_sysctl;
pub(crate) use sysctls::*;

/// Builds a rule. A message that quotes an element of a list must use `format`. With `+`, the API
/// server estimates an unbounded length for a result of `filter` or `string`, and refuses the
/// definition.
fn rule(expression: impl Into<String>, message_expression: impl Into<String>) -> Rule {
    Rule::new(expression).message(Message::Expression(message_expression.into()))
}
