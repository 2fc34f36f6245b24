//! The problems of targets. Pure.

use muxtunnel_codes::Code;
use muxtunnel_gateway_config as config;

/// The problems of targets, which do not prevent the build.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Findings {
    /// The problems, those of forwards first.
    pub all: Vec<Finding>,
    /// The targets of other namespaces that are not permitted. Open streams to these targets are
    /// closed, because the permission may have been revoked.
    pub denied: Vec<DeniedTarget>,
}

impl Findings {
    /// The problems with the code `code`.
    pub fn of(&self, code: Code) -> impl Iterator<Item = &Finding> {
        self.all.iter().filter(move |finding| finding.code == code)
    }
}

/// A problem of a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// `TargetNotPermitted`, `TargetServiceNotFound` or `TargetNotReady`.
    pub code: Code,
    /// The item of the spec, such as `forward web`.
    pub place: String,
    /// The sentence.
    pub detail: String,
    /// Whether the item loses all its connections. At most one finding of an item has this value.
    pub is_lost: bool,
}

impl Finding {
    /// The item and the sentence.
    #[must_use]
    pub fn text(&self) -> String {
        format!("{}: {}", self.place, self.detail)
    }
}

/// A target that another namespace does not permit.
#[derive(Debug, Clone, PartialEq)]
pub struct DeniedTarget {
    /// The rule that denies the target.
    pub rule: config::Rule,
    /// Whether the entry, not the exit, would dial the target.
    pub reverse: bool,
}
