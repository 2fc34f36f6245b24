//! Events on transitions of conditions. Equal Events form one series, as events.k8s.io defines it.
//! [`series`] decides how often a series is written.
//!
//! kube's recorder ([`kube::runtime::events`]) is not used. It forms the same series, but writes
//! each repetition, and has no limit on new series of an object or on stored series. Objects whose
//! conditions change all the time would fill the API server's storage and the memory of this
//! process.

mod series;

use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::{Event, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, MicroTime};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::ObjectMeta;
use kube::{Api, Client};
use muxtunnel_codes::{Code, Nature};
use muxtunnel_crds::condition::{RECONCILING, STALLED};
use parking_lot::Mutex;
use serde_json::json;
use tracing::{debug, warn};

use crate::clock::Clock;
use crate::conditions::find;
use crate::labels::MANAGER;
use series::{Key, Step, Table};

/// Longest note that the API server accepts, in bytes.
const NOTE_LENGTH_MAX: usize = 1000;

/// Publishes Events. Clones share the published series.
#[derive(Clone)]
pub struct Events {
    client: Client,
    clock: Clock,
    /// The name of the operator's pod.
    instance: Arc<str>,
    table: Arc<Mutex<Table>>,
}

/// The content of an Event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Happened<'a> {
    /// What the operator or the gateways did.
    pub action: String,
    /// The reason of a code.
    pub reason: &'a str,
    /// The text.
    pub note: String,
}

impl Events {
    /// Publishes Events through `client`, with the times of `clock`.
    pub fn new(client: Client, clock: Clock) -> Self {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let instance = match host.trim() {
            "" => MANAGER,
            host => host,
        };
        Self {
            client,
            clock,
            instance: instance.into(),
            table: Arc::default(),
        }
    }

    /// Publishes the differences between two states of an object's conditions. A failure to publish
    /// is logged, and never stops a reconciliation.
    pub async fn publish_transitions(
        &self,
        object: &ObjectReference,
        old: &[Condition],
        new: &[Condition],
    ) {
        for condition in transitions(old, new) {
            if let Err(error) = self.publish(condition, object).await {
                warn!(%error, reason = condition.reason, "cannot publish an Event");
            }
        }
    }

    /// Publishes an Event that is no transition of a condition, and no repetition of an earlier Event.
    /// The caller limits the number of these Events. A failure to publish is logged.
    pub async fn publish_once(&self, object: &ObjectReference, happened: &Happened<'_>) {
        let event = self.event(happened, object, self.clock.now().time);
        if let Err(error) = self
            .api(object)
            .create(&PostParams::default(), &event)
            .await
        {
            warn!(%error, reason = happened.reason, "cannot publish an Event");
        }
    }

    async fn publish(
        &self,
        condition: &Condition,
        object: &ObjectReference,
    ) -> Result<(), kube::Error> {
        let (now, api) = (self.clock.now().time, self.api(object));
        let (type_, status) = (&condition.type_, &condition.status);
        let happened = Happened {
            action: format!("Set{type_}"),
            reason: &condition.reason,
            note: format!("{type_}={status}: {}", condition.message),
        };
        let key = Key {
            object: object.uid.clone().unwrap_or_default(),
            action: happened.action.clone(),
            reason: condition.reason.clone(),
        };
        let step = self.table.lock().step(&key, now);
        match step {
            Step::Begin => {}
            Step::Count { name, count } => {
                let series = EventSeries {
                    count,
                    last_observed_time: MicroTime(now),
                };
                // Patches only the series, because the API server permits no other change of a
                // published Event.
                let patch = Patch::Merge(json!({"series": series}));
                match api.patch(&name, &PatchParams::default(), &patch).await {
                    // The API server deleted the Event, because Events expire after an hour.
                    Err(kube::Error::Api(status)) if status.code == 404 => {}
                    patched => return patched.map(drop),
                }
            }
            Step::Hold => {
                debug!(
                    reason = condition.reason,
                    "an Event is not written, because the object has had too many new Events, or the count of an equal Event was written recently"
                );
                return Ok(());
            }
        }
        let event = self.event(&happened, object, now);
        let name = event.metadata.name.clone().unwrap_or_default();
        api.create(&PostParams::default(), &event).await?;
        self.table.lock().begun(key, name, now);
        Ok(())
    }

    fn api(&self, object: &ObjectReference) -> Api<Event> {
        let namespace = object.namespace.as_deref().unwrap_or_default();
        Api::namespaced(self.client.clone(), namespace)
    }

    fn event(&self, happened: &Happened<'_>, object: &ObjectReference, now: Timestamp) -> Event {
        let type_ = match is_normal(happened.reason) {
            true => "Normal",
            false => "Warning",
        };
        let name = object.name.as_deref().unwrap_or(MANAGER);
        let note = &happened.note[..happened.note.floor_char_boundary(NOTE_LENGTH_MAX)];
        Event {
            metadata: ObjectMeta {
                name: Some(format!("{name}.{:x}", now.as_nanosecond())),
                namespace: object.namespace.clone(),
                ..ObjectMeta::default()
            },
            event_time: Some(MicroTime(now)),
            type_: Some(type_.to_owned()),
            reason: Some(happened.reason.to_owned()),
            action: Some(happened.action.clone()),
            note: Some(note.to_owned()),
            regarding: Some(object.clone()),
            reporting_controller: Some(MANAGER.to_owned()),
            reporting_instance: Some(self.instance.to_string()),
            ..Event::default()
        }
    }
}

