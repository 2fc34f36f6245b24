//! Reads the objects that gateways serve and MuxPeers, their conditions and their Events.
//!
//! The program parses the spec as JSON of any form, and of the status the fields that it knows,
//! because the definitions in the cluster may be newer than this program.

mod kind;

use std::fmt::Debug;
use std::ops::Deref;

use k8s_openapi::api::core::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ApiResource, ListParams, Object, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use muxtunnel_codes::Code;
use muxtunnel_crds::{
    Bottleneck, CarrierStatus, ConnectStatus, Endpoint, GatewayStatus, HostPort, KeyStatus,
    MuxPeer, MuxPeerStatus, NetworkStatus, ServiceStatus, SysctlStatus, readable,
};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::cluster::{Cluster, failed_with_hint, refusal};
pub use kind::Kind;

/// Maximum number of objects in one answer of a list. For our kinds and for nodes, further requests
/// fetch further objects.
pub(crate) const PAGE: u32 = 500;
/// Field manager. The program applies without force, so it never overwrites fields of other
/// managers.
pub(crate) const MANAGER: &str = "muxtunnel-cli";

/// A MuxTunnel, MuxExit or MuxRendezvous.
pub(crate) type Gateways = Known<GatewaysStatus>;
/// A MuxPeer.
pub(crate) type Peer = Known<MuxPeerStatus>;
/// An object with a status of type `S`.
pub(crate) type Known<S> = Object<Value, Readable<S>>;

/// The fields that this program shows, of the status of a MuxTunnel, a MuxExit or a MuxRendezvous.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct GatewaysStatus {
    pub(crate) class_name: Option<String>,
    pub(crate) conditions: Vec<Condition>,
    pub(crate) public_keys: Vec<String>,
    pub(crate) keys: Vec<KeyStatus>,
    pub(crate) carriers: Option<CarrierStatus>,
    pub(crate) bottleneck: Option<Bottleneck>,
    pub(crate) network: Option<NetworkStatus>,
    pub(crate) sysctls: Vec<SysctlStatus>,
    /// The gateways of a MuxTunnel.
    pub(crate) entry: Option<GatewayStatus>,
    pub(crate) exit: Option<GatewayStatus>,
    /// The Services of a MuxTunnel.
    pub(crate) services: Vec<ServiceStatus>,
    /// The exits elsewhere that a MuxTunnel uses.
    pub(crate) connect: Option<ConnectStatus>,
    /// The gateways of a MuxExit.
    pub(crate) replicas: Option<i32>,
    pub(crate) ready_replicas: Option<i32>,
    pub(crate) ssh_endpoint: Option<HostPort>,
    /// The addresses of a MuxExit or MuxRendezvous for carriers.
    pub(crate) endpoints: Vec<Endpoint>,
}

/// The readable part of a status. One unknown value of one object hides no other value and no other
/// object.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Readable<S> {
    #[serde(flatten)]
    pub(crate) known: S,
    /// Why the other fields cannot be decoded.
    #[serde(skip)]
    pub(crate) unreadable: Vec<String>,
}

impl<S> Deref for Readable<S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.known
    }
}

impl<'de, S: DeserializeOwned> Deserialize<'de> for Readable<S> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let status = Value::deserialize(deserializer)?;
        let (known, unreadable) = readable::<S>(&status);
        let known = serde_json::from_value(Value::Object(known)).map_err(D::Error::custom)?;
        Ok(Self { known, unreadable })
    }
}

/// A status with conditions.
pub(crate) trait Status: Debug + Clone + Default + Serialize {
    /// The conditions, in the operator's order.
    fn conditions(&self) -> &[Condition];
}

impl Status for GatewaysStatus {
    fn conditions(&self) -> &[Condition] {
        &self.conditions
    }
}

impl Status for MuxPeerStatus {
    fn conditions(&self) -> &[Condition] {
        &self.conditions
    }
}

