//! How long a dial waits for the answers of an address.
//!
//! The round trip of a path is unknown before the first answer, and a device on the path can hide
//! it. The first wait is as long as ordinary paths need, so that an entry soon tries another exit.
//! Each unanswered wait doubles the next wait for the same address. An answer that takes long
//! lengthens the next wait, so that further carriers connect at once.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Result};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Maximum number of addresses and steps that are remembered.
const REMEMBERED_MAX: usize = 256;
/// Longest wait for a connection: for a round trip of 10 s and a lost SYN, which the kernel repeats
/// after 1 s and 3 s. While nothing answers, each attempt sends its SYN at once, so long waits
/// would only delay the next SYN.
const CONNECT_MAX: Duration = Duration::from_secs(14);
/// Longest wait for any other step: for a round trip of 10 s, in which a proof takes several.
const STEP_MAX: Duration = Duration::from_secs(85);
/// An answer may take this many times as long as the last answer.
const SPREAD: u32 = 3;

/// A step of a dial.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    /// Connecting to an address.
    Connect,
    /// The answer of a proxy or of a rendezvous.
    Meet,
    /// The peer's proof of identity.
    Proof,
}

impl Step {
    const fn longest(self) -> Duration {
        match self {
            Self::Connect => CONNECT_MAX,
            Self::Meet | Self::Proof => STEP_MAX,
        }
    }
}

/// The waits by step and address, which all workers share.
#[derive(Debug, Clone, Default)]
pub(crate) struct Waits(Arc<Mutex<BTreeMap<(Step, String), Duration>>>);

impl Waits {
    /// Runs `attempt` with the time limit for the step at `address`, which is at least `least`.
    /// `attempt` fails with [`ErrorKind::TimedOut`] at the limit.
    ///
    /// # Errors
    /// The error of `attempt`.
    pub(crate) async fn within<T>(
        &self,
        (step, address): (Step, &str),
        least: Duration,
        attempt: impl AsyncFnOnce(Duration) -> Result<T>,
    ) -> Result<T> {
        let limit = self.limit((step, address), least);
        let begun = Instant::now();
        let done = attempt(limit).await;
        match &done {
            Ok(_) => self.remember((step, address), begun.elapsed() * SPREAD, least),
            Err(error) if error.kind() == ErrorKind::TimedOut && begun.elapsed() >= limit => {
                self.remember((step, address), limit * 2, least);
            }
            Err(_) => {}
        }
        done
    }

    fn limit(&self, (step, address): (Step, &str), least: Duration) -> Duration {
        let waits = self.0.lock();
        let known = waits.get(&(step, address.to_owned()));
        known.map_or(least, |known| least.max(*known))
    }

    fn remember(&self, (step, address): (Step, &str), wait: Duration, least: Duration) {
        let key = (step, address.to_owned());
        let mut waits = self.0.lock();
        if wait <= least {
            waits.remove(&key);
            return;
        }
        if waits.len() >= REMEMBERED_MAX && !waits.contains_key(&key) {
            waits.pop_first();
        }
        waits.insert(key, wait.min(step.longest().max(least)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: Duration = Duration::from_secs(3);

    /// Dials an address whose answer takes `seconds`. Returns the limit, and whether the answer came.
    async fn dial(waits: &Waits, address: &str, seconds: u64) -> (u64, bool) {
        let mut limit = Duration::ZERO;
        let attempt = async |most: Duration| {
            limit = most;
            let answer = tokio::time::sleep(Duration::from_secs(seconds));
            let answered = tokio::time::timeout(most, answer).await;
            answered.map_err(|_| std::io::Error::from(ErrorKind::TimedOut))
        };
        let done = waits.within((Step::Connect, address), LEAST, attempt).await;
        (limit.as_secs(), done.is_ok())
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_far_away_is_reached_in_the_end_and_at_once_from_then_on() {
        let waits = Waits::default();
        assert_eq!(dial(&waits, "far", 10).await, (3, false));
        assert_eq!(dial(&waits, "far", 10).await, (6, false));
        assert_eq!(dial(&waits, "far", 10).await, (12, true));
        assert_eq!(dial(&waits, "far", 10).await, (14, true));
        assert_eq!(dial(&waits, "near", 0).await, (3, true));
        assert_eq!(dial(&waits, "far", 0).await, (14, true));
        assert_eq!(dial(&waits, "far", 3600).await, (3, false));
    }

    #[tokio::test(start_paused = true)]
    async fn only_so_many_addresses_are_remembered() {
        let waits = Waits::default();
        for number in 0..2 * REMEMBERED_MAX {
            dial(&waits, &number.to_string(), 3600).await;
        }
        assert_eq!(waits.0.lock().len(), REMEMBERED_MAX);
    }
}
