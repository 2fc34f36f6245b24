//! Passes an exit's carriers to their workers.
//!
//! The kernel distributes connections over the workers' listeners by a hash. QUIC and SSH
//! connections stay on the worker that accepted them. The accepting worker passes on every other
//! carrier. A carrier that joins a session goes to the worker that the session id specifies. A
//! carrier that starts a session goes to the worker with the fewest carriers. Each worker's queue
//! has room for as many carriers as the exit has places. A further carrier waits for room, or until
//! it is evicted.
//!
//! `limits.carriers` bounds carriers once their hello is read. Before the hello is read, the
//! [`HandshakeLimiter`] bounds the connections. At the limit, a new carrier may get the place of
//! another carrier. The exit evicts a carrier of the peer with the most carriers, in favour of a
//! peer with fewer carriers. Silent carriers are evicted first ([`holders`]).

mod holders;

use std::sync::Arc;

use muxtunnel_codes::Code;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::base::handshake_limiter::{EarlyDrop, HandshakeLimiter, permits_max};
use crate::io::transport::Detached;
use crate::session::end::SessionEnd;
pub(crate) use holders::Use;
use holders::{Held, Holders};

/// A limit of carriers has been reached.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TooMany {
    /// The limit of the exit.
    OfExit,
    /// The limit of the peer.
    OfPeer,
}

impl TooMany {
    /// The code of the refusal.
    pub(crate) const fn code(&self) -> Code {
        match self {
            Self::OfExit => Code::TooManyCarriers,
            Self::OfPeer => Code::PeerCarrierLimit,
        }
    }
}

/// The carriers of the exit, and the queue of each worker.
#[derive(Debug)]
pub(crate) struct Handover {
    /// Bounds the connections that are not carriers yet.
    pub(crate) limiter: Arc<HandshakeLimiter>,
    carriers: Mutex<Counts>,
    /// Permits for peers that come through a rendezvous and have not completed their handshake.
    visits: Arc<Semaphore>,
    workers: Vec<mpsc::Sender<Handed>>,
    carriers_max: usize,
}

#[derive(Debug)]
struct Counts {
    all: usize,
    by_worker: Vec<usize>,
    by_peer: Holders,
}

/// A carrier that is being passed to its worker.
pub(crate) struct Handed {
    pub(crate) carrier: Detached,
    /// Bytes that were already read from the carrier.
    pub(crate) unread: Vec<u8>,
    /// The session that the carrier joins; `None`: the carrier starts a session.
    pub(crate) joins: Option<[u8; 16]>,
    pub(crate) place: Place,
}

/// One carrier's place at the exit, and at its worker once the worker is chosen. Dropping the value
/// frees the place.
#[derive(Debug)]
pub(crate) struct Place {
    handover: Arc<Handover>,
    worker: Option<usize>,
    peer: Option<Arc<str>>,
    held: Held,
}

impl Place {
    /// Waits until another carrier has taken the place.
    pub(crate) async fn evicted(&self) {
        self.held.evicted().await;
    }

    /// Records that the carrier began the session `id`.
    pub(crate) fn begins(&self, id: [u8; 16]) {
        self.held.begins(id);
    }

    /// Records that the peer has opened a stream or a listener on the carrier.
    pub(crate) fn heard(&self) {
        self.held.heard();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut carriers = self.handover.carriers();
        let is_own = carriers.by_peer.remove(&self.peer, &self.held);
        carriers.all -= usize::from(is_own);
        if let Some(worker) = self.worker {
            carriers.by_worker[worker] -= 1;
        }
    }
}

impl Handover {
    /// Creates the handover. Also returns, for each worker, the channel from which the worker
    /// receives its carriers.
    pub(crate) fn new(
        workers: usize,
        carriers_max: usize,
    ) -> (Arc<Self>, Vec<mpsc::Receiver<Handed>>) {
        let (workers, receivers): (Vec<_>, Vec<_>) =
            (0..workers).map(|_| mpsc::channel(carriers_max)).unzip();
        let counts = Counts {
            all: 0,
            by_worker: vec![0; workers.len()],
            by_peer: Holders::default(),
        };
        let handover = Self {
            limiter: HandshakeLimiter::new(permits_max(), EarlyDrop::On),
            carriers: Mutex::new(counts),
            visits: Arc::new(Semaphore::new(carriers_max)),
            workers,
            carriers_max,
        };
        (Arc::new(handover), receivers)
    }

