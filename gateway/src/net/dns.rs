//! Resolves names for opens, with a limited number of concurrent look-ups.
//!
//! The system's resolver occupies a thread until it has an answer, even if the open was cancelled.
//! Each session has its own limit, so that slow look-ups of one session do not block other
//! sessions. A blocked thread cannot be reclaimed. Therefore a peer gets a further permit only if
//! its sessions together hold fewer permits than are free. A single peer gets half of the permits,
//! the next peer half of the rest, and so on. Each waiting look-up belongs to an unanswered open,
//! so the session's stream table bounds their number, and the dial timeout bounds their time.

use std::collections::BTreeMap;
use std::io::{Error, Result};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, Semaphore};

/// Maximum number of concurrent look-ups of the process.
const LOOKUPS_MAX: usize = 64;
/// Maximum number of concurrent look-ups of a session.
const SESSION_LOOKUPS_MAX: usize = 16;

static LOOKUPS: Places = Places {
    by_peer: Mutex::new(BTreeMap::new()),
    freed: Notify::const_new(),
};

/// The identity that a peer proved; `None`: the peer proved no identity, or this gateway itself
/// resolves a name.
type Peer = Option<Arc<str>>;

/// The permits for look-ups in the process, by peer.
#[derive(Debug)]
struct Places {
    by_peer: Mutex<BTreeMap<Peer, usize>>,
    freed: Notify,
}

/// A permit for one look-up. Dropping the value releases the permit.
#[derive(Debug)]
struct Place {
    of: &'static Places,
    peer: Peer,
}

impl Places {
    /// Waits for a permit.
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

    /// Takes a permit if the peer holds fewer permits than are free.
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
    /// The look-ups of a session whose peer has the identity `peer`.
    pub(crate) fn of(&self, peer: Option<&str>) -> Self {
        Self {
            session: Arc::clone(&self.session),
            peer: peer.map(Into::into),
        }
    }

    /// Resolves `host`.
    ///
    /// # Errors
    /// The resolver's error.
    pub(crate) async fn addresses(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>> {
        let host = host.to_owned();
        self.ask(move || Ok((host.as_str(), port).to_socket_addrs()?.collect()))
            .await
    }

    /// Runs `ask` on a blocking thread. Releases the permit when `ask` returns.
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

    /// The permits belong to the process, so the tests that use all permits run one at a time.
    static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

    /// A look-up that blocks until the sender is dropped.
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
            // The look-up is cancelled, but still occupies its thread.
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
        // Each further peer gets half of the remaining permits.
        for (peer, most) in [("two", LOOKUPS_MAX / 4), ("three", LOOKUPS_MAX / 8)] {
            let other = Lookups::default().of(Some(peer));
            let found = other.addresses("127.0.0.1", 80);
            let found = tokio::time::timeout(Duration::from_secs(60), found).await;
            let address = SocketAddr::from(([127, 0, 0, 1], 80));
            assert_eq!(
                found.expect("the look-up gets a permit").unwrap(),
                [address]
            );
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
