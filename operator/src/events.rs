//! Events, on transitions of conditions alone. Equal ones become one Event with a count.

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use muxtunnel_codes::Code;
use tracing::warn;

use crate::labels::MANAGER;

/// Longest note that the API server takes, in bytes.
const NOTE_LENGTH_MAX: usize = 1000;

/// Publishes Events. The kube recorder behind it forgets an Event after six minutes.
#[derive(Clone)]
pub struct Events(Recorder);

impl Events {
    /// Events published through `client` in the name of the operator.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self(Recorder::new(client, Reporter::from(MANAGER)))
    }

    /// Publishes what differs between two states of an object's conditions. An Event that cannot be
    /// published is logged: it is never a reason to stop reconciling.
    pub async fn publish_transitions(
        &self,
        object: &ObjectReference,
        old: &[Condition],
        new: &[Condition],
    ) {
        for condition in transitions(old, new) {
            if let Err(error) = self.0.publish(&event(condition), object).await {
                warn!(%error, reason = condition.reason, "cannot publish an event");
            }
        }
    }
}

/// The conditions of `new` whose status or reason is not as in `old`, less those that were not asked
/// for.
fn transitions<'a>(
    old: &'a [Condition],
    new: &'a [Condition],
) -> impl Iterator<Item = &'a Condition> {
    new.iter().filter(|condition| {
        condition.reason != Code::NotRequested.reason()
            && !old.iter().any(|old| {
                old.type_ == condition.type_
                    && old.status == condition.status
                    && old.reason == condition.reason
            })
    })
}

fn event(condition: &Condition) -> Event {
    let mut note = format!(
        "{}={}: {}",
        condition.type_, condition.status, condition.message
    );
    note.truncate(note.floor_char_boundary(NOTE_LENGTH_MAX));
    Event {
        type_: if is_normal(&condition.reason) {
            EventType::Normal
        } else {
            EventType::Warning
        },
        reason: condition.reason.clone(),
        note: Some(note),
        action: format!("Set{}", condition.type_),
        secondary: None,
    }
}

/// What happens on the way of every healthy object.
fn is_normal(reason: &str) -> bool {
    [
        Code::Reconciled,
        Code::GatewaysNotReady,
        Code::ConfigPending,
        Code::CarrierUp,
        Code::CarrierConnecting,
        Code::SysctlsApplied,
        Code::CertificatesIssued,
        Code::CertificatesProvided,
        Code::CertificatePending,
        Code::WanEmulated,
        Code::WanPending,
        Code::BenchmarkRunning,
        Code::BenchmarkComplete,
    ]
    .iter()
    .any(|code| code.reason() == reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conditions::{Verdict, conditions};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    fn state(verdicts: &[Verdict]) -> Vec<Condition> {
        let now: Time = serde_json::from_value(serde_json::json!("2030-01-01T00:00:00Z")).unwrap();
        conditions(verdicts, &[], Some(1), &now)
    }

    #[test]
    fn only_a_change_of_status_or_reason_is_an_event() {
        let old = state(&[
            Verdict::no("Ready", Code::ConfigPending, "one"),
            Verdict::no("WanEmulated", Code::NotRequested, ""),
        ]);
        let same = state(&[
            Verdict::no("Ready", Code::ConfigPending, "two"),
            Verdict::no("WanEmulated", Code::NotRequested, ""),
        ]);
        assert_eq!(transitions(&old, &same).count(), 0);
        let new = state(&[Verdict::no("Ready", Code::SysctlForbidden, "two")]);
        let changed: Vec<_> = transitions(&old, &new).collect();
        assert_eq!(changed.len(), 1);
        let event = event(changed[0]);
        assert_eq!(event.reason, "SysctlForbidden");
        assert_eq!(event.type_, EventType::Warning);
        assert_eq!(event.note.as_deref(), Some("Ready=False: MT0308 two"));
    }

    #[test]
    fn what_was_not_asked_for_is_no_event() {
        let new = state(&[Verdict::no("WanEmulated", Code::NotRequested, "")]);
        assert_eq!(transitions(&[], &new).count(), 0);
    }
}