    /// Returns a place for a carrier of the peer with the identity `peer`, which may have `most`
    /// carriers. At the exit's limit, evicts a silent carrier, or a carrier of a peer that holds more
    /// carriers, or a carrier of the peer itself that its sessions can spare. At the peer's limit,
    /// evicts a carrier of the peer that its sessions can spare.
    ///
    /// # Errors
    /// [`TooMany`].
    pub(crate) fn admit(
        self: &Arc<Self>,
        (peer, most): (Option<&str>, Option<u32>),
        of: Use,
    ) -> Result<Place, TooMany> {
        let mut carriers = self.carriers();
        let held = carriers.by_peer.held(peer);
        if most.is_some_and(|most| held >= most as usize) {
            if !carriers.by_peer.evict_own(peer, of) {
                return Err(TooMany::OfPeer);
            }
        } else if carriers.all < self.carriers_max {
            carriers.all += 1;
        } else if !carriers.by_peer.evict_for(peer, of) {
            return Err(TooMany::OfExit);
        }
        let peer: Option<Arc<str>> = peer.map(Into::into);
        Ok(Place {
            handover: Arc::clone(self),
            worker: None,
            held: carriers.by_peer.add(peer.clone(), of),
            peer,
        })
    }

    /// Returns a permit for a peer that comes through a rendezvous and has not proved its identity
    /// yet.
    ///
    /// # Errors
    /// [`TooMany`].
    pub(crate) fn meet(&self) -> Result<OwnedSemaphorePermit, TooMany> {
        Arc::clone(&self.visits)
            .try_acquire_owned()
            .map_err(|_| TooMany::OfExit)
    }

    /// The worker with the fewest carriers.
    pub(crate) fn fewest(&self) -> usize {
        let by_worker = &self.carriers().by_worker;
        let fewest = (0..by_worker.len()).min_by_key(|worker| by_worker[*worker]);
        fewest.unwrap_or_default()
    }

    pub(crate) fn has_worker(&self, worker: usize) -> bool {
        worker < self.workers.len()
    }

    /// Passes a carrier to `worker`. Waits while the worker's queue is full: carriers that were
    /// evicted after they entered the queue are still in it.
    ///
    /// # Errors
    /// [`SessionEnd::Evicted`]: the carrier was evicted while it waited for room in the queue.
    pub(crate) async fn pass_on(
        &self,
        worker: usize,
        mut handed: Handed,
    ) -> Result<(), SessionEnd> {
        self.carriers().by_worker[worker] += 1;
        handed.place.worker = Some(worker);
        let room = tokio::select! {
            biased;
            room = self.workers[worker].reserve() => room,
            () = handed.place.evicted() => return Err(SessionEnd::Evicted),
        };
        // If a worker has stopped, the process has ended or is about to end.
        if let Ok(room) = room {
            room.send(handed);
        }
        Ok(())
    }

    fn carriers(&self) -> MutexGuard<'_, Counts> {
        self.carriers.lock()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    /// A carrier that no worker uses.
    fn carrier() -> Detached {
        Box::new(|| Err(std::io::ErrorKind::Unsupported.into()))
    }

    /// Passes a carrier to a worker whose queue has room.
    fn pass_on(handover: &Handover, worker: usize, joins: Option<[u8; 16]>, place: Place) {
        let handed = Handed {
            carrier: carrier(),
            unread: b"hello".to_vec(),
            joins,
            place,
        };
        let passed = handover.pass_on(worker, handed).now_or_never();
        passed.unwrap().unwrap();
    }

    #[test]
    fn carriers_go_where_there_are_fewest_up_to_the_limit_of_all() {
        let (handover, mut receivers) = Handover::new(2, 3);
        for _ in 0..3 {
            let place = handover.admit((None, None), Use::First).unwrap();
            pass_on(&handover, handover.fewest(), None, place);
        }
        assert_eq!(handover.carriers().by_worker, [2, 1]);
        assert_eq!(
            handover.admit((None, None), Use::First).unwrap_err(),
            TooMany::OfExit
        );
        drop(receivers[0].try_recv().unwrap());
        assert_eq!(handover.carriers().by_worker, [1, 1]);
        assert!(handover.admit((None, None), Use::First).is_ok());
    }