/// A sentence about the fields of an object's status that this program cannot read.
pub(crate) fn unreadable<S: Status>(object: &Known<S>) -> Option<String> {
    let status = object.status.as_ref()?;
    let reasons = status.unreadable.join("; ");
    let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
    (!reasons.is_empty()).then(|| {
        format!(
            "parts of the status of {namespace}/{name} are not shown, because this program cannot decode them: \
             {reasons}. Use the `muxtunnel` of the operator's version"
        )
    })
}

/// The API of a kind in a namespace; `None`: in all namespaces.
pub(crate) fn api(client: &Client, kind: Kind, namespace: Option<&str>) -> Api<Gateways> {
    api_of(client, &kind.resource(), namespace)
}

/// The API of MuxPeers in a namespace; `None`: in all namespaces.
pub(crate) fn peers_api(client: &Client, namespace: Option<&str>) -> Api<Peer> {
    api_of(client, &ApiResource::erase::<MuxPeer>(&()), namespace)
}

fn api_of<S: Status>(
    client: &Client,
    resource: &ApiResource,
    namespace: Option<&str>,
) -> Api<Known<S>> {
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, resource),
        None => Api::all_with(client.clone(), resource),
    }
}

/// Applies a manifest as the field manager of this program.
///
/// # Errors
/// An error of the API server, such as a conflict with another field manager.
pub(crate) async fn apply<S: Status + DeserializeOwned>(
    api: &Api<Known<S>>,
    manifest: &Value,
) -> kube::Result<Known<S>> {
    let name = manifest["metadata"]["name"].as_str().unwrap_or_default();
    let how = PatchParams::apply(MANAGER);
    api.patch(name, &how, &Patch::Apply(manifest)).await
}

/// What a command did to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) enum Change {
    Created,
    Changed,
    Unchanged,
}

impl Change {
    /// The change from `before` to `after`, by the resource version.
    pub(crate) fn between(before: Option<&impl ResourceExt>, after: &impl ResourceExt) -> Self {
        match before {
            None => Self::Created,
            Some(before) if before.resource_version() == after.resource_version() => {
                Self::Unchanged
            }
            Some(_) => Self::Changed,
        }
    }

    /// The change in a word.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Changed => "changed",
            Self::Unchanged => "unchanged",
        }
    }
}

/// Reads an object.
///
/// # Errors
/// A sentence about the failed request.
pub(crate) async fn get(cluster: &Cluster, kind: Kind, name: &str) -> anyhow::Result<Gateways> {
    let api = api(&cluster.client, kind, Some(&cluster.namespace));
    let object = api.get(name).await;
    object.map_err(|error| not_read(kind, &cluster.namespace, name, error))
}

/// The error for an object that could not be read.
pub(crate) fn not_read(
    kind: Kind,
    namespace: &str,
    name: &str,
    error: kube::Error,
) -> anyhow::Error {
    let hint = match refusal(&error) {
        Some(404) => "; `status -A` lists all objects with gateways",
        _ => "",
    };
    let kind = kind.name();
    let doing = format!("cannot read the {kind} {name} in namespace {namespace}");
    failed_with_hint(&doing, error, hint)
}

/// All objects of an API.
///
/// # Errors
/// An error of the API server.
pub(crate) async fn all<K>(api: &Api<K>) -> kube::Result<Vec<K>>
where
    K: Clone + DeserializeOwned + Debug,
{
    let mut objects = Vec::new();
    let mut page = ListParams::default().limit(PAGE);
    loop {
        let answer = api.list(&page).await?;
        objects.extend(answer.items);
        match answer.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(objects),
        }
    }
}

/// All peers of a namespace, or of all namespaces.
///
/// # Errors
/// An error of the API server.
pub(crate) async fn peers(client: &Client, namespace: Option<&str>) -> kube::Result<Vec<Peer>> {
    all(&peers_api(client, namespace)).await
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

/// The conditions of an object, in the operator's order.
pub(crate) fn conditions<S: Status>(object: &Known<S>) -> &[Condition] {
    match &object.status {
        Some(status) => status.known.conditions(),
        None => &[],
    }
}

/// The condition of a type.
pub(crate) fn condition<'a, S: Status>(object: &'a Known<S>, type_: &str) -> Option<&'a Condition> {
    conditions(object).iter().find(|one| one.type_ == type_)
}

