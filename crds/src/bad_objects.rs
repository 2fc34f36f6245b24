//! The format of the files in `tests/bad_objects`: objects that an API server must refuse, each
//! with a part of the expected message. The local test and the test in a cluster read the same
//! files.
//!
//! A file begins with `# expect: SENTENCE`. One document follows: the refused object. With two
//! documents, the first is accepted, and the second is a refused update of the first.

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

/// The text does not have the format of a file in `tests/bad_objects`.
#[derive(Debug)]
pub struct BadObjectError(String);

impl std::error::Error for BadObjectError {}

impl std::fmt::Display for BadObjectError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Parses the content of one file.
///
/// # Errors
/// If the first line is not `# expect: SENTENCE`, or the file does not have one or two YAML
/// documents.
pub fn parse(text: &str) -> Result<BadObject, BadObjectError> {
    let expected = text
        .lines()
        .next()
        .and_then(|line| line.strip_prefix("# expect: "))
        .ok_or_else(|| BadObjectError("line 1: expected `# expect: SENTENCE`".to_owned()))?
        .to_owned();
    let mut documents = serde_yaml::Deserializer::from_str(text)
        .map(Value::deserialize)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| BadObjectError(format!("invalid YAML: {error}")))?;
    let object = documents.pop();
    match (object, documents.pop(), documents.is_empty()) {
        (Some(object), old, true) => Ok(BadObject {
            expected,
            old,
            object,
        }),
        _ => Err(BadObjectError(
            "expected one or two YAML documents".to_owned(),
        )),
    }
}
