//! Turns objects into the documents that `status` prints. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use muxtunnel_crds::{
    Bottleneck, CarrierStatus, GatewayStatus, KeyStatus, PacketStatus, tunnel_condition,
};
use serde::Serialize;

use crate::object::{self, Tunnel};
use crate::output::API_VERSION;
use crate::peer::PeerView;

/// Number of Events that are shown for a tunnel.
const EVENTS: usize = 5;

/// The document of `status NAME`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TunnelStatus {
    api_version: &'static str,
    kind: &'static str,
    #[serde(flatten)]
    pub(super) tunnel: TunnelView,
    /// The other side, if it is another object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) peer: Option<TunnelView>,
    #[serde(skip)]
    pub(super) now: Timestamp,
}

impl TunnelStatus {
    pub(super) fn new(tunnel: TunnelView, now: Timestamp) -> Self {
        Self {
            api_version: API_VERSION,
            kind: "TunnelStatus",
            tunnel,
            peer: None,
            now,
        }
    }
}

/// The document of `status`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TunnelList {
    api_version: &'static str,
    kind: &'static str,
    pub(super) items: Vec<TunnelView>,
    #[serde(skip)]
    pub(super) with_namespaces: bool,
    #[serde(skip)]
    pub(super) now: Timestamp,
}

impl TunnelList {
    pub(super) fn new(tunnels: &[Tunnel], with_namespaces: bool, now: Timestamp) -> Self {
        let view = |tunnel| TunnelView::new(tunnel, &[], None);
        Self {
            api_version: API_VERSION,
            kind: "TunnelStatusList",
            items: tunnels.iter().map(view).collect(),
            with_namespaces,
            now,
        }
    }
}

/// The state of one MuxTunnel.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TunnelView {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) context: Option<String>,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) side: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) created: Option<Timestamp>,
    /// Whether the conditions describe the current spec.
    pub(super) current: bool,
    pub(super) conditions: Vec<ConditionView>,
    /// The gateways by side: entry, exit, rendezvous.
    pub(super) gateways: BTreeMap<&'static str, GatewayStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) carriers: Option<CarrierStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) packets: Option<PacketStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bottleneck: Option<Bottleneck>,
    pub(super) sysctls: BTreeMap<String, String>,
    /// The public keys, which the other side enters. The newest key comes first.
    pub(super) public_keys: Vec<String>,
    /// The key pairs of `publicKeys`, with their Secrets.
    pub(super) keys: Vec<KeyStatus>,
    /// The peers of an exit.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) peers: Vec<PeerView>,
    /// The last Events, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) events: Vec<EventView>,
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

impl TunnelView {
    /// `events`: oldest first.
    pub(super) fn new(tunnel: &Tunnel, events: &[Event], context: Option<&str>) -> Self {
        let status = tunnel.status.clone().unwrap_or_default().known;
        let conditions = object::conditions(tunnel);
        let of_now = |condition| object::is_current(tunnel, condition);
        let gateways = [
            ("entry", status.entry),
            ("exit", status.exit),
            ("rendezvous", status.rendezvous),
        ];
        Self {
            context: context.map(str::to_owned),
            namespace: tunnel.namespace().unwrap_or_default(),
            name: tunnel.name_any(),
            side: object::side(tunnel).to_owned(),
            created: tunnel.creation_timestamp().map(|time| time.0),
            current: !conditions.is_empty() && conditions.iter().all(of_now),
            conditions: conditions.iter().map(condition).collect(),
            gateways: gateways
                .into_iter()
                .filter_map(|(side, status)| Some((side, status?)))
                .collect(),
            carriers: status.carriers,
            packets: status.packets,
            bottleneck: status.bottleneck,
            sysctls: status.sysctls,
            public_keys: status.public_keys,
            keys: status.keys,
            peers: Vec::new(),
            events: events[events.len().saturating_sub(EVENTS)..]
                .iter()
                .map(event)
                .collect(),
        }
    }

    /// The condition Ready.
    pub(super) fn ready(&self) -> Option<&ConditionView> {
        self.condition(tunnel_condition::READY)
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
