//! The room of a MuxPeer in the gateways' configuration. Pure.

use std::collections::BTreeMap;

use muxtunnel_gateway_config::{Cidr, ListenRule, Peer};
use serde::Serialize;
use serde_yaml::Value;

use crate::tunnel_controller::document::{LISTENS, NETWORK_PEERS, PEERS, cidrs_of, items};

/// Bytes of a rule of `allowListen` without the name of the peer.
const LISTEN_BYTES: usize = "- '[::]:65535,peer='\n".len();
/// Bytes of a network of a peer, without its text.
const NETWORK_BYTES: usize = "    - ''\n".len();
/// Bytes of the owner of networks, without the name of the peer.
const OWNER_BYTES: usize = "  - identity: ''\n    CIDRs:\n".len();

/// What one configuration has of a MuxPeer.
#[derive(Default)]
struct Had {
    /// Bytes of the item of [`PEERS`].
    text: usize,
    networks: Vec<Cidr>,
    /// Number of its reverse ports.
    ports: usize,
}

impl Had {
    fn size(&self, name: &str) -> usize {
        let networks = self.networks.iter();
        let networks = networks.map(|network| NETWORK_BYTES + format!("{network:#}").len());
        let networks: usize = networks.sum();
        let listens = (LISTEN_BYTES + name.len()) * self.ports;
        let owner = OWNER_BYTES + name.len();
        [listens, owner, networks]
            .into_iter()
            .fold(self.text, usize::saturating_add)
    }
}

/// The greatest length of the texts of the peer in the gateways' configuration, in bytes.
pub(in crate::tunnel_controller) fn size(
    peer: &Peer,
    networks: &[Cidr],
    ports: &[String],
) -> usize {
    let had = Had {
        text: text_bytes(peer),
        networks: networks.to_vec(),
        ports: ports.len(),
    };
    had.size(peer.name.as_deref().unwrap_or_default())
}

/// The size of each MuxPeer in the configurations that gateways have. If two configurations have a peer,
/// the greater size counts.
pub(super) fn sizes<'a>(documents: &[&'a Value]) -> BTreeMap<&'a str, usize> {
    let mut sizes = BTreeMap::new();
    for document in documents {
        let mut all: BTreeMap<&str, Had> = BTreeMap::new();
        for peer in items(document, &PEERS) {
            if let Some(name) = peer.get("name").and_then(Value::as_str) {
                all.entry(name).or_default().text = text_bytes(peer);
            }
        }
        for owner in items(document, &NETWORK_PEERS) {
            let name = owner.get("identity").and_then(Value::as_str);
            if let Some(had) = name.and_then(|name| all.get_mut(name)) {
                had.networks = cidrs_of(owner);
            }
        }
        for (peer, _) in listens(document) {
            if let Some(had) = all.get_mut(&*peer) {
                had.ports += 1;
            }
        }
        for (name, had) in all {
            let size = sizes.entry(name).or_default();
            *size = had.size(name).max(*size);
        }
    }
    sizes
}

/// The peers of the listeners of a configuration, and their ports.
pub(super) fn listens(document: &Value) -> impl Iterator<Item = (String, u16)> {
    let texts = items(document, &LISTENS).iter().filter_map(Value::as_str);
    let rules = texts.filter_map(|text| text.parse::<ListenRule>().ok());
    rules.filter_map(|rule| Some((rule.peer?, rule.ports.first)))
}

/// Lines have the indentation that they have in the configuration.
fn text_bytes(peer: &impl Serialize) -> usize {
    let [list, field] = PEERS;
    let peers = BTreeMap::from([(list, BTreeMap::from([(field, [peer])]))]);
    serde_yaml::to_string(&peers).map_or(usize::MAX, |text| text.len())
}
