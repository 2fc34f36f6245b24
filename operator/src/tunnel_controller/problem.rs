//! A difference from the requested state: a code and a sentence.

use muxtunnel_codes::Code;

use crate::conditions::Verdict;

/// An obstacle, for example why a pod does not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The code of the obstacle.
    pub code: Code,
    /// The sentence for the condition's message.
    pub detail: String,
}

impl Problem {
    /// The problem with this code and this sentence.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        Self { code, detail }
    }

    /// The verdict that the condition `type_` does not hold, because of this problem.
    pub fn no(self, type_: &'static str) -> Verdict {
        Verdict::no(type_, self.code, self.detail)
    }
}
