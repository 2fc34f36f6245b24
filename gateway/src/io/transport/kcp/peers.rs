//! The conversations of an exit on all its workers: the owner of each address, stray datagrams, and
//! the secret of challenges.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use muxtunnel_gateway_config::Config;
use parking_lot::Mutex;

use crate::base::handshake_limiter::PERMITS_MAX;

/// Maximum number of datagrams that wait for a connection because another socket received them.
const INBOX_MAX: usize = 64;
/// Minimum time for which an answer to a challenge is valid; the maximum is twice this time.
const ANSWERED_WITHIN: Duration = Duration::from_secs(30);

/// State that all workers of an exit share.
#[derive(Debug)]
pub(crate) struct KcpPeers {
    known: Mutex<BTreeMap<SocketAddr, (u32, Arc<Inbox>)>>,
    most: usize,
    /// SipHash with a random key.
    secret: RandomState,
    began: Instant,
}

/// Datagrams of one connection that arrived on another socket.
#[derive(Debug, Default)]
pub(super) struct Inbox(Mutex<(VecDeque<Vec<u8>>, Option<Waker>)>);

impl Inbox {
    fn push(&self, datagram: &[u8]) {
        let (datagrams, waker) = &mut *self.0.lock();
        if datagrams.len() < INBOX_MAX {
            datagrams.push_back(datagram.to_vec());
        }
        if let Some(waker) = waker.take() {
            waker.wake();
        }
    }

    /// Returns the oldest datagram. If the inbox is empty, the next datagram wakes `waker`.
    pub(super) fn pop(&self, waker: &Waker) -> Option<Vec<u8>> {
        let (datagrams, waiting) = &mut *self.0.lock();
        let datagram = datagrams.pop_front();
        if datagram.is_none() {
            *waiting = Some(waker.clone());
        }
        datagram
    }
}

/// A connection's entry in the table of peers. Dropping the value removes the entry.
#[derive(Debug)]
pub(super) struct Known {
    peers: Arc<KcpPeers>,
    address: SocketAddr,
    pub(super) inbox: Arc<Inbox>,
}

impl Drop for Known {
    fn drop(&mut self) {
        self.peers.known.lock().remove(&self.address);
    }
}

/// The owner of a datagram.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// The datagram was passed to its connection.
    Delivered,
    /// The address has another conversation.
    Other,
    /// The address is unknown.
    Nobodys,
}

impl KcpPeers {
    /// Creates a table with room for twice the maximum number of carriers plus twice the maximum
    /// number of unproved peers, since dropped connections linger.
    pub(crate) fn of(config: &Config) -> Arc<Self> {
        Self::at_most(2 * config.limits.carriers as usize + 2 * PERMITS_MAX)
    }

    /// `most` is the maximum number of concurrent connections.
    pub(super) fn at_most(most: usize) -> Arc<Self> {
        Arc::new(Self {
            known: Mutex::default(),
            most,
            secret: RandomState::new(),
            began: Instant::now(),
        })
    }

    /// Handles a datagram of `conversation` that came from `address` to a socket without a
    /// connection.
    pub(super) fn deliver(&self, address: SocketAddr, conversation: u32, datagram: &[u8]) -> Whose {
        let known = self.known.lock();
        match known.get(&address) {
            Some((known, inbox)) if *known == conversation => {
                inbox.push(datagram);
                Whose::Delivered
            }
            Some(_) => Whose::Other,
            None => Whose::Nobodys,
        }
    }

    /// Adds an entry for a new connection; `None`: there are too many entries, or the address
    /// already has an entry.
    pub(super) fn admit(self: &Arc<Self>, address: SocketAddr, conversation: u32) -> Option<Known> {
        let mut known = self.known.lock();
        if known.len() >= self.most || known.contains_key(&address) {
            return None;
        }
        let inbox = Arc::new(Inbox::default());
        known.insert(address, (conversation, Arc::clone(&inbox)));
        Some(Known {
            peers: Arc::clone(self),
            address,
            inbox,
        })
    }

    /// The current challenge for `address`.
    pub(super) fn challenge(&self, address: SocketAddr, conversation: u32) -> u32 {
        self.answer(address, conversation, self.period())
    }

    /// Whether `answer` is the answer to a recent challenge.
    pub(super) fn is_answer(&self, address: SocketAddr, conversation: u32, answer: u32) -> bool {
        let period = self.period();
        let mut periods = [Some(period), period.checked_sub(1)].into_iter().flatten();
        periods.any(|period| self.answer(address, conversation, period) == answer)
    }

    fn period(&self) -> u64 {
        self.began.elapsed().as_secs() / ANSWERED_WITHIN.as_secs()
    }

    fn answer(&self, address: SocketAddr, conversation: u32, period: u64) -> u32 {
        self.secret.hash_one((address, conversation, period)) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> SocketAddr {
        ([10, 0, 0, 1], port).into()
    }

    #[test]
    fn an_address_has_one_connection_and_all_have_a_bound() {
        let peers = KcpPeers::at_most(2);
        let one = peers.admit(address(1), 7).unwrap();
        assert!(peers.admit(address(1), 8).is_none());
        let _two = peers.admit(address(2), 7).unwrap();
        assert!(peers.admit(address(3), 7).is_none());
        assert_eq!(peers.deliver(address(1), 7, b"early"), Whose::Delivered);
        assert_eq!(peers.deliver(address(1), 8, b"other"), Whose::Other);
        assert_eq!(peers.deliver(address(4), 7, b"nobody"), Whose::Nobodys);
        assert_eq!(one.inbox.pop(Waker::noop()).unwrap(), b"early");
        assert_eq!(one.inbox.pop(Waker::noop()), None);
        for _ in 0..2 * INBOX_MAX {
            peers.deliver(address(1), 7, b"more");
        }
        let held = std::iter::from_fn(|| one.inbox.pop(Waker::noop())).count();
        assert_eq!(held, INBOX_MAX);
        drop(one);
        assert!(peers.admit(address(3), 7).is_some());
    }

    #[test]
    fn an_answer_is_of_one_address_and_one_conversation() {
        let (peers, others) = (KcpPeers::at_most(1), KcpPeers::at_most(1));
        let answer = peers.challenge(address(1), 7);
        assert!(peers.is_answer(address(1), 7, answer));
        assert!(!peers.is_answer(address(2), 7, answer));
        assert!(!peers.is_answer(address(1), 8, answer));
        assert!(!others.is_answer(address(1), 7, answer));
    }
}
