//! Limits the connections that still have to authenticate or to send their request.
//!
//! Anyone can open such connections, so each one holds a permit of its limiter and no other
//! resource. The arbiter (`arbiter.rs`) decides which connections hold the permits. This module
//! notifies a connection of its eviction. The arbiter evicts the oldest connection of the source
//! with the most permits. A peer that authenticates at once has finished long before an eviction. A
//! fast source evicts only its own connections while other sources hold fewer permits.
//!
//! Bounds: the number of permits, and the number of sources with a penalty (`penalties.rs`).

mod arbiter;
mod penalties;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;

use crate::base::open_files::OpenFiles;
use arbiter::{Arbiter, Entrance};
pub(crate) use arbiter::{Counts, EarlyDrop};

/// Number of permits of all workers together, for carriers or for connections to a rendezvous.
pub(crate) const PERMITS_MAX: usize = 256;

/// Number of permits in this process: [`PERMITS_MAX`], or fewer if the limit of open files is low.
pub(crate) fn permits_max() -> usize {
    OpenFiles::of_process().strangers(PERMITS_MAX)
}

/// While at most this number of permits is taken, a connection may take longer
/// ([`Patience`](crate::base::patience::Patience)). A flood takes more.
const CALM_MAX: usize = 32;

/// Grants permits.
#[derive(Debug)]
pub(crate) struct HandshakeLimiter {
    waiting: Mutex<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    arbiter: Arbiter,
    /// Senders by connection number. Dropping a sender evicts its connection.
    senders: BTreeMap<u64, oneshot::Sender<()>>,
}

/// The new connection must be closed, since connections of its source or of all sources arrive too
/// fast.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("dropped early: too many connections, from this address or in total, do not authenticate")]
pub(crate) struct Dropped;

/// The figures of a limiter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    pub(crate) pending: usize,
    pub(crate) penalised: usize,
    /// Counts since the start.
    pub(crate) counts: Counts,
}

impl Figures {
    /// The sum of two limiters' figures.
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

/// One connection's permit. Dropping the value releases the permit.
#[derive(Debug)]
pub(crate) struct Permit {
    limiter: Arc<HandshakeLimiter>,
    number: u64,
    away: oneshot::Receiver<()>,
}

impl HandshakeLimiter {
    pub(crate) fn new(permits_max: usize, early_drop: EarlyDrop) -> Arc<Self> {
        Arc::new(Self {
            waiting: Mutex::new(Waiting {
                arbiter: Arbiter::new(permits_max, early_drop),
                senders: BTreeMap::new(),
            }),
        })
    }

    /// Takes a permit. If no permit is free, the arbiter evicts a connection.
    ///
    /// # Errors
    /// [`Dropped`]: the connection gets no permit.
    pub(crate) fn enter(self: &Arc<Self>, source: Option<IpAddr>) -> Result<Permit, Dropped> {
        let mut waiting = self.waiting();
        let entrance = waiting
            .arbiter
            .enter(Instant::now(), network(source), &mut || rand::random());
        let Entrance::Admitted { number, evicted } = entrance else {
            return Err(Dropped);
        };
        if let Some(evicted) = evicted {
            waiting.senders.remove(&evicted);
        }
        let (sender, away) = oneshot::channel();
        waiting.senders.insert(number, sender);
        Ok(Permit {
            limiter: Arc::clone(self),
            number,
            away,
        })
    }

    /// The number of permits held.
    pub(crate) fn taken(&self) -> usize {
        self.waiting().arbiter.taken()
    }

    /// Whether so few connections hold permits that they may hold them longer.
    pub(crate) fn is_calm(&self) -> bool {
        self.taken() <= CALM_MAX
    }

    pub(crate) fn figures(&self) -> Figures {
        let waiting = self.waiting();
        Figures {
            pending: waiting.arbiter.taken(),
            penalised: waiting.arbiter.penalised(Instant::now()),
            counts: waiting.arbiter.counts(),
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock()
    }
}

/// Whether `error` only means that the peer has closed the connection.
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

/// The source to which an address belongs: the IPv4 address itself, or the /64 network of an IPv6
/// address.
pub(crate) fn network(source: Option<IpAddr>) -> Option<IpAddr> {
    source.map(|address| match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        address => address,
    })
}

impl Permit {
    /// Waits until the connection is evicted.
    pub(crate) async fn evicted(&mut self) {
        // The channel transfers no value. Dropping the sender ends the channel.
        if !self.away.is_terminated() {
            let _ = (&mut self.away).await;
        }
    }

