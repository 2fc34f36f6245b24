//! The limiter of connections that have not proved who they are, or not said what they want.
//!
//! Anyone can make them, so they take nobody else's place: they have places of their own. Which connection has one is
//! decided by `limiter.rs`; a connection that is evicted learns it here. The oldest of the source that has most goes
//! first: a peer that goes on at once is through long before that, and a source that comes as often as it likes evicts
//! only its own while others have fewer.
//!
//! Bounds: the places; the sources with a penalty (`penalties.rs`).

mod limiter;
mod penalties;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::oneshot;

pub(crate) use limiter::{Counts, EarlyDrop};
use limiter::{Entrance, Limiter};

/// Seats of carriers, and of leaves at a rendezvous: of all workers.
pub(crate) const STRANGERS_MAX: usize = 256;

/// Those who wait.
#[derive(Debug)]
pub(crate) struct Lobby {
    waiting: Mutex<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    limiter: Limiter,
    /// What is dropped to evict a connection, by its number.
    senders: BTreeMap<u64, oneshot::Sender<()>>,
}

/// A new connection is to be closed: its source makes too many.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("it was dropped early, since its address makes too many connections that prove nothing")]
pub(crate) struct Dropped;

/// What a limiter knows of itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    /// Connections with a place, now.
    pub(crate) pending: usize,
    /// Sources with a penalty, now.
    pub(crate) penalised: usize,
    /// Since the start.
    pub(crate) counts: Counts,
}

impl Figures {
    /// Both together.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            pending: self.pending + other.pending,
            penalised: self.penalised + other.penalised,
            counts: Counts {
                evicted: self.counts.evicted + other.counts.evicted,
                dropped: self.counts.dropped + other.counts.dropped,
                failed: self.counts.failed + other.counts.failed,
            },
        }
    }
}

/// One connection's seat; free again when dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    lobby: Arc<Lobby>,
    number: u64,
    away: oneshot::Receiver<()>,
}

impl Lobby {
    /// One with so many seats.
    pub(crate) fn new(seats_max: usize, early_drop: EarlyDrop) -> Arc<Self> {
        Arc::new(Self {
            waiting: Mutex::new(Waiting {
                limiter: Limiter::new(seats_max, early_drop),
                senders: BTreeMap::new(),
            }),
        })
    }

    /// Takes a seat, another one's where none is free.
    ///
    /// # Errors
    /// [`Dropped`]: there is none for it.
    pub(crate) fn enter(self: &Arc<Self>, source: Option<IpAddr>) -> Result<Seat, Dropped> {
        let mut waiting = self.waiting();
        let entrance = waiting
            .limiter
            .enter(Instant::now(), network(source), &mut || rand::random());
        let Entrance::Admitted { number, evicted } = entrance else {
            return Err(Dropped);
        };
        if let Some(evicted) = evicted {
            waiting.senders.remove(&evicted);
        }
        let (sender, away) = oneshot::channel();
        waiting.senders.insert(number, sender);
        Ok(Seat {
            lobby: Arc::clone(self),
            number,
            away,
        })
    }

    /// Seats that are taken.
    pub(crate) fn taken(&self) -> usize {
        self.waiting().limiter.taken()
    }

    /// As of now.
    pub(crate) fn figures(&self) -> Figures {
        let waiting = self.waiting();
        Figures {
            pending: waiting.limiter.taken(),
            penalised: waiting.limiter.penalised(Instant::now()),
            counts: waiting.limiter.counts(),
        }
    }

    /// A poisoned lock only means that a panicking thread held it.
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether `error` says no more of a connection than that its other end has gone.
pub(crate) fn has_gone(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    let gone = [
        BrokenPipe,
        ConnectionAborted,
        ConnectionReset,
        UnexpectedEof,
    ];
    gone.contains(&error.kind())
}

/// What counts as one source with `source`.
pub(crate) fn network(source: Option<IpAddr>) -> Option<IpAddr> {
    source.map(|address| match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        address => address,
    })
}

