//! A difference from the requested state: a code and a sentence.

use muxtunnel_codes::Code;

/// An obstacle, for example why a pod does not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The code of the obstacle.
    pub code: Code,
    /// The sentence for the condition's message.
    pub detail: String,
}
