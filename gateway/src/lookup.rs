//! Looks names up for opens, a bounded number at once.
//!
//! The system's resolver holds a thread until it has an answer, even where nobody waits for that any more. Each session
//! has a bound of its own, so that one whose peer asks for names that nobody answers for leaves the others theirs. What
//! waits for its turn is an open without an answer: the session's table and the time-out of its dial bound that.

use std::io::{Error, Result};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use tokio::sync::Semaphore;

/// Look-ups at once, of the process.
const LOOKUPS_MAX: usize = 64;
/// Look-ups at once, of a session.
const SESSION_LOOKUPS_MAX: usize = 16;

static LOOKUPS: Semaphore = Semaphore::const_new(LOOKUPS_MAX);

/// The look-ups of one session.
#[derive(Debug)]
pub(crate) struct Lookups(Arc<Semaphore>);

impl Default for Lookups {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(SESSION_LOOKUPS_MAX)))
    }
}

impl Lookups {
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
        let own = Arc::clone(&self.0).acquire_owned().await;
        let own = own.map_err(Error::other)?;
        let one = LOOKUPS.acquire().await.map_err(Error::other)?;
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
        let (answers, unheard) = channel();
        let unheard = Arc::new(Mutex::new(unheard));
        let slow = Lookups::default();
        for _ in 0..2 * SESSION_LOOKUPS_MAX {
            // Nobody waits for it any more, and it still has its thread.
            let given_up = slow.ask(unanswered(&unheard));
            let _ = tokio::time::timeout(Duration::from_millis(1), given_up).await;
        }
        assert_eq!(slow.0.available_permits(), 0);
        assert!(LOOKUPS.available_permits() >= LOOKUPS_MAX - 2 * SESSION_LOOKUPS_MAX);
        let others = Lookups::default();
        let found = others.addresses("127.0.0.1", 80).await.unwrap();
        assert_eq!(found, [SocketAddr::from(([127, 0, 0, 1], 80))]);
        drop(answers);
        slow.ask(|| Ok(())).await.unwrap();
    }
}
