//! The format of the files in `crds/tests/bad_objects`: objects that an API server must refuse, each
//! with a part of the expected message. The local test and the test in a cluster read the same
//! files.
//!
//! A file begins with `# expect: SENTENCE`. One document follows: the refused object. With two
//! documents, the first is accepted, and the second is a refused update of the first.

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::Value;

/// The content of one file.
#[derive(Debug, Clone, PartialEq)]
pub struct BadObject {
    /// Part of the API server's message.
    pub expected: String,
    /// The accepted object that `object` updates.
    pub old: Option<Value>,
    /// The object that is refused.
    pub object: Value,
}

/// Parses the content of one file.
///
/// # Errors
/// If the first line is not `# expect: SENTENCE`, or the file does not have one or two YAML
/// documents.
pub fn parse(text: &str) -> Result<BadObject> {
    let first = text.lines().next();
    let expected = first.and_then(|line| line.strip_prefix("# expect: "));
    let expected = expected.context("line 1: expected `# expect: SENTENCE`")?;
    let documents = serde_yaml::Deserializer::from_str(text).map(Value::deserialize);
    let documents = documents.collect::<Result<Vec<_>, _>>();
    let mut documents = documents.context("invalid YAML")?;
    let object = documents.pop();
    match (object, documents.pop(), documents.is_empty()) {
        (Some(object), old, true) => Ok(BadObject {
            expected: expected.to_owned(),
            old,
            object,
        }),
        _ => bail!("expected one or two YAML documents"),
    }
}
