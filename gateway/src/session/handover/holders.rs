//! Counts the carriers that each peer holds at an exit, and chooses the carrier to evict at the
//! limit.
//!
//! A single peer may hold all places. Two kinds of carriers can be *silent*: a JMUX carrier, and a
//! QUIC connection whose peer has proved no identity. Such a carrier is silent until the peer opens
//! a stream or a listener on it. The peer of a silent carrier may be idle or dead. A silent carrier
//! keeps its place while places are free. When the exit evicts a carrier of a peer, silent carriers
//! go first. The number of places bounds this table.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use tokio::sync::Notify;

use crate::base::handshake_limiter::network;

/// The carriers of each peer by its proven identity, oldest first; `None`: peers without a proven
/// identity.
#[derive(Debug, Default)]
pub(super) struct Holders(BTreeMap<Option<Arc<str>>, Vec<Held>>);

type SessionId = [u8; 16];

/// The role of a carrier in its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// The first carrier of a session. The peer has already sent a hello or proved its identity.
    First,
    /// An additional carrier of the session with this id.
    Further(SessionId),
    /// The first carrier of a session, from this address. The peer need not have sent anything, so
    /// the carrier is silent until the peer opens a stream or a listener.
    Silent(Option<IpAddr>),
}

#[derive(Debug, Clone)]
pub(super) struct Held {
    state: Arc<State>,
    of: Use,
}

#[derive(Debug)]
struct State {
    /// The session of the carrier, once it is known.
    session: OnceLock<SessionId>,
    evicted: Notify,
    is_silent: AtomicBool,
}

impl Held {
    /// Records that the carrier began the session `id`.
    pub(super) fn begins(&self, id: SessionId) {
        let _ = self.state.session.set(id);
    }

    fn session(&self) -> Option<SessionId> {
        self.state.session.get().copied()
    }

    /// Records that the peer has opened a stream or a listener on the carrier.
    pub(super) fn heard(&self) {
        self.state.is_silent.store(false, Relaxed);
    }

    /// Waits until another carrier has taken the place.
    pub(super) async fn evicted(&self) {
        self.state.evicted.notified().await;
    }

    /// The address of the peer, if the carrier is silent.
    fn silent_from(&self) -> Option<Option<IpAddr>> {
        match self.of {
            Use::Silent(source) if self.state.is_silent.load(Relaxed) => Some(source),
            Use::First | Use::Further(_) | Use::Silent(_) => None,
        }
    }
}

impl Holders {
    /// Adds a carrier of `peer`.
    pub(super) fn add(&mut self, peer: Option<Arc<str>>, of: Use) -> Held {
        let of = match of {
            Use::Silent(source) => Use::Silent(network(source)),
            Use::First | Use::Further(_) => of,
        };
        let session = match of {
            Use::Further(id) => OnceLock::from(id),
            Use::First | Use::Silent(_) => OnceLock::new(),
        };
        let state = State {
            session,
            evicted: Notify::new(),
            is_silent: AtomicBool::new(matches!(of, Use::Silent(_))),
        };
        let held = Held {
            state: Arc::new(state),
            of,
        };
        self.0.entry(peer).or_default().push(held.clone());
        held
    }

    /// Number of carriers of `peer`.
    pub(super) fn held(&self, peer: Option<&str>) -> usize {
        let mut all = self.0.iter();
        let own = all.find(|(other, _)| other.as_deref() == peer);
        own.map_or(0, |(_, held)| held.len())
    }

    /// Evicts a carrier of `peer` in favour of its new carrier, of which the use is `of`: a silent
    /// carrier, otherwise the newest carrier whose session has other carriers. Returns whether it
    /// evicted a carrier. A carrier whose session has other carriers evicts none.
    pub(super) fn evict_own(&mut self, peer: Option<&str>, of: Use) -> bool {
        let own = peer.map(Arc::from);
        self.is_needed(&own, of) && self.evict(&own, silent_or_spare)
    }

