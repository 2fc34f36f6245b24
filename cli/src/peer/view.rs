//! Turns MuxPeers into rows and documents. Pure.

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use muxtunnel_crds::condition;
use serde::Serialize;

use crate::object::{self, Peer};
use crate::time::distance;

/// Placeholder for values that are unknown or do not apply.
const NONE: &str = "-";
/// Characters of a key in a narrow table.
const KEY_SHORT: usize = 12;

/// The columns of a list of peers.
pub(crate) const HEAD: [&str; 8] = [
    "NAME",
    "EXIT",
    "READY",
    "REASON",
    "CONNECTED",
    "EXPIRES",
    "KEY",
    "EXIT-KEY",
];

/// The state of a MuxPeer.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PeerView {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) exit: String,
    /// Whether the condition Ready describes the current spec.
    pub(crate) current: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ready: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) connected: Option<String>,
    pub(crate) suspend: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) expiration_time: Option<String>,
    pub(crate) public_keys: Vec<String>,
    /// The generation of the exit's key on the last carrier of the peer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) exit_key_generation: Option<i32>,
}

impl PeerView {
    pub(crate) fn new(peer: &Peer) -> Self {
        let ready = object::condition(peer, condition::READY);
        let connected = object::condition(peer, condition::CONNECTED);
        let text = |field: &str| peer.spec[field].as_str().map(str::to_owned);
        let keys = peer.spec["publicKeys"].as_array().into_iter().flatten();
        Self {
            namespace: peer.namespace().unwrap_or_default(),
            name: peer.name_any(),
            exit: exit_of(peer).to_owned(),
            current: ready.is_some_and(|ready| object::is_current(peer, ready)),
            ready: ready.map(|one| one.status.clone()),
            reason: ready.map(|one| one.reason.clone()),
            message: ready.map(|one| object::message(one).to_owned()),
            connected: connected.map(|one| one.status.clone()),
            suspend: peer.spec["suspend"].as_bool().unwrap_or_default(),
            expiration_time: text("expirationTime"),
            public_keys: keys
                .filter_map(|key| key.as_str().map(str::to_owned))
                .collect(),
            exit_key_generation: peer
                .status
                .as_ref()
                .and_then(|status| status.exit_key_generation),
        }
    }

    /// The cells of [`HEAD`].
    pub(crate) fn row(&self, now: Timestamp, wide: bool) -> Vec<String> {
        let or_none = |text: &Option<String>| text.clone().unwrap_or(NONE.into());
        let ready = match (&self.ready, self.current) {
            (Some(ready), true) => ready.clone(),
            (Some(ready), false) => format!("{ready}?"),
            (None, _) => NONE.into(),
        };
        let expires = self.expiration_time.as_ref().map(|text| {
            let time = text.parse::<Timestamp>();
            time.map_or_else(|_| text.clone(), |time| distance(time, now))
        });
        let key = |key: &String| match key.get(..KEY_SHORT) {
            Some(start) if !wide => format!("{start}..."),
            _ => key.clone(),
        };
        let keys: Vec<_> = self.public_keys.iter().map(key).collect();
        vec![
            self.name.clone(),
            self.exit.clone(),
            ready,
            or_none(&self.reason),
            or_none(&self.connected),
            or_none(&expires),
            keys.join(", "),
            self.exit_key_generation
                .map_or(NONE.into(), |generation| generation.to_string()),
        ]
    }
}

/// The exit of a peer.
pub(crate) fn exit_of(peer: &Peer) -> &str {
    peer.spec["exitRef"]["name"].as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn peer(generation: i64) -> Peer {
        let condition = |type_: &str, status: &str, reason: &str| {
            json!({
                "type": type_, "status": status, "reason": reason, "message": "m",
                "observedGeneration": 1, "lastTransitionTime": "2030-01-01T00:00:00Z",
            })
        };
        serde_json::from_value(json!({
            "apiVersion": "muxtunnel.dev/v1alpha1", "kind": "MuxPeer",
            "metadata": {"name": "laptop", "namespace": "backend", "generation": generation},
            "spec": {
                "exitRef": {"name": "web"}, "publicKeys": ["mte1abcdefghijkl", "mte1ponmlkjihgfe"],
                "expirationTime": "2030-01-01T08:00:00Z",
            },
            "status": {"conditions": [
                condition("Ready", "True", "Idle"), condition("Connected", "False", "Idle"),
            ]},
        }))
        .unwrap()
    }

    #[test]
    fn a_row_has_the_state_and_the_expiry() {
        let now = "2030-01-01T00:00:00Z".parse().unwrap();
        let row = PeerView::new(&peer(1)).row(now, false);
        let keys = "mte1abcdefgh..., mte1ponmlkji...";
        assert_eq!(
            row,
            ["laptop", "web", "True", "Idle", "False", "in 8h", keys, "-"]
        );
        let wide = PeerView::new(&peer(1)).row(now, true);
        assert_eq!(wide[6], "mte1abcdefghijkl, mte1ponmlkjihgfe");
        // The condition describes an older spec.
        assert_eq!(PeerView::new(&peer(2)).row(now, false)[2], "True?");
    }

    #[test]
    fn a_peer_without_a_status_has_a_row() {
        let mut fresh = peer(1);
        fresh.status = None;
        let row = PeerView::new(&fresh).row(Timestamp::UNIX_EPOCH, false);
        assert_eq!(row[2..5], ["-", "-", "-"]);
    }
}
