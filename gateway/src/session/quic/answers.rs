//! Whether the peer answers packets and opens.
//!
//! A peer whose process was killed sends nothing, not even a close. The connection ends only after
//! the idle timeout. An exit therefore prefers another session of the same peer before that.

use std::cell::Cell;

use tokio::time::Instant;

use crate::base::path::{ANSWER_MAX, ROUND_TRIPS_MAX};
use crate::session::quic_streams::Traffic;

/// A packet or an open that the peer has to acknowledge.
#[derive(Debug, Clone, Copy)]
struct Unanswered {
    since: Instant,
    /// Number of acknowledgements received before it.
    acknowledged: u64,
}

#[derive(Debug, Default)]
pub(super) struct Answers {
    /// The first packet or open since the last answer; `None`: none was sent since then.
    unanswered: Cell<Option<Unanswered>>,
}

impl Answers {
    /// Records that the library took a packet or an open.
    pub(super) fn sent(&self, traffic: &Traffic) {
        if self.unanswered.get().is_none() {
            self.unanswered.set(Some(Unanswered::now(traffic)));
        }
    }

    /// Whether the peer has answered, or may still answer in time.
    pub(super) fn arrive(&self, traffic: &Traffic) -> bool {
        let Some(unanswered) = self.unanswered.get() else {
            return true;
        };
        let waited = unanswered.since.elapsed();
        if waited < ANSWER_MAX {
            return true;
        }
        let now = Unanswered::now(traffic);
        if now.acknowledged != unanswered.acknowledged {
            // If the congestion window is full, the library may take no packet before the next answer.
            let is_full = traffic.connection.packets_unsent() > 0;
            self.unanswered.set(is_full.then_some(now));
            return true;
        }
        waited < traffic.connection.quic().rtt() * ROUND_TRIPS_MAX
    }
}

impl Unanswered {
    fn now(traffic: &Traffic) -> Self {
        Self {
            since: Instant::now(),
            acknowledged: traffic.connection.quic().stats().frame_rx.acks,
        }
    }
}
