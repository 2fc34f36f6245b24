//! Looks names up for opens, a bounded number at once.
//!
//! The system's resolver holds a thread until it has an answer, even where nobody waits for that any more. Each session
//! has a bound of its own, so that one whose peer asks for names that nobody answers for leaves the others theirs. A
//! thread cannot be taken back, so a peer, with all of its sessions, never has more look-ups than there are places left:
//! alone it has half of them, the next peer half of what is left, and so on. What waits for its turn is an open without an
//! answer: the session's table and the time-out of its dial bound that.

use std::collections::BTreeMap;
use std::io::{Error, Result};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, Semaphore};

/// Look-ups at once, of the process.
const LOOKUPS_MAX: usize = 64;
/// Look-ups at once, of a session.
const SESSION_LOOKUPS_MAX: usize = 16;

static LOOKUPS: Places = Places {
    by_peer: Mutex::new(BTreeMap::new()),
    freed: Notify::const_new(),
};

/// The identity that a peer proved; `None`: it proved nothing, or it is this gateway that asks.
type Peer = Option<Arc<str>>;

/// The look-ups of the process, by the peers that they are for.
#[derive(Debug)]
struct Places {
    by_peer: Mutex<BTreeMap<Peer, usize>>,
    freed: Notify,
}

/// One look-up; its place is free again when dropped.
#[derive(Debug)]
struct Place {
    of: &'static Places,
    peer: Peer,
}

impl Places {
    /// Waits for a place.
    async fn take(&'static self, peer: &Peer) -> Place {
        loop {
            let mut freed = std::pin::pin!(self.freed.notified());
            freed.as_mut().enable();
            if self.try_take(peer) {
                break;
            }
            freed.await;
        }
        Place {
            of: self,
            peer: peer.clone(),
        }
    }

    /// Takes a place if the peer then has no more than are left.
    fn try_take(&self, peer: &Peer) -> bool {
        let mut by_peer = self.by_peer();
        let left = LOOKUPS_MAX - by_peer.values().sum::<usize>();
        let own = by_peer.get(peer).copied().unwrap_or_default();
        let takes = own < left;
        if takes {
            by_peer.insert(peer.clone(), own + 1);
        }
        takes
    }

    fn by_peer(&self) -> MutexGuard<'_, BTreeMap<Peer, usize>> {
        self.by_peer.lock()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut by_peer = self.of.by_peer();
        if let Some(count) = by_peer.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                by_peer.remove(&self.peer);
            }
        }
        drop(by_peer);
        self.of.freed.notify_waiters();
    }
}

/// The look-ups of one session.
#[derive(Debug)]
pub(crate) struct Lookups {
    session: Arc<Semaphore>,
    peer: Peer,
}

impl Default for Lookups {
    fn default() -> Self {
        Self {
            session: Arc::new(Semaphore::new(SESSION_LOOKUPS_MAX)),
            peer: None,
        }
    }
}

impl Lookups {
    /// The same, for a peer that proved this identity.
    pub(crate) fn of(&self, peer: Option<&str>) -> Self {
        Self {
            session: Arc::clone(&self.session),
            peer: peer.map(Into::into),
        }
    }

    /// The addresses of `host`.
    ///
    /// # Errors
    /// The resolver's.
    pub(crate) async fn addresses(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>> {
        let host = host.to_owned();
        self.ask(move || Ok((host.as_str(), port).to_socket_addrs()?.collect()))
            .await
    }

    /// Runs `ask` on a thread of its own; its place is free again once it returns.
    async fn ask<T: Send + 'static>(
        &self,
        ask: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let own = Arc::clone(&self.session).acquire_owned().await;
        let own = own.map_err(Error::other)?;
        let one = LOOKUPS.take(&self.peer).await;
        let asked = tokio::task::spawn_blocking(move || {
            let _places = (own, one);
            ask()
        });
        asked.await.map_err(Error::other)?
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, channel};
    use std::time::Duration;

    use super::*;

    /// The places are the process's, so one test at a time fills them.
    static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

    /// A look-up that has begun waits until the sender is dropped.
    fn unanswered(
        answer: &Arc<Mutex<Receiver<()>>>,
    ) -> impl FnOnce() -> Result<()> + Send + 'static {
        let answer = Arc::clone(answer);
        move || {
            let _ = answer.lock().unwrap().recv();
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_session_whose_names_nobody_answers_for_has_its_places_and_leaves_the_others_theirs()
    {
        let _alone = ALONE.lock().await;
        let (answers, unheard) = channel();
        let unheard = Arc::new(Mutex::new(unheard));
        let slow = Lookups::default();
        for _ in 0..2 * SESSION_LOOKUPS_MAX {
            // Nobody waits for it any more, and it still has its thread.
            let given_up = slow.ask(unanswered(&unheard));
            let _ = tokio::time::timeout(Duration::from_millis(1), given_up).await;
        }
        assert_eq!(slow.session.available_permits(), 0);
        let taken: usize = LOOKUPS.by_peer().values().sum();
        assert!(taken <= 2 * SESSION_LOOKUPS_MAX, "{taken}");
        let others = Lookups::default();
        let found = others.addresses("127.0.0.1", 80).await.unwrap();
        assert_eq!(found, [SocketAddr::from(([127, 0, 0, 1], 80))]);
        drop(answers);
        slow.ask(|| Ok(())).await.unwrap();
    }

    #[tokio::test]
    async fn a_peer_with_many_sessions_leaves_other_peers_their_look_ups() {
        let _alone = ALONE.lock().await;
        let (answers, unheard) = channel();
        let unheard = Arc::new(Mutex::new(unheard));
        for _ in 0..2 * LOOKUPS_MAX / SESSION_LOOKUPS_MAX {
            let slow = Lookups::default().of(Some("one"));
            for _ in 0..SESSION_LOOKUPS_MAX {
                let given_up = slow.ask(unanswered(&unheard));
                let _ = tokio::time::timeout(Duration::from_millis(1), given_up).await;
            }
        }
        // Each further peer has as many as it leaves.
        for (peer, most) in [("two", LOOKUPS_MAX / 4), ("three", LOOKUPS_MAX / 8)] {
            let other = Lookups::default().of(Some(peer));
            let found = other.addresses("127.0.0.1", 80);
            let found = tokio::time::timeout(Duration::from_secs(60), found).await;
            let address = SocketAddr::from(([127, 0, 0, 1], 80));
            assert_eq!(found.expect("it finds a place").unwrap(), [address]);
            for _ in 0..most {
                let given_up = other.ask(unanswered(&unheard));
                let _ = tokio::time::timeout(Duration::from_millis(1), given_up).await;
            }
        }
        drop(answers);
        let one = Lookups::default().of(Some("one"));
        one.ask(|| Ok(())).await.unwrap();
    }
}