    /// Records that the connection has authenticated, or sent its request.
    pub(crate) fn succeeded(&self) {
        let mut waiting = self.limiter.waiting();
        waiting.arbiter.succeed(Instant::now(), self.number);
    }

    /// Records that the connection need not authenticate. The end of such a connection never counts
    /// as a failure.
    pub(crate) fn excused(&self) {
        self.limiter.waiting().arbiter.excuse(self.number);
    }

    /// Records that the connection failed to authenticate, or timed out. The caller does not report
    /// a connection that the peer closed ([`has_gone`]), because that is not a failure.
    pub(crate) fn failed(&self) {
        let mut waiting = self.limiter.waiting();
        waiting.arbiter.fail(Instant::now(), self.number);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut waiting = self.limiter.waiting();
        waiting.arbiter.leave(self.number);
        waiting.senders.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERMITS: usize = 8;

    fn from(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    fn is_away(permit: &mut Permit) -> bool {
        permit.away.try_recv() == Err(oneshot::error::TryRecvError::Closed)
    }

    #[test]
    fn one_more_than_there_are_seats_sends_the_oldest_away() {
        let limiter = HandshakeLimiter::new(PERMITS, EarlyDrop::Off);
        let mut permits: Vec<_> = (0..PERMITS)
            .map(|_| limiter.enter(from("192.0.2.1")).unwrap())
            .collect();
        drop(permits.remove(1));
        let _another = limiter.enter(from("192.0.2.1")).unwrap();
        assert!(!is_away(&mut permits[0]));
        let _one_more = limiter.enter(from("192.0.2.1")).unwrap();
        assert!(is_away(&mut permits[0]) && !is_away(&mut permits[1]));
        assert_eq!(limiter.taken(), PERMITS);
    }

    #[test]
    fn who_comes_a_thousand_times_sends_only_its_own_away() {
        let limiter = HandshakeLimiter::new(PERMITS, EarlyDrop::Off);
        let mut patient = limiter.enter(from("192.0.2.1")).unwrap();
        let mut flood: Vec<_> = (0..1000)
            .map(|_| limiter.enter(from("192.0.2.2")).unwrap())
            .collect();
        let mut unix = limiter.enter(None).unwrap();
        flood.extend((0..1000).map(|_| limiter.enter(from("192.0.2.2")).unwrap()));
        assert!(!is_away(&mut patient) && !is_away(&mut unix));
        let left = flood
            .iter_mut()
            .filter_map(|permit| (!is_away(permit)).then_some(()));
        assert_eq!((left.count(), limiter.taken()), (PERMITS - 2, PERMITS));
        drop((patient, unix, flood));
        assert_eq!(limiter.taken(), 0);
        assert!(limiter.waiting().senders.is_empty());
    }

    #[test]
    fn of_many_addresses_the_oldest_goes_and_an_ipv6_network_is_one() {
        let limiter = HandshakeLimiter::new(PERMITS, EarlyDrop::Off);
        let address = |host: usize| from(&format!("192.0.2.{host}"));
        let mut permits: Vec<_> = (0..PERMITS)
            .map(|host| limiter.enter(address(host)).unwrap())
            .collect();
        let mut another = limiter.enter(address(100)).unwrap();
        assert!(is_away(&mut permits[0]) && !is_away(&mut permits[1]));
        let mut same: Vec<_> = ["2001:db8::1", "2001:db8:0:0:ffff::2"]
            .map(|text| limiter.enter(from(text)).unwrap())
            .into();
        assert!(is_away(&mut permits[1]) && is_away(&mut same[0]));
        let _mapped = limiter.enter(from("::ffff:192.0.2.100")).unwrap();
        assert!(is_away(&mut another));
    }
}
