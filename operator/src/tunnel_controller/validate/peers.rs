//! The peers of an exit: which MuxPeers it accepts, and their rules. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::ResourceExt;
use muxtunnel_codes::Code;
use muxtunnel_crds::MuxPeer;
use muxtunnel_gateway_config::{
    ExpirationTime, GatewayKey, KEY_BYTES, KeyRole, PEERS_MAX, Peer, check_peers,
};

use super::policy::peer_rules;
use crate::tunnel_controller::dereference::Credentials;
use crate::tunnel_controller::problem::Problem;

/// Longest text of a peer in the gateways' configuration, in bytes. So all peers of an exit fit into
/// its ConfigMap.
const PEER_BYTES_MAX: usize = 3 << 10;

/// A MuxPeer of the exit.
#[derive(Debug, Clone, PartialEq)]
pub struct JudgedPeer {
    /// The object.
    pub object: Arc<MuxPeer>,
    /// The peer for the gateways' configuration, or why the exit does not accept it.
    pub verdict: Result<Peer, Problem>,
}

impl JudgedPeer {
    /// The peer, if the exit accepts it.
    #[must_use]
    pub fn accepted(&self) -> Option<&Peer> {
        self.verdict.as_ref().ok()
    }
}

/// Judges the peers of an exit, in the order of their creation. Of two peers with one key, the older
/// object is accepted, then the object with the lower name. So nobody takes over a peer by a second
/// object. The gateway refuses a whole list with one wrong peer, so each peer passes the gateway's
/// own check here.
#[must_use]
pub(super) fn judged(credentials: &Credentials, namespace: &str) -> Vec<JudgedPeer> {
    let mut peers = credentials.peers.clone();
    peers.retain(|peer| peer.metadata.deletion_timestamp.is_none());
    peers.sort_by_key(|peer| (peer.creation_timestamp(), peer.name_any()));
    let own: Vec<_> = own_keys(credentials).collect();
    let mut owners: BTreeMap<[u8; KEY_BYTES], String> = BTreeMap::new();
    let mut count = 0;
    let judge = |object: Arc<MuxPeer>| {
        let verdict = peer(&object, namespace, &own).and_then(|peer| {
            let mut taken = peer.public_keys.iter().filter_map(|key| {
                let owner = owners.get(key.bytes())?;
                Some((key, owner))
            });
            if let Some((key, owner)) = taken.next() {
                let detail = format!("MuxPeer {owner} has the key {key} as well, and is older");
                return Err(no(Code::KeyConflict, detail));
            }
            if count == PEERS_MAX {
                let detail = format!("the exit has {PEERS_MAX} peers already");
                return Err(no(Code::ExitFull, detail));
            }
            count += 1;
            let keys = peer.public_keys.iter().map(|key| *key.bytes());
            owners.extend(keys.map(|key| (key, object.name_any())));
            Ok(peer)
        });
        JudgedPeer { object, verdict }
    };
    peers.into_iter().map(judge).collect()
}

/// The known keys of the exit itself.
fn own_keys(credentials: &Credentials) -> impl Iterator<Item = [u8; KEY_BYTES]> {
    let texts = credentials.own.iter();
    let texts = texts.filter_map(|own| own.status.public_key.as_deref());
    texts.filter_map(|text| {
        let key = GatewayKey::of_role(text, KeyRole::Exit).ok()?;
        Some(*key.bytes())
    })
}

fn no(code: Code, detail: String) -> Problem {
    Problem { code, detail }
}

fn peer(object: &MuxPeer, namespace: &str, own: &[[u8; KEY_BYTES]]) -> Result<Peer, Problem> {
    let spec = &object.spec;
    let invalid =
        |field: &str, problem: String| no(Code::KeyInvalid, format!("{field}: {problem}"));
    let mut keys: Vec<GatewayKey> = Vec::new();
    for (index, text) in spec.public_keys.iter().enumerate() {
        let field = format!("publicKeys[{index}]");
        let key = GatewayKey::of_role(text, KeyRole::Entry);
        let key = key.map_err(|error| invalid(&field, error.to_string()))?;
        keys.push(key);
    }
    let expiration_time = spec.expiration_time.as_ref();
    let expiration_time = expiration_time.map(|time| ExpirationTime::parse(&time.0.to_string()));
    let wrong = |problem: String| no(Code::InvalidSpec, problem);
    let peer = Peer {
        name: Some(object.name_any()),
        public_keys: keys,
        suspend: spec.suspend,
        expiration_time: expiration_time
            .transpose()
            .map_err(|problem| wrong(format!("expirationTime: {problem}")))?,
        allow: peer_rules("allow", &spec.allow, namespace).map_err(wrong)?,
        deny: peer_rules("deny", &spec.deny, namespace).map_err(wrong)?,
    };
    check_peers(std::slice::from_ref(&peer), KeyRole::Entry, own).map_err(|found| {
        let code = match found.field.starts_with("publicKeys") {
            true => Code::KeyInvalid,
            false => Code::InvalidSpec,
        };
        no(code, format!("{} {}", found.field, found.problem))
    })?;
    let text = serde_yaml::to_string(&peer);
    if text.map_or(usize::MAX, |text| text.len()) > PEER_BYTES_MAX {
        let detail = format!(
            "allow and deny have more than {PEER_BYTES_MAX} bytes in the gateways' configuration: use fewer or wider \
             rules"
        );
        return Err(no(Code::InvalidSpec, detail));
    }
    Ok(peer)
}
