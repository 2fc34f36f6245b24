//! The peers that an exit lists: the counters and the limits of their streams, which all workers
//! share.
//!
//! The table has one row for each peer in the configuration in force, so at most
//! [`muxtunnel_gateway_config::PEERS_MAX`]. Streams of a removed peer keep its row until they end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use muxtunnel_codes::Code;
use muxtunnel_gateway_config::{Config, GatewayKey, Role, status};
use parking_lot::Mutex;

use crate::base::counters::StreamCounters;
use crate::base::limiter::{Limiter, Place};

/// A listed peer.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) streams: StreamCounters,
    limiter: Arc<Limiter>,
}

/// The listed peers by their identity, and the keys that no list has.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    listed: Mutex<BTreeMap<String, Arc<Peer>>>,
    /// The number of connections with an unknown key since the start, and the last of these keys.
    unknown: Mutex<Option<(u64, GatewayKey)>>,
}

impl Peers {
    /// The peers in `config`, if its gateway is an exit.
    pub(crate) fn of(config: &Config) -> Self {
        let peers = Self::default();
        peers.set(config);
        peers
    }

    /// Sets the peers in `config` and their limits, also for open streams.
    pub(crate) fn set(&self, config: &Config) {
        let listed = match config.role {
            Role::Exit => config.security.peers(),
            Role::Entry | Role::Rendezvous => &[],
        };
        let mut peers = self.listed.lock();
        let mut known = std::mem::take(&mut *peers);
        peers.extend(listed.iter().filter_map(|listed| {
            let identity = listed.only_identity()?;
            let peer = known.remove(&identity).unwrap_or_else(|| {
                Arc::new(Peer {
                    streams: StreamCounters::default(),
                    limiter: Limiter::new(Code::PeerStreamLimit, Code::PeerOpenLimit),
                })
            });
            peer.limiter.set(listed.limits.of_streams());
            Some((identity, peer))
        }));
    }

    /// Admits a new stream of the peer that has proved `identity`. `None`: no row has the peer, so it
    /// has no limits.
    ///
    /// # Errors
    /// The code of the limit that refuses the stream.
    pub(crate) fn admit(
        &self,
        identity: Option<&str>,
        now: Instant,
    ) -> Result<Option<(Arc<Peer>, Place)>, Code> {
        let Some(peer) = self.get(identity) else {
            return Ok(None);
        };
        match peer.limiter.admit(now) {
            Ok(place) => Ok(Some((peer, place))),
            Err(code) => {
                peer.streams.refused(code);
                Err(code)
            }
        }
    }

    /// Counts a refused stream or carrier of the peer.
    pub(crate) fn refused(&self, identity: Option<&str>, code: Code) {
        if let Some(peer) = self.get(identity) {
            peer.streams.refused(code);
        }
    }

    /// The counters of each peer.
    pub(crate) fn streams(&self) -> Vec<(String, status::Streams)> {
        let peers = self.listed.lock();
        let streams = peers.iter();
        streams
            .map(|(identity, peer)| (identity.clone(), peer.streams.status()))
            .collect()
    }

    /// Counts a connection whose peer presented `key`, which no list of this gateway has.
    pub(crate) fn count_unknown_key(&self, key: GatewayKey) {
        let mut unknown = self.unknown.lock();
        let count = unknown.map_or(0, |(count, _)| count);
        *unknown = Some((count.saturating_add(1), key));
    }

    /// The unknown keys.
    pub(crate) fn unknown_keys(&self) -> Option<status::UnknownKeys> {
        self.unknown
            .lock()
            .map(|(count, last)| status::UnknownKeys {
                count,
                last: last.to_string(),
            })
    }

    fn get(&self, identity: Option<&str>) -> Option<Arc<Peer>> {
        self.listed.lock().get(identity?).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(peers: &Peers, limits: &str) {
        let file = format!(
            "role: Exit\nlisten: 0.0.0.0:64000\nsecurity: {{mode: Certificates, certificate: /c, key: /k, ca: /a, \
             peers: [{{name: near, certificateNames: [a, b], limits: {{{limits}}}}}, other]}}\n"
        );
        peers.set(&Config::from_yaml(&file).unwrap());
    }

    #[test]
    fn a_peer_beyond_its_limits_is_refused_and_the_others_are_not() {
        let peers = Peers::default();
        let now = Instant::now();
        set(&peers, "streams: 2");
        let admit = |identity: &str| peers.admit(Some(identity), now);
        let held = [admit("near").unwrap(), admit("near").unwrap()];
        assert_eq!(admit("near").unwrap_err(), Code::PeerStreamLimit);
        assert!(admit("other").unwrap().is_some());
        // The users of SSH and the peers of a file have no row.
        assert!(admit("ssh:SHA256:x").unwrap().is_none());
        assert!(peers.admit(None, now).unwrap().is_none());
        drop(held);
        assert!(admit("near").is_ok());
        let refused = peers.streams();
        let refused: Vec<_> = refused
            .iter()
            .map(|(name, streams)| (name.as_str(), streams.refused.values().sum::<u64>()))
            .collect();
        assert_eq!(refused, [("near", 1), ("other", 0)]);
    }

    #[test]
    fn changed_limits_apply_to_open_streams_and_keep_what_is_counted() {
        let peers = Peers::default();
        let now = Instant::now();
        set(&peers, "streams: 1");
        let (near, place) = peers.admit(Some("near"), now).unwrap().unwrap();
        assert!(place.limiter().up.limited().is_none());
        set(&peers, "streams: 2, bitsPerSecond: 1M, opensPerSecond: 1");
        let both = [&place.limiter().up, &place.limiter().down];
        assert!(both.iter().all(|pace| pace.limited().is_some()));
        let second = peers.admit(Some("near"), now).unwrap().unwrap();
        assert!(Arc::ptr_eq(&near, &second.0));
        drop(place);
        let code = peers.admit(Some("near"), now).unwrap_err();
        assert_eq!(code, Code::PeerOpenLimit);
        let none = "role: Exit\nlisten: 0.0.0.0:64000\nsecurity: {mode: None}\n";
        peers.set(&Config::from_yaml(none).unwrap());
        assert!(peers.admit(Some("near"), now).unwrap().is_none());
    }
}
