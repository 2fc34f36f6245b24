//! Connections of which nothing is known: that have not proved who they are, or not said what they want.
//!
//! Anyone can make them, so they take nobody else's place: they have seats of their own. One more than there are
//! sends one away, and a peer that goes on at once is through long before its turn comes, however many others say
//! nothing. Whose turn it is: the oldest of the address that has most seats. So who comes from one address, as often
//! as it likes, sends only its own away while others have fewer.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// Seats of carriers, and of leaves at a rendezvous: of all workers.
pub(crate) const STRANGERS_MAX: usize = 256;

/// Those who wait.
#[derive(Debug)]
pub(crate) struct Lobby {
    seats_max: usize,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    /// Oldest first; the second part is dropped to send one away.
    seats: BTreeMap<u64, (Source, oneshot::Sender<()>)>,
    by_source: BTreeMap<Source, BTreeSet<u64>>,
}

/// Where a connection comes from; `None`: from a socket without addresses. All of an IPv6 network of 64 bits are one.
type Source = Option<IpAddr>;

/// One connection's seat; free again when dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    lobby: Arc<Lobby>,
    number: u64,
    away: oneshot::Receiver<()>,
}

impl Lobby {
    /// One with so many seats.
    pub(crate) fn new(seats_max: usize) -> Arc<Self> {
        Arc::new(Self {
            seats_max,
            waiting: Mutex::default(),
        })
    }

    /// Takes a seat, another one's where none is free.
    pub(crate) fn enter(self: &Arc<Self>, source: Option<IpAddr>) -> Seat {
        let mut waiting = self.waiting();
        let (number, (sender, away)) = (waiting.next, oneshot::channel());
        waiting.next += 1;
        waiting.add(number, network(source), sender);
        if waiting.seats.len() > self.seats_max {
            waiting.send_one_away();
        }
        Seat {
            lobby: Arc::clone(self),
            number,
            away,
        }
    }

    /// Seats that are taken.
    pub(crate) fn taken(&self) -> usize {
        self.waiting().seats.len()
    }

    /// A poisoned lock only means that a panicking thread held it.
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn add(&mut self, number: u64, source: Source, sender: oneshot::Sender<()>) {
        self.seats.insert(number, (source, sender));
        self.by_source.entry(source).or_default().insert(number);
    }

    fn remove(&mut self, number: u64) {
        let Some((source, _)) = self.seats.remove(&number) else {
            return;
        };
        if let Some(numbers) = self.by_source.get_mut(&source) {
            numbers.remove(&number);
            if numbers.is_empty() {
                self.by_source.remove(&source);
            }
        }
    }

    /// Of addresses with as many seats, the one that has the oldest.
    fn send_one_away(&mut self) {
        let of_source =
            |numbers: &BTreeSet<u64>| (numbers.len(), Reverse(numbers.first().copied()));
        let most = self
            .by_source
            .values()
            .max_by_key(|numbers| of_source(numbers));
        if let Some(number) = most.and_then(BTreeSet::first).copied() {
            self.remove(number);
        }
    }
}

fn network(source: Option<IpAddr>) -> Source {
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
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.lobby.waiting().remove(self.number);
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
        let lobby = Lobby::new(SEATS);
        let mut seats: Vec<_> = (0..SEATS).map(|_| lobby.enter(from("192.0.2.1"))).collect();
        drop(seats.remove(1));
        let _another = lobby.enter(from("192.0.2.1"));
        assert!(!is_away(&mut seats[0]));
        let _one_more = lobby.enter(from("192.0.2.1"));
        assert!(is_away(&mut seats[0]) && !is_away(&mut seats[1]));
        assert_eq!(lobby.taken(), SEATS);
    }

    #[test]
    fn who_comes_a_thousand_times_sends_only_its_own_away() {
        let lobby = Lobby::new(SEATS);
        let mut patient = lobby.enter(from("192.0.2.1"));
        let mut flood: Vec<_> = (0..1000).map(|_| lobby.enter(from("192.0.2.2"))).collect();
        let mut unix = lobby.enter(None);
        flood.extend((0..1000).map(|_| lobby.enter(from("192.0.2.2"))));
        assert!(!is_away(&mut patient) && !is_away(&mut unix));
        let left = flood
            .iter_mut()
            .filter_map(|seat| (!is_away(seat)).then_some(()));
        assert_eq!((left.count(), lobby.taken()), (SEATS - 2, SEATS));
        drop((patient, unix, flood));
        assert_eq!(lobby.taken(), 0);
        assert!(lobby.waiting().by_source.is_empty());
    }

    #[test]
    fn of_many_addresses_the_oldest_goes_and_an_ipv6_network_is_one() {
        let lobby = Lobby::new(SEATS);
        let address = |host: usize| from(&format!("192.0.2.{host}"));
        let mut seats: Vec<_> = (0..SEATS).map(|host| lobby.enter(address(host))).collect();
        let mut another = lobby.enter(address(100));
        assert!(is_away(&mut seats[0]) && !is_away(&mut seats[1]));
        let mut same: Vec<_> = ["2001:db8::1", "2001:db8:0:0:ffff::2"]
            .map(|text| lobby.enter(from(text)))
            .into();
        assert!(is_away(&mut seats[1]) && is_away(&mut same[0]));
        let _mapped = lobby.enter(from("::ffff:192.0.2.100"));
        assert!(is_away(&mut another));
    }
}
