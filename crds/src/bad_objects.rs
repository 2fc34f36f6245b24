//! The form of the files in `tests/bad_objects`: objects that an API server must refuse, and the
//! sentence that it must refuse them with. One table for the local test and for the cluster's.
//!
//! A file begins with `# expect: SENTENCE`. It holds one document, or two: an object that is accepted
//! and the update of it that is refused.

use serde::Deserialize;
use serde_json::Value;

/// One file of the table.
#[derive(Debug, Clone, PartialEq)]
pub struct BadObject {
    /// Part of the API server's message.
    pub expected: String,
    /// The accepted object that `object` is an update of.
    pub old: Option<Value>,
    /// The object that is refused.
    pub object: Value,
}

/// The text is not such a file.
#[derive(Debug)]
pub struct BadObjectError(String);

impl std::error::Error for BadObjectError {}

impl std::fmt::Display for BadObjectError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Reads one file of the table.
///
/// # Errors
/// If the first line is not `# expect: SENTENCE`, or there are not one or two YAML documents.
pub fn parse(text: &str) -> Result<BadObject, BadObjectError> {
    let expected = text
        .lines()
        .next()
        .and_then(|line| line.strip_prefix("# expect: "))
        .ok_or_else(|| BadObjectError("the first line is not `# expect: SENTENCE`".to_owned()))?
        .to_owned();
    let mut documents = serde_yaml::Deserializer::from_str(text)
        .map(Value::deserialize)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| BadObjectError(format!("not YAML: {error}")))?;
    let object = documents.pop();
    match (object, documents.pop(), documents.is_empty()) {
        (Some(object), old, true) => Ok(BadObject {
            expected,
            old,
            object,
        }),
        _ => Err(BadObjectError("not one or two documents".to_owned())),
    }
}
