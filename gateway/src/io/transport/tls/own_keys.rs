//! This side's keys, and which of them it presents to a peer.
//!
//! A side has two keys while its peers change from the older to the newer one. The exit sees in the
//! entry's first message which keys the entry accepts. The entry learns which of its keys the exit
//! accepts only by a refusal, so it remembers refusals.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use aws_lc_rs::digest::{SHA256, digest};
use muxtunnel_gateway_config::{GatewayKey, KEY_BYTES};
use parking_lot::Mutex;
use rustls::DistinguishedName;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

/// Maximum number of hosts for which an entry remembers a refused key.
const HOSTS_MAX: usize = 64;
/// A distinguished name with the attribute x500UniqueIdentifier (RFC 4519, section 2.44), up to the
/// 32 bytes of its value.
const UNIQUE_IDENTIFIER: [u8; 12] = [0x31, 0x2a, 0x30, 0x28, 6, 3, 0x55, 4, 0x2d, 3, 0x21, 0];

/// A key pair of this side.
#[derive(Debug, Clone)]
pub(super) struct Own {
    pub(super) key: GatewayKey,
    pub(super) certified: Arc<CertifiedKey>,
}

/// The name by which an entry says that it accepts `key`: a hash, because the message is not
/// encrypted.
pub(super) fn hint(key: &[u8; KEY_BYTES]) -> DistinguishedName {
    let hash = digest(&SHA256, key);
    DistinguishedName::in_sequence(&[&UNIQUE_IDENTIFIER, hash.as_ref()].concat())
}

/// The keys of an accepting side with their hints, the newest last.
#[derive(Debug, Clone)]
pub(super) struct ByHint {
    own: Arc<[(Own, DistinguishedName)]>,
    chosen: Chosen,
}

/// The key that an accepting side presents on one connection. Empty before the peer's first message.
#[derive(Debug, Clone, Default)]
pub(crate) struct Chosen(Arc<OnceLock<GatewayKey>>);

impl Chosen {
    /// The key.
    pub(crate) fn key(&self) -> Option<GatewayKey> {
        self.0.get().copied()
    }
}

impl ByHint {
    pub(super) fn new(own: &[Own]) -> Self {
        let hinted = own.iter().map(|own| (own.clone(), hint(own.key.bytes())));
        Self {
            own: hinted.collect(),
            chosen: Chosen::default(),
        }
    }

    /// These keys for one connection, and the key that it will present.
    pub(super) fn of_connection(&self) -> (Self, Chosen) {
        let chosen = Chosen::default();
        let keys = Self {
            own: Arc::clone(&self.own),
            chosen: chosen.clone(),
        };
        (keys, chosen)
    }
}

impl ResolvesServerCert for ByHint {
    /// The newest key that the peer accepts. A peer that names none of the keys gets the oldest.
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let accepted = hello.certificate_authorities().unwrap_or_default();
        let is_accepted = |hint: &DistinguishedName| {
            let mut accepted = accepted.iter();
            accepted.any(|accepted| accepted.as_ref() == hint.as_ref())
        };
        let newest = self.own.iter().rev().find(|(_, hint)| is_accepted(hint));
        let (own, _) = newest.or_else(|| self.own.first())?;
        let _ = self.chosen.0.set(own.key);
        Some(Arc::clone(&own.certified))
    }

    fn only_raw_public_keys(&self) -> bool {
        true
    }
}

/// The own key to present to each host that has refused another one.
#[derive(Debug, Default)]
pub(super) struct Choices(Mutex<BTreeMap<String, GatewayKey>>);

impl Choices {
    /// The index of the key of `own` to present to `host`: the newest, unless the host has refused
    /// it.
    pub(super) fn choose(self: &Arc<Self>, host: &str, own: &[Own]) -> (usize, Presented) {
        let chosen = self.0.lock().get(host).copied();
        let newest = own.len().saturating_sub(1);
        let chosen = chosen.and_then(|key| own.iter().position(|own| own.key == key));
        let at = chosen.unwrap_or(newest);
        let keys = own.iter().map(|own| own.key).collect::<Vec<_>>();
        let presented = Presented {
            at,
            keys,
            host: host.to_owned(),
            choices: Arc::clone(self),
        };
        (at, presented)
    }
}

/// The key that a dialling side presents.
#[derive(Debug, Clone)]
pub(crate) struct Presented {
    at: usize,
    keys: Vec<GatewayKey>,
    host: String,
    choices: Arc<Choices>,
}

impl Presented {
    pub(crate) fn key(&self) -> Option<GatewayKey> {
        self.keys.get(self.at).copied()
    }

    /// Records that the host has refused the key: the next dial presents the other one. Dials of
    /// several workers can fail together, so a key that is not the current choice changes nothing.
    pub(crate) fn refused(&self) {
        let (Some(key), count) = (self.key(), self.keys.len()) else {
            return;
        };
        let mut choices = self.choices.0.lock();
        let newest = self.keys.last();
        let current = choices.get(&self.host).or(newest);
        if count < 2 || current != Some(&key) {
            return;
        }
        if choices.len() >= HOSTS_MAX && !choices.contains_key(&self.host) {
            choices.clear();
        }
        let next = self.keys[(self.at + count - 1) % count];
        choices.insert(self.host.clone(), next);
    }
}