/// The security mode of carriers. The definition's default is PublicKeys.
pub(crate) fn security_mode(object: &Gateways) -> &str {
    let mode = object.spec["security"]["mode"].as_str();
    mode.unwrap_or("PublicKeys")
}

/// The public keys in the status, newest first.
pub(crate) fn public_keys(object: &Gateways) -> &[String] {
    let status = object.status.as_ref();
    status.map_or(&[], |status| &status.public_keys)
}

/// Where carriers arrive.
pub(crate) fn endpoints(object: &Gateways) -> &[Endpoint] {
    let status = object.status.as_ref();
    status.map_or(&[], |status| &status.endpoints)
}

/// The host and the port at which clients reach a forward or a proxy of a MuxTunnel.
pub(crate) fn listener(tunnel: &Gateways, forward: &Value) -> Option<(String, u16)> {
    let default = format!("{}-entry", tunnel.name_any());
    let name = forward["serviceName"].as_str().unwrap_or(&default);
    let mut services = tunnel.status.as_ref()?.services.iter();
    let service = services.find(|service| service.name == name)?;
    let mut ports = service.ports.iter();
    let port = ports.find(|port| forward["name"] == *port.name)?.port;
    Some((service.host.clone()?, port))
}

/// Whether a condition describes the current spec.
pub(crate) fn is_current<S: Status>(object: &Known<S>, condition: &Condition) -> bool {
    condition.observed_generation == object.metadata.generation
}

/// Whether a condition is true for the current spec.
pub(crate) fn holds<S: Status>(object: &Known<S>, type_: &str) -> bool {
    condition(object, type_).is_some_and(|one| one.status == "True" && is_current(object, one))
}

/// Why a condition is not true, in one line.
pub(crate) fn state<S: Status>(object: &Known<S>, type_: &str) -> String {
    match condition(object, type_) {
        Some(one) if is_current(object, one) => {
            let code = code(one).map_or(String::new(), |code| format!("{code} "));
            let (status, reason, message) = (&one.status, &one.reason, message(one));
            format!("{type_}={status}: {code}{reason}: {message}")
        }
        Some(_) => format!(
            "the operator has not processed the current spec; its last condition {type_} describes an older spec"
        ),
        None => "the operator has not reported a status".to_owned(),
    }
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
        let tunnel: Gateways = serde_json::from_value(json!({
            "apiVersion": "muxtunnel.dev/v1alpha1",
            "kind": "MuxTunnel",
            "metadata": {"name": "web", "generation": 2},
            "spec": {"security": {"mode": "Trust"}, "carrier": {"protocol": "Morse"}},
            "status": {"news": 1, "conditions": [{
                "type": "Ready", "status": "False", "reason": "OfTomorrow", "observedGeneration": 1,
                "message": "MT0999 wait a day", "lastTransitionTime": "2030-01-01T00:00:00Z",
            }]},
        }))
        .unwrap();
        assert_eq!(security_mode(&tunnel), "Trust");
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
                    "carriers": {"connected": 2},
                    "bottleneck": {"direction": direction, "reason": "CPU"},
                },
            })
        };
        let list: ObjectList<Gateways> = serde_json::from_value(json!({
            "apiVersion": "muxtunnel.dev/v1alpha1", "kind": "MuxTunnelList", "metadata": {},
            "items": [tunnel("newer", "Sideways"), tunnel("web", "EntryToExit")],
        }))
        .unwrap();
        let [newer, web] = &list.items[..] else {
            panic!("{list:?}");
        };
        for tunnel in [newer, web] {
            let carriers = tunnel.status.as_ref().unwrap().carriers.as_ref();
            assert_eq!(carriers.unwrap().connected, 2);
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
