//! A difference from the requested state: a class and a sentence.

use muxtunnel_codes::Code;

/// What is in the way, such as why a pod does not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The class.
    pub code: Code,
    /// The sentence.
    pub detail: String,
}