    /// Evicts a carrier in favour of a new carrier of `peer`, of which the use is `of`. Returns
    /// whether it evicted a carrier.
    ///
    /// If another peer holds the most carriers, and at least two more than `peer`, evicts one of
    /// that peer's carriers: a silent carrier, otherwise the newest carrier whose session has other
    /// carriers. If the session of the new carrier has no other, evicts the newest carrier of `peer`
    /// whose session has others, otherwise the newest carrier of the peer with the most. In all
    /// other cases evicts a silent carrier of `peer` itself, if there is one.
    pub(super) fn evict_for(&mut self, peer: Option<&str>, of: Use) -> bool {
        let (own, held) = (peer.map(Arc::from), self.held(peer));
        let needed = self.is_needed(&own, of);
        let most = self.0.iter().max_by_key(|(_, held)| held.len());
        let most = most.filter(|(_, most)| most.len() >= held + 2);
        let most = most.map(|(most, _)| most.clone());
        let of_most = |all: &mut Self, which: fn(&[Held]) -> Option<usize>| {
            most.as_ref().is_some_and(|most| all.evict(most, which))
        };
        of_most(self, silent_or_spare)
            || (needed && (self.evict(&own, spare) || of_most(self, newest)))
            || self.evict(&own, silent)
    }

    /// Whether the session of a new carrier of `peer` has no other carrier.
    fn is_needed(&self, peer: &Option<Arc<str>>, of: Use) -> bool {
        match of {
            Use::Further(id) => self
                .0
                .get(peer)
                .into_iter()
                .flatten()
                .all(|held| held.session() != Some(id)),
            Use::First | Use::Silent(_) => true,
        }
    }

    /// Evicts the carrier of `peer` that `which` chooses. Returns whether it chose one.
    fn evict(&mut self, peer: &Option<Arc<str>>, which: fn(&[Held]) -> Option<usize>) -> bool {
        let Some(held) = self.0.get_mut(peer) else {
            return false;
        };
        let goes = which(held);
        goes.map(|goes| held.remove(goes).state.evicted.notify_one())
            .is_some()
    }

    /// Removes a carrier. Returns whether this frees its place; the place of an evicted carrier has
    /// already passed to another carrier.
    pub(super) fn remove(&mut self, peer: &Option<Arc<str>>, held: &Held) -> bool {
        let Some(all) = self.0.get_mut(peer) else {
            return false;
        };
        let before = all.len();
        all.retain(|other| !Arc::ptr_eq(&other.state, &held.state));
        let was_there = all.len() < before;
        if all.is_empty() {
            self.0.remove(peer);
        }
        was_there
    }
}

fn newest(held: &[Held]) -> Option<usize> {
    held.len().checked_sub(1)
}

/// The newest carrier of `held` whose session has other carriers there.
fn spare(held: &[Held]) -> Option<usize> {
    let mut counts = BTreeMap::<_, usize>::new();
    for id in held.iter().filter_map(Held::session) {
        *counts.entry(id).or_default() += 1;
    }
    let count = |held: &Held| held.session().and_then(|id| counts.get(&id));
    held.iter().rposition(|held| count(held) > Some(&1))
}

fn silent_or_spare(held: &[Held]) -> Option<usize> {
    silent(held).or_else(|| spare(held))
}

