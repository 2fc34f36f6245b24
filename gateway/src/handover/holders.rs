//! Which peer holds how many of an exit's carriers, and who gives one up once all places are taken.
//!
//! One peer alone may hold all places. Bounded by the places.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::Notify;

/// The carriers of each peer, by the identity that it proved, oldest first; `None`: it proved nothing.
#[derive(Debug, Default)]
pub(super) struct Holders(BTreeMap<Option<Arc<str>>, Vec<Held>>);

/// What a peer holds one place by.
#[derive(Debug, Clone)]
pub(super) struct Held {
    pub(super) evicted: Arc<Notify>,
    /// The session has other carriers.
    is_further: bool,
}

impl Holders {
    /// One more carrier of `peer`.
    pub(super) fn add(&mut self, peer: Option<Arc<str>>, is_further: bool) -> Held {
        let held = Held {
            evicted: Arc::default(),
            is_further,
        };
        self.0.entry(peer).or_default().push(held.clone());
        held
    }

    /// Evicts a carrier of the peer that holds most, where `peer` holds at least two fewer: the newest of those whose
    /// session has others, else the newest. Returns whether it did.
    pub(super) fn evict_for(&mut self, peer: Option<&str>) -> bool {
        let is_peer = |other: &Option<Arc<str>>| other.as_deref() == peer;
        let own = self.0.iter().find(|(other, _)| is_peer(other));
        let own = own.map_or(0, |(_, held)| held.len());
        let Some(most) = self.0.values_mut().max_by_key(|held| held.len()) else {
            return false;
        };
        if most.len() < own + 2 {
            return false;
        }
        let further = most.iter().rposition(|held| held.is_further);
        let evicted = most.remove(further.unwrap_or(most.len() - 1));
        evicted.evicted.notify_one();
        true
    }

    /// The carrier is gone. Returns whether its place is free, and not another carrier's since it was evicted.
    pub(super) fn remove(&mut self, peer: &Option<Arc<str>>, held: &Held) -> bool {
        let Some(all) = self.0.get_mut(peer) else {
            return false;
        };
        let before = all.len();
        all.retain(|other| !Arc::ptr_eq(&other.evicted, &held.evicted));
        let was_there = all.len() < before;
        if all.is_empty() {
            self.0.remove(peer);
        }
        was_there
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_evicted(held: &Held) -> bool {
        let mut evicted = std::pin::pin!(held.evicted.notified());
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        evicted.as_mut().poll(&mut context).is_ready()
    }

    #[test]
    fn the_peer_that_holds_most_makes_room_for_those_that_hold_less() {
        let mut holders = Holders::default();
        let [one, two] = ["one", "two"].map(|name| Some(Arc::from(name)));
        let held = [false, true, true, false].map(|further| holders.add(one.clone(), further));
        assert!(!holders.evict_for(Some("one")), "nobody evicts itself");
        for evicted in [2, 1] {
            assert!(holders.evict_for(Some("two")));
            assert!(is_evicted(&held[evicted]));
            holders.add(two.clone(), false);
        }
        assert!(!holders.evict_for(Some("two")), "both hold the same");
        assert!(!holders.evict_for(Some("one")));
        assert!(holders.evict_for(None), "a third one has none");
        let left = held.iter().filter(|held| holders.remove(&one, held));
        assert_eq!(left.count(), 2);
        assert!(!holders.0.contains_key(&one));
    }
}
