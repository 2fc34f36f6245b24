//! Conditions as `meta/v1` defines them. The reason is a [`Code`], the message begins with the
//! code's number, and `lastTransitionTime` changes only with the status.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use muxtunnel_codes::Code;

/// Longest message, in bytes. The API server accepts 32 KiB, but shorter messages are easier to
/// read.
const MESSAGE_LENGTH_MAX: usize = 4096;
/// The remedy text of codes that need no action.
const NO_REMEDY: &str = "No action is needed.";

/// A condition without `lastTransitionTime`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The condition's type.
    pub type_: &'static str,
    /// Whether the condition holds. `None` if the operator cannot determine it.
    pub holds: Option<bool>,
    /// The reason.
    pub code: Code,
    /// Details of this case. If empty, the message contains the cause of the code.
    pub detail: String,
}

impl Verdict {
    /// The condition holds.
    pub fn yes(type_: &'static str, code: Code) -> Self {
        Self::new(type_, Some(true), code, String::new())
    }

    /// The condition does not hold.
    pub fn no(type_: &'static str, code: Code, detail: impl Into<String>) -> Self {
        Self::new(type_, Some(false), code, detail.into())
    }

    /// The operator cannot determine whether the condition holds.
    pub fn unknown(type_: &'static str, code: Code, detail: impl Into<String>) -> Self {
        Self::new(type_, None, code, detail.into())
    }

    fn new(type_: &'static str, holds: Option<bool>, code: Code, detail: String) -> Self {
        Self {
            type_,
            holds,
            code,
            detail,
        }
    }

    /// The verdict with this detail.
    pub fn with(self, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        Self { detail, ..self }
    }

    fn status(&self) -> &'static str {
        match self.holds {
            Some(true) => "True",
            Some(false) => "False",
            None => "Unknown",
        }
    }

    /// The message: the code such as `MT0303`, the detail, and the remedy unless the condition
    /// holds. Cut to [`MESSAGE_LENGTH_MAX`].
    pub fn message(&self) -> String {
        let number = self.code.to_string();
        let advice = self.advice();
        let mut text = match &*self.detail {
            "" => format!("{number} {}", self.code.cause()),
            detail if detail.starts_with(&number) => detail.to_owned(),
            detail => format!("{number} {detail}"),
        };
        if !advice.is_empty() && text.ends_with(&advice) {
            return text;
        }
        let room = MESSAGE_LENGTH_MAX - advice.len() - 2;
        text.truncate(text.floor_char_boundary(room));
        match advice.is_empty() {
            true => text,
            false if text.ends_with(['.', '!', '?']) => format!("{text} {advice}"),
            false => format!("{text}. {advice}"),
        }
    }

    /// The remedy. Empty if the condition holds or the code needs no action.
    fn advice(&self) -> String {
        let remedy = self.code.remedy();
        if self.holds == Some(true) || remedy == NO_REMEDY {
            return String::new();
        }
        format!("What to do: {remedy}")
    }
}

/// The conditions of `verdicts`, in their order. A condition whose status is unchanged since
/// `previous` keeps its `last_transition_time`.
pub fn conditions(
    verdicts: &[Verdict],
    previous: &[Condition],
    generation: Option<i64>,
    now: &Time,
) -> Vec<Condition> {
    let condition = |verdict: &Verdict| {
        let old = find(previous, verdict.type_).filter(|old| old.status == verdict.status());
        Condition {
            type_: verdict.type_.to_owned(),
            status: verdict.status().to_owned(),
            reason: verdict.code.reason().to_owned(),
            message: verdict.message(),
            observed_generation: generation,
            last_transition_time: old.map_or(now, |old| &old.last_transition_time).clone(),
        }
    };
    verdicts.iter().map(condition).collect()
}

/// The condition `type_`.
pub fn find<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|one| one.type_ == type_)
}

/// Whether the condition `type_` is `True`.
pub fn is_true(conditions: &[Condition], type_: &str) -> bool {
    find(conditions, type_).is_some_and(|one| one.status == "True")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(text: &str) -> Time {
        serde_json::from_value(serde_json::json!(text)).unwrap()
    }

    #[test]
    fn the_time_moves_only_when_the_status_flips() {
        let (early, late) = (time("2030-01-01T00:00:00Z"), time("2030-01-01T00:01:00Z"));
        let pending = Verdict::no("Ready", Code::ConfigPending, "entry-0");
        let first = conditions(std::slice::from_ref(&pending), &[], Some(1), &early);
        let not_ready = Verdict::no("Ready", Code::GatewaysNotReady, "entry-0");
        let second = conditions(&[not_ready], &first, Some(2), &late);
        assert_eq!(second[0].last_transition_time, early);
        assert_eq!(second[0].reason, "GatewaysNotReady");
        assert_eq!(second[0].observed_generation, Some(2));
        let third = conditions(
            &[Verdict::yes("Ready", Code::Reconciled)],
            &second,
            Some(2),
            &late,
        );
        assert_eq!(third[0].last_transition_time, late);
        assert!(is_true(&third, "Ready") && !is_true(&second, "Ready"));
    }

    #[test]
    fn the_message_begins_with_the_number_and_ends_with_what_to_do_each_once() {
        let code = Code::WanUnsupported;
        let verdict = Verdict::no("WANEmulated", code, "MT0404 no sch_netem");
        let message = format!("MT0404 no sch_netem. What to do: {}", code.remedy());
        assert_eq!(verdict.message(), message);
        let again = Verdict::no("Ready", code, message.clone());
        assert_eq!(again.message(), message);
        let unknown = Verdict::unknown("Available", Code::ConfigPending, "is it there?");
        let message = unknown.message();
        let begin = "MT0303 is it there? What to do: Wait";
        assert!(message.starts_with(begin), "{message}");
    }

    #[test]
    fn nothing_is_to_be_done_where_all_is_well() {
        let verdict = Verdict::yes("Ready", Code::Reconciled);
        assert_eq!(verdict.message(), "MT0301 All objects match the spec.");
        let verdict = Verdict::yes("Failed", Code::BenchmarkRunnerLost);
        assert!(!verdict.message().contains("What to do"));
    }

    #[test]
    fn a_long_message_is_cut_between_characters_and_still_says_what_to_do() {
        let code = Code::GatewaysNotReady;
        let verdict = Verdict::no("Ready", code, "ä".repeat(5000));
        let message = verdict.message();
        assert!(message.len() <= MESSAGE_LENGTH_MAX && message.len() > MESSAGE_LENGTH_MAX - 8);
        assert!(message.ends_with(code.remedy()), "{message}");
    }
}