/// The silent carrier of `held` to evict first: the oldest carrier of the address that has the most
/// silent carriers.
fn silent(held: &[Held]) -> Option<usize> {
    let mut by_source = BTreeMap::<_, usize>::new();
    for source in held.iter().filter_map(Held::silent_from) {
        *by_source.entry(source).or_default() += 1;
    }
    let most = *by_source.values().max()?;
    held.iter().position(|held| {
        let source = held.silent_from();
        source.is_some_and(|source| by_source.get(&source) == Some(&most))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_evicted(held: &Held) -> bool {
        let mut evicted = std::pin::pin!(held.evicted());
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        evicted.as_mut().poll(&mut context).is_ready()
    }

    fn from(host: u8) -> Use {
        Use::Silent(Some(IpAddr::from([192, 0, 2, host])))
    }

    #[test]
    fn the_peer_that_holds_most_makes_room_for_those_that_hold_less() {
        let mut holders = Holders::default();
        let [one, two] = ["one", "two"].map(|name| Some(Arc::from(name)));
        let further = Use::Further([1; 16]);
        let uses = [Use::First, further, further, Use::First];
        let held = uses.map(|of| holders.add(one.clone(), of));
        held[0].begins([1; 16]);
        let evict_for = |holders: &mut Holders, peer| holders.evict_for(peer, Use::First);
        assert!(
            !holders.evict_for(Some("one"), further),
            "a spare carrier evicts none of its own peer"
        );
        for evicted in [2, 1] {
            assert!(evict_for(&mut holders, Some("two")));
            assert!(is_evicted(&held[evicted]));
            let id = [evicted as u8 + 2; 16];
            holders.add(two.clone(), Use::First).begins(id);
        }
        assert!(
            !evict_for(&mut holders, Some("two")),
            "both peers hold the same number of carriers"
        );
        assert!(!evict_for(&mut holders, Some("one")));
        assert!(
            evict_for(&mut holders, None),
            "the third peer holds no carrier"
        );
        let left = held.iter().filter(|held| holders.remove(&one, held));
        assert_eq!(left.count(), 2);
        assert!(!holders.0.contains_key(&one));
    }

    #[test]
    fn silent_carriers_go_first_and_those_of_the_address_that_has_most() {
        let mut holders = Holders::default();
        let [idle, busy, first, second] = [1, 2, 2, 2].map(|host| holders.add(None, from(host)));
        busy.heard();
        assert!(
            holders.evict_for(None, Use::First) && is_evicted(&first),
            "the oldest carrier of the address with the most silent carriers"
        );
        assert!(
            holders.evict_for(None, Use::First) && is_evicted(&idle),
            "the oldest silent carrier"
        );
        // A later carrier of the same address is evicted before a carrier on which the peer has
        // opened something.
        let third = holders.add(None, from(2));
        assert!(holders.evict_for(None, Use::First) && is_evicted(&second));
        assert!(holders.evict_for(None, Use::First) && is_evicted(&third));
        assert!(
            !holders.evict_for(None, Use::First),
            "a carrier with an opened stream stays"
        );
        assert!(!is_evicted(&busy));
    }

    #[test]
    fn a_silent_carrier_is_no_reason_to_take_one_of_a_peer_that_holds_less() {
        let mut holders = Holders::default();
        let [one, two] = ["one", "two"].map(|name| Some(Arc::from(name)));
        let heard = [1, 1, 1].map(|host| holders.add(one.clone(), from(host)));
        heard.iter().for_each(Held::heard);
        let silent = holders.add(two, from(2));
        assert!(!holders.evict_for(Some("one"), Use::First));
        assert!(
            holders.evict_for(Some("two"), Use::First)
                && is_evicted(&heard[2])
                && !is_evicted(&silent)
        );
    }

    #[test]
    fn only_a_carrier_that_its_session_needs_takes_the_last_of_another() {
        let mut holders = Holders::default();
        let [one, two] = ["one", "two"].map(|name| Some(Arc::from(name)));
        let held = [1, 2, 3].map(|id| {
            let held = holders.add(one.clone(), Use::First);
            held.begins([id; 16]);
            held
        });
        let (further, own) = (Use::Further([9; 16]), holders.add(two.clone(), Use::First));
        own.begins([9; 16]);
        assert!(
            !holders.evict_for(Some("two"), further),
            "the session has a carrier"
        );
        holders.remove(&two, &own);
        assert!(holders.evict_for(Some("two"), further) && is_evicted(&held[2]));
    }
}