/// The conditions of `new` whose status or reason differs from `old`. Reconciling and Stalled repeat
/// the cause in `Ready`, so they are omitted.
fn transitions<'a>(
    old: &'a [Condition],
    new: &'a [Condition],
) -> impl Iterator<Item = &'a Condition> {
    new.iter().filter(|new| {
        let is_same = |old: &Condition| old.status == new.status && old.reason == new.reason;
        ![RECONCILING, STALLED].contains(&&*new.type_)
            && !find(old, &new.type_).is_some_and(is_same)
    })
}

/// Whether `reason` can occur without a fault, so that the Event is of type Normal.
fn is_normal(reason: &str) -> bool {
    Code::from_reason(reason).is_some_and(|code| code.nature() == Nature::Normal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conditions::{Verdict, conditions};
    use crate::testing::{Failure, FakeApi};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    fn state(verdicts: &[Verdict]) -> Vec<Condition> {
        let now: Time = serde_json::from_value(serde_json::json!("2030-01-01T00:00:00Z")).unwrap();
        conditions(verdicts, &[], Some(1), &now)
    }

    #[test]
    fn only_a_change_of_status_or_reason_is_an_event() {
        let old = state(&[
            Verdict::no("Ready", Code::ConfigPending, "one"),
            Verdict::no("Available", Code::GatewaysNotReady, ""),
        ]);
        let same = state(&[
            Verdict::no("Ready", Code::ConfigPending, "two"),
            Verdict::no("Available", Code::GatewaysNotReady, ""),
        ]);
        assert_eq!(transitions(&old, &same).count(), 0);
        let new = state(&[Verdict::no("Ready", Code::SysctlForbidden, "two")]);
        let changed: Vec<_> = transitions(&old, &new).collect();
        assert_eq!(changed.len(), 1);
        assert!(!is_normal(&changed[0].reason));
    }

    #[test]
    fn what_repeats_the_cause_of_ready_is_no_event() {
        let new = state(&[Verdict::yes("Stalled", Code::InvalidSpec)]);
        assert_eq!(transitions(&[], &new).count(), 0);
    }

    #[tokio::test]
    async fn what_repeats_is_one_event_with_a_count_and_is_not_written_each_time() {
        let api = FakeApi::default();
        let events = Events::new(api.client(), Clock::system());
        let object = ObjectReference {
            name: Some("office".to_owned()),
            namespace: Some("site".to_owned()),
            uid: Some("uid-office".to_owned()),
            ..ObjectReference::default()
        };
        let lost = state(&[Verdict::no("Ready", Code::GatewaysNotReady, "one")]);
        for _ in 0..4 {
            events.publish_transitions(&object, &[], &lost).await;
        }
        let writes = api.take_requests();
        let methods: Vec<_> = writes.iter().map(|write| write.method.as_str()).collect();
        assert_eq!(
            methods,
            ["POST", "PATCH"],
            "the next write counts the other Events"
        );
        let created = &writes[0].body;
        let note = created["note"].as_str().unwrap();
        let begin = "Ready=False: MT0302 one. What to do: ";
        assert!(note.starts_with(begin), "{note}");
        for (field, value) in [
            ("reason", "GatewaysNotReady"),
            ("action", "SetReady"),
            ("type", "Normal"),
            ("reportingController", "muxtunnel-operator"),
        ] {
            assert_eq!(created[field], value);
        }
        assert_eq!(created["regarding"]["uid"], "uid-office");
        let name = created["metadata"]["name"].as_str().unwrap();
        assert_eq!(writes[1].path, format!("events/{name}"));
        assert_eq!(writes[1].body["series"]["count"], 2);
    }

    #[tokio::test]
    async fn what_happened_once_is_an_event_of_its_own_with_a_bounded_text() {
        let api = FakeApi::default();
        let events = Events::new(api.client(), Clock::system());
        let happened = Happened {
            action: "RefuseKey".to_owned(),
            reason: Code::KeyUnknown.reason(),
            note: "x".repeat(2000),
        };
        for _ in 0..2 {
            let object = ObjectReference::default();
            events.publish_once(&object, &happened).await;
        }
        let writes = api.take_requests();
        let methods: Vec<_> = writes.iter().map(|write| write.method.as_str()).collect();
        assert_eq!(methods, ["POST", "POST"]);
        let body = &writes[0].body;
        assert_eq!(
            (&body["reason"], &body["type"]),
            (&json!("KeyUnknown"), &json!("Warning"))
        );
        assert_eq!(body["note"].as_str().unwrap().len(), NOTE_LENGTH_MAX);
    }

    #[tokio::test]
    async fn an_event_that_was_removed_is_made_again() {
        let api = FakeApi::default();
        let events = Events::new(api.client(), Clock::system());
        let object = ObjectReference::default();
        let lost = state(&[Verdict::no("Ready", Code::GatewaysNotReady, "one")]);
        events.publish_transitions(&object, &[], &lost).await;
        api.fail_write(0, Failure::Before(404));
        events.publish_transitions(&object, &[], &lost).await;
        let writes = api.take_requests();
        let methods: Vec<_> = writes.iter().map(|write| write.method.as_str()).collect();
        assert_eq!(methods, ["POST", "PATCH", "POST"]);
    }
}
