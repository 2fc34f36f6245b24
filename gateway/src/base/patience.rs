//! Time limits of peers that have not proved their identity.
//!
//! A limit follows the round trip of the path ([`patience`]). A device on the path may end the
//! connections of both sides, and so hide the round trip. While few peers are unauthenticated, the
//! limit is therefore longer ([`HIDDEN_MORE`]). Under a flood, only the strict limit applies.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use muxtunnel_proto::patience;
use tokio::time::{Instant, timeout_at};

use crate::base::handshake_limiter::HandshakeLimiter;

/// The time beyond the strict limit for a peer whose round trip may be hidden: three round trips of
/// 10 s.
const HIDDEN_MORE: Duration = Duration::from_secs(30);
/// Interval between two checks whether peers are few.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The time limit of one step of a peer.
#[derive(Debug, Clone)]
pub(crate) struct Patience {
    begun: Instant,
    /// The strict limit.
    limit: Duration,
    /// Set if the limit is longer while few peers are unauthenticated.
    limiter: Option<Arc<HandshakeLimiter>>,
}

/// The step was not complete after this time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Elapsed(pub(crate) Duration);

impl Patience {
    /// A limit of `limit` from now on.
    pub(crate) fn fixed(limit: Duration) -> Self {
        Self {
            begun: Instant::now(),
            limit,
            limiter: None,
        }
    }

    /// The limit of a peer that dialled this side. `ordinary` is the limit on ordinary paths.
    /// `round_trip` is the measured round trip; `None`: unknown.
    pub(crate) fn with_stranger(
        ordinary: Duration,
        round_trip: Option<Duration>,
        limiter: &Arc<HandshakeLimiter>,
    ) -> Self {
        Self {
            limiter: Some(Arc::clone(limiter)),
            ..Self::fixed(patience(ordinary, round_trip.unwrap_or_default()))
        }
    }

    /// Runs `step` within the limit. `step` remains in the caller's future, since there are
    /// thousands of such futures.
    ///
    /// # Errors
    /// [`Elapsed`]: the step took too long.
    pub(crate) async fn within<T>(
        &self,
        mut step: Pin<&mut impl Future<Output = T>>,
    ) -> Result<T, Elapsed> {
        let mut until = self.begun + self.limit;
        loop {
            if let Ok(done) = timeout_at(until, step.as_mut()).await {
                return Ok(done);
            }
            let now = Instant::now();
            let most = self.begun + self.limit + HIDDEN_MORE;
            let is_calm = self.limiter.as_ref().is_some_and(|one| one.is_calm());
            if !is_calm || now >= most {
                return Err(Elapsed(now - self.begun));
            }
            until = most.min(now + CHECK_INTERVAL);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::pin::pin;

    use super::*;
    use crate::base::handshake_limiter::EarlyDrop;

    const STRICT: Duration = Duration::from_secs(5);

    async fn seconds(round_trip: u64, peers: usize) -> u64 {
        let limiter = HandshakeLimiter::new(256, EarlyDrop::Off);
        let _permits: Vec<_> = (0..peers).map(|_| limiter.enter(None).unwrap()).collect();
        let round_trip = Some(Duration::from_secs(round_trip));
        let patience = Patience::with_stranger(STRICT, round_trip, &limiter);
        let silent = patience.within(pin!(pending::<()>())).await;
        silent.unwrap_err().0.as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn many_strangers_have_the_strict_limit_and_few_may_hide_their_round_trip() {
        assert_eq!(seconds(0, 33).await, 5);
        assert_eq!(seconds(0, 32).await, 35);
        assert_eq!(seconds(6, 33).await, 49);
        assert_eq!(seconds(3600, 33).await, 81);
    }
}
