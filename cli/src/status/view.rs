//! Turns objects into the documents that `status` prints. Pure.

use k8s_openapi::api::core::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use muxtunnel_crds::condition;
use serde::ser::Error as _;
use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::object::{self, Gateways, GatewaysStatus, Kind};
use crate::peer::PeerView;

/// Number of Events that are shown for an object.
const EVENTS: usize = 5;

/// The document of `status NAME`.
#[derive(Debug, Serialize)]
pub(super) struct StatusDocument {
    pub(super) object: View,
    /// The MuxExit of a MuxTunnel, if the command names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) exit: Option<View>,
    #[serde(skip)]
    pub(super) now: Timestamp,
}

/// The document of `status`.
#[derive(Debug, Serialize)]
pub(super) struct StatusList {
    pub(super) items: Vec<View>,
    #[serde(skip)]
    pub(super) with_namespaces: bool,
    #[serde(skip)]
    pub(super) now: Timestamp,
}

/// The state of one object.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct View {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) context: Option<String>,
    pub(super) kind: &'static str,
    pub(super) namespace: String,
    pub(super) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) created: Option<Timestamp>,
    /// Whether the conditions describe the current spec.
    pub(super) current: bool,
    pub(super) conditions: Vec<ConditionView>,
    /// The fields of the object's status, as the API has them, but the conditions.
    #[serde(flatten, serialize_with = "filled")]
    pub(super) status: GatewaysStatus,
    /// The peers of an exit.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) peers: Vec<PeerView>,
    /// The last Events, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) events: Vec<EventView>,
}

/// Serializes the fields with a value.
fn filled<S: Serializer>(status: &GatewaysStatus, serializer: S) -> Result<S::Ok, S::Error> {
    let mut fields = serde_json::to_value(status).map_err(S::Error::custom)?;
    if let Some(fields) = fields.as_object_mut() {
        fields.retain(|_, value| !value.is_null() && *value != Value::Array(Vec::new()));
    }
    fields.serialize(serializer)
}

/// One condition.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ConditionView {
    #[serde(rename = "type")]
    pub(super) type_: String,
    pub(super) status: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) code: Option<String>,
    pub(super) reason: String,
    pub(super) message: String,
    pub(super) last_transition_time: Timestamp,
}

/// One Event, or a series of equal Events.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct EventView {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) last_seen: Option<Timestamp>,
    #[serde(rename = "type")]
    pub(super) type_: String,
    pub(super) reason: String,
    pub(super) count: i32,
    pub(super) message: String,
}

impl View {
    /// `events`: oldest first.
    pub(super) fn new(
        kind: Kind,
        object: &Gateways,
        events: &[Event],
        context: Option<&str>,
    ) -> Self {
        let mut status = object.status.clone().unwrap_or_default().known;
        let conditions = std::mem::take(&mut status.conditions);
        let of_now = |condition| object::is_current(object, condition);
        Self {
            context: context.map(str::to_owned),
            kind: kind.name(),
            namespace: object.namespace().unwrap_or_default(),
            name: object.name_any(),
            created: object.creation_timestamp().map(|time| time.0),
            current: !conditions.is_empty() && conditions.iter().all(of_now),
            conditions: conditions.iter().map(condition).collect(),
            status,
            peers: Vec::new(),
            events: events[events.len().saturating_sub(EVENTS)..]
                .iter()
                .map(event)
                .collect(),
        }
    }

    /// The condition Ready.
    pub(super) fn ready(&self) -> Option<&ConditionView> {
        self.condition(condition::READY)
    }

    /// The condition of a type.
    pub(super) fn condition(&self, type_: &str) -> Option<&ConditionView> {
        self.conditions.iter().find(|one| one.type_ == type_)
    }
}

fn condition(condition: &Condition) -> ConditionView {
    ConditionView {
        type_: condition.type_.clone(),
        status: condition.status.clone(),
        code: object::code(condition),
        reason: condition.reason.clone(),
        message: object::message(condition).to_owned(),
        last_transition_time: condition.last_transition_time.0,
    }
}

fn event(event: &Event) -> EventView {
    let series = event.series.as_ref().and_then(|series| series.count);
    EventView {
        last_seen: object::last_seen(event),
        type_: event.type_.clone().unwrap_or_default(),
        reason: event.reason.clone().unwrap_or_default(),
        count: series.or(event.count).unwrap_or(1),
        message: event.message.clone().unwrap_or_default(),
    }
}
