//! Reads MuxTunnels, their conditions and their Events.
//!
//! The program parses the spec as JSON of any form, and of the status the fields that it knows,
//! because the definitions in the cluster may be newer than this program.

use std::ops::Deref;

use k8s_openapi::api::core::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ApiResource, ListParams, Object};
use kube::{Api, Client, ResourceExt};
use muxtunnel_codes::Code;
use muxtunnel_crds::{MuxTunnel, MuxTunnelStatus, readable};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::cluster::{failed_with_hint, refusal};

/// Maximum number of objects in one answer of a list. For tunnels and nodes, further requests fetch
/// further objects.
pub(crate) const PAGE: u32 = 500;

/// A MuxTunnel.
pub(crate) type Tunnel = Object<Value, ReadableStatus>;

/// The readable part of a status. One unknown value of one tunnel hides no other value and no other
/// tunnel.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct ReadableStatus {
    #[serde(flatten)]
    pub(crate) known: MuxTunnelStatus,
    /// Why the other fields cannot be decoded.
    #[serde(skip)]
    pub(crate) unreadable: Vec<String>,
}

impl Deref for ReadableStatus {
    type Target = MuxTunnelStatus;

    fn deref(&self) -> &Self::Target {
        &self.known
    }
}

impl<'de> Deserialize<'de> for ReadableStatus {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let status = Value::deserialize(deserializer)?;
        let (known, unreadable) = readable::<MuxTunnelStatus>(&status);
        let known = serde_json::from_value(Value::Object(known)).map_err(D::Error::custom)?;
        Ok(Self { known, unreadable })
    }
}

/// A sentence about the fields of a tunnel's status that this program cannot read.
pub(crate) fn unreadable(tunnel: &Tunnel) -> Option<String> {
    let status = tunnel.status.as_ref()?;
    let reasons = status.unreadable.join("; ");
    let (namespace, name) = (tunnel.namespace().unwrap_or_default(), tunnel.name_any());
    (!reasons.is_empty()).then(|| {
        format!(
            "parts of the status of {namespace}/{name} are not shown, because this program cannot decode them: \
             {reasons}. Use the `muxtunnel` of the operator's version"
        )
    })
}

/// The API of MuxTunnels in a namespace; `None`: in all namespaces.
pub(crate) fn api(client: &Client, namespace: Option<&str>) -> Api<Tunnel> {
    let resource = ApiResource::erase::<MuxTunnel>(&());
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

/// The error for a tunnel that could not be read.
pub(crate) fn not_read(namespace: &str, name: &str, error: kube::Error) -> anyhow::Error {
    let hint = match refusal(&error) {
        Some(404) => "; `status -A` lists all tunnels",
        _ => "",
    };
    let doing = format!("cannot read the MuxTunnel {name} in namespace {namespace}");
    failed_with_hint(&doing, error, hint)
}

/// All tunnels of a namespace, or of all namespaces.
///
/// # Errors
/// An error of the API server.
pub(crate) async fn tunnels(client: &Client, namespace: Option<&str>) -> kube::Result<Vec<Tunnel>> {
    let api = api(client, namespace);
    let mut tunnels = Vec::new();
    let mut page = ListParams::default().limit(PAGE);
    loop {
        let answer = api.list(&page).await?;
        tunnels.extend(answer.items);
        match answer.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(tunnels),
        }
    }
}

/// The Events of an object, oldest first, at most [`PAGE`].
///
/// # Errors
/// An error of the API server.
pub(crate) async fn events(client: &Client, object: &impl ResourceExt) -> kube::Result<Vec<Event>> {
    let namespace = object.namespace().unwrap_or_default();
    let api: Api<Event> = Api::namespaced(client.clone(), &namespace);
    let selector = format!("involvedObject.uid={}", object.uid().unwrap_or_default());
    let selected = ListParams::default().fields(&selector).limit(PAGE);
    let mut events = api.list(&selected).await?.items;
    events.sort_by_key(last_seen);
    Ok(events)
}

/// The last time of an Event: the time of its series, otherwise the time field of the old or of the
/// new API, otherwise its creation.
pub(crate) fn last_seen(event: &Event) -> Option<Timestamp> {
    let series = event
        .series
        .as_ref()
        .and_then(|series| series.last_observed_time.as_ref());
    series
        .map(|time| time.0)
        .or(event.last_timestamp.as_ref().map(|time| time.0))
        .or(event.event_time.as_ref().map(|time| time.0))
        .or(event
            .metadata
            .creation_timestamp
            .as_ref()
            .map(|time| time.0))
}

/// Formats an Event as one line.
pub(crate) fn in_a_line(event: &Event) -> String {
    format!(
        "{} {}: {}",
        event.type_.as_deref().unwrap_or("Event"),
        event.reason.as_deref().unwrap_or_default(),
        event.message.as_deref().unwrap_or_default()
    )
}