impl Seat {
    /// Waits until it is sent away.
    pub(crate) async fn sent_away(&mut self) {
        // Nothing is ever sent: it ends when the sender is dropped.
        if !self.away.is_terminated() {
            let _ = (&mut self.away).await;
        }
    }

    /// The connection has proved who it is, or said what it wants.
    pub(crate) fn succeeded(&self) {
        let mut waiting = self.lobby.waiting();
        waiting.limiter.succeed(Instant::now(), self.number);
    }

    /// The connection proves nothing, so that nothing that becomes of it is a failure.
    pub(crate) fn excused(&self) {
        self.lobby.waiting().limiter.excuse(self.number);
    }

    /// The connection has proved the wrong thing, or nothing in time. One that only went has not.
    pub(crate) fn failed(&self) {
        let mut waiting = self.lobby.waiting();
        waiting.limiter.fail(Instant::now(), self.number);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut waiting = self.lobby.waiting();
        waiting.limiter.leave(self.number);
        waiting.senders.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEATS: usize = 8;

    fn from(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    fn is_away(seat: &mut Seat) -> bool {
        seat.away.try_recv() == Err(oneshot::error::TryRecvError::Closed)
    }

    #[test]
    fn one_more_than_there_are_seats_sends_the_oldest_away() {
        let lobby = Lobby::new(SEATS, EarlyDrop::Off);
        let mut seats: Vec<_> = (0..SEATS)
            .map(|_| lobby.enter(from("192.0.2.1")).unwrap())
            .collect();
        drop(seats.remove(1));
        let _another = lobby.enter(from("192.0.2.1")).unwrap();
        assert!(!is_away(&mut seats[0]));
        let _one_more = lobby.enter(from("192.0.2.1")).unwrap();
        assert!(is_away(&mut seats[0]) && !is_away(&mut seats[1]));
        assert_eq!(lobby.taken(), SEATS);
    }

    #[test]
    fn who_comes_a_thousand_times_sends_only_its_own_away() {
        let lobby = Lobby::new(SEATS, EarlyDrop::Off);
        let mut patient = lobby.enter(from("192.0.2.1")).unwrap();
        let mut flood: Vec<_> = (0..1000)
            .map(|_| lobby.enter(from("192.0.2.2")).unwrap())
            .collect();
        let mut unix = lobby.enter(None).unwrap();
        flood.extend((0..1000).map(|_| lobby.enter(from("192.0.2.2")).unwrap()));
        assert!(!is_away(&mut patient) && !is_away(&mut unix));
        let left = flood
            .iter_mut()
            .filter_map(|seat| (!is_away(seat)).then_some(()));
        assert_eq!((left.count(), lobby.taken()), (SEATS - 2, SEATS));
        drop((patient, unix, flood));
        assert_eq!(lobby.taken(), 0);
        assert!(lobby.waiting().senders.is_empty());
    }

    #[test]
    fn of_many_addresses_the_oldest_goes_and_an_ipv6_network_is_one() {
        let lobby = Lobby::new(SEATS, EarlyDrop::Off);
        let address = |host: usize| from(&format!("192.0.2.{host}"));
        let mut seats: Vec<_> = (0..SEATS)
            .map(|host| lobby.enter(address(host)).unwrap())
            .collect();
        let mut another = lobby.enter(address(100)).unwrap();
        assert!(is_away(&mut seats[0]) && !is_away(&mut seats[1]));
        let mut same: Vec<_> = ["2001:db8::1", "2001:db8:0:0:ffff::2"]
            .map(|text| lobby.enter(from(text)).unwrap())
            .into();
        assert!(is_away(&mut seats[1]) && is_away(&mut same[0]));
        let _mapped = lobby.enter(from("::ffff:192.0.2.100")).unwrap();
        assert!(is_away(&mut another));
    }
}