    #[test]
    fn a_carrier_that_joins_goes_to_its_sessions_worker() {
        let (handover, mut receivers) = Handover::new(2, 3);
        let id = [1; 16];
        for worker in [1, 1] {
            let place = handover.admit((None, None), Use::First).unwrap();
            pass_on(&handover, worker, Some(id), place);
        }
        let handed = receivers[1].try_recv().unwrap();
        assert_eq!(
            (handed.joins, &handed.unread[..]),
            (Some(id), &b"hello"[..])
        );
        assert!(!handover.has_worker(2));
        assert_eq!(handover.carriers().by_worker, [0, 2]);
        assert_eq!(handover.carriers().all, 2);
    }

    #[test]
    fn a_carrier_waits_for_room_behind_carriers_that_were_evicted_in_the_queue() {
        let (handover, mut receivers) = Handover::new(1, 2);
        let mut all: Vec<_> = (0..5)
            .map(|number| {
                let handed = Handed {
                    carrier: carrier(),
                    unread: vec![number],
                    joins: None,
                    place: handover.admit((None, None), Use::Silent(None)).unwrap(),
                };
                let mut passed = Box::pin(handover.pass_on(0, handed));
                assert_eq!(passed.as_mut().now_or_never().is_some(), number < 2);
                passed
            })
            .collect();
        // Carriers 3 and 4 have the two places. The other carriers were evicted: 0 and 1 in the
        // queue, 2 before it had room there.
        let evicted = all.remove(2).now_or_never().unwrap();
        assert!(matches!(evicted, Err(SessionEnd::Evicted)));
        let mut received = Vec::new();
        for _ in 0..2 {
            received.push(receivers[0].try_recv().unwrap());
            let waits = all.remove(2).now_or_never();
            assert!(waits.unwrap().is_ok());
        }
        received.extend(std::iter::from_fn(|| receivers[0].try_recv().ok()));
        let numbers = received.iter().map(|handed| handed.unread[0]);
        assert_eq!(numbers.collect::<Vec<_>>(), [0, 1, 3, 4]);
        assert_eq!(handover.carriers().all, 2);
    }

    #[test]
    fn a_place_that_was_taken_over_is_free_once_and_one_peer_may_have_all() {
        let (handover, _receivers) = Handover::new(1, 3);
        let one = [0; 3].map(|_| handover.admit((Some("one"), None), Use::First).unwrap());
        assert!(handover.admit((Some("one"), None), Use::First).is_err());
        let two = handover.admit((Some("two"), None), Use::First).unwrap();
        assert!(handover.admit((Some("two"), None), Use::First).is_err());
        assert_eq!(handover.carriers().all, 3);
        drop(one);
        assert_eq!(handover.carriers().all, 1);
        drop(two);
        assert_eq!(handover.carriers().all, 0);
    }

    #[test]
    fn a_session_that_lost_its_carriers_takes_one_that_another_can_spare() {
        for (carriers_max, most) in [(9, Some(3)), (3, None)] {
            let (handover, _receivers) = Handover::new(1, carriers_max);
            let admit = |of| handover.admit((Some("one"), most), of);
            let [rich, poor] = [1, 2].map(|id| Use::Further([id; 16]));
            let held = [Use::First, rich, rich].map(|of| admit(of).unwrap());
            held[0].begins([1; 16]);
            assert!(admit(rich).is_err());
            let _back = admit(poor).unwrap();
            assert!(admit(poor).is_err(), "the session has a carrier again");
        }
    }

    #[test]
    fn a_peer_at_its_limit_has_one_carrier_for_each_session() {
        let (handover, _receivers) = Handover::new(1, 9);
        let admit = |of| handover.admit((Some("one"), Some(3)), of);
        let further = Use::Further([1; 16]);
        let uses = [Use::First, further, Use::First];
        let held = uses.map(|of| admit(of).unwrap());
        held[0].begins([1; 16]);
        assert_eq!(admit(further).unwrap_err(), TooMany::OfPeer);
        // The first carrier of a session gets the place of a further one.
        let _third = admit(Use::First).unwrap();
        assert_eq!(admit(Use::First).unwrap_err(), TooMany::OfPeer);
        assert_eq!(handover.carriers().all, 3);
        let _other = handover.admit((Some("two"), Some(1)), Use::First).unwrap();
        drop(held);
        assert_eq!(handover.carriers().all, 2);
        assert!(admit(further).is_ok());
    }
}