/// The conditions of a tunnel, in the operator's order.
pub(crate) fn conditions(tunnel: &Tunnel) -> &[Condition] {
    match &tunnel.status {
        Some(status) => &status.conditions,
        None => &[],
    }
}

/// The condition of a type.
pub(crate) fn condition<'a>(tunnel: &'a Tunnel, type_: &str) -> Option<&'a Condition> {
    conditions(tunnel).iter().find(|one| one.type_ == type_)
}

/// The side of a tunnel. The definition's default is Both.
pub(crate) fn side(tunnel: &Tunnel) -> &str {
    tunnel.spec["side"].as_str().unwrap_or("Both")
}

/// Whether a condition describes the current spec.
pub(crate) fn is_current(tunnel: &Tunnel, condition: &Condition) -> bool {
    condition.observed_generation == tunnel.metadata.generation
}

/// The code of a condition. The reason of the condition is the name of the code. A newer operator
/// may report a code that this program does not know. In this case, the code is the number at the
/// start of the message.
pub(crate) fn code(condition: &Condition) -> Option<String> {
    if let Some(code) = Code::from_reason(&condition.reason) {
        return Some(code.to_string());
    }
    let first = condition.message.split_whitespace().next()?;
    let digits = first.strip_prefix("MT")?;
    let is_code = digits.len() == 4 && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_code.then(|| first.to_owned())
}

/// A condition's message without the code, which has its own column.
pub(crate) fn message(condition: &Condition) -> &str {
    let message = condition.message.as_str();
    code(condition)
        .and_then(|code| message.strip_prefix(code.as_str()))
        .map_or(message, str::trim_start)
}

#[cfg(test)]
mod tests {
    use kube::core::ObjectList;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_definitions_of_tomorrow_can_be_read() {
        let tunnel: Tunnel = serde_json::from_value(json!({
            "apiVersion": "muxtunnel.dev/v1alpha1",
            "kind": "MuxTunnel",
            "metadata": {"name": "web", "generation": 2},
            "spec": {"side": "Sideways", "carrier": {"protocol": "Morse"}},
            "status": {"news": 1, "conditions": [{
                "type": "Ready", "status": "False", "reason": "OfTomorrow", "observedGeneration": 1,
                "message": "MT0999 wait a day", "lastTransitionTime": "2030-01-01T00:00:00Z",
            }]},
        }))
        .unwrap();
        assert_eq!(side(&tunnel), "Sideways");
        let ready = condition(&tunnel, "Ready").unwrap();
        assert_eq!(code(ready).as_deref(), Some("MT0999"));
        assert_eq!(message(ready), "wait a day");
        assert!(!is_current(&tunnel, ready));
    }

    #[test]
    fn an_unknown_value_of_one_status_hides_no_tunnel() {
        let tunnel = |name: &str, direction: &str| {
            json!({
                "metadata": {"name": name, "namespace": "site"}, "spec": {},
                "status": {
                    "carriers": {"up": 2},
                    "bottleneck": {"direction": direction, "reason": "Cpu"},
                },
            })
        };
        let list: ObjectList<Tunnel> = serde_json::from_value(json!({
            "apiVersion": "muxtunnel.dev/v1alpha1", "kind": "MuxTunnelList", "metadata": {},
            "items": [tunnel("newer", "Sideways"), tunnel("web", "ClientToTarget")],
        }))
        .unwrap();
        let [newer, web] = &list.items[..] else {
            panic!("{list:?}");
        };
        for tunnel in [newer, web] {
            let carriers = tunnel.status.as_ref().unwrap().carriers.as_ref();
            assert_eq!(carriers.unwrap().up, 2);
        }
        assert_eq!(unreadable(web), None);
        let said = unreadable(newer).unwrap();
        assert!(
            said.contains("site/newer") && said.contains("status.bottleneck.direction"),
            "{said}"
        );
    }

    #[test]
    fn a_series_counts_more_than_its_first_event() {
        let event = |more: Value| -> Event {
            let mut event = json!({
                "metadata": {"creationTimestamp": "2030-01-01T00:00:00Z"}, "involvedObject": {},
            });
            event
                .as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            serde_json::from_value(event).unwrap()
        };
        for (more, wanted) in [
            (json!({}), "2030-01-01T00:00:00Z"),
            (
                json!({"eventTime": "2030-01-01T00:00:01.000000Z"}),
                "2030-01-01T00:00:01Z",
            ),
            (
                json!({"lastTimestamp": "2030-01-01T00:00:02Z"}),
                "2030-01-01T00:00:02Z",
            ),
            (
                json!({
                    "eventTime": "2030-01-01T00:00:01.000000Z",
                    "series": {"count": 2, "lastObservedTime": "2030-01-01T00:00:03.000000Z"},
                }),
                "2030-01-01T00:00:03Z",
            ),
        ] {
            assert_eq!(last_seen(&event(more)).unwrap().to_string(), wanted);
        }
    }
}
