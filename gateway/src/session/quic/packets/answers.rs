//! Whether the peer answers packets.
//!
//! A peer whose process was killed sends nothing, not even a close. The connection ends only after
//! the idle timeout. An exit therefore prefers another session of the same peer before that.

use std::cell::Cell;
use std::time::Duration;

use tokio::time::Instant;

use super::unsent;
use crate::session::quic_streams::Traffic;

/// A peer does not answer if it acknowledges nothing for this long after a packet, and for
/// [`ROUND_TRIPS_MAX`] round trips.
const ANSWER_MAX: Duration = Duration::from_millis(500);
/// See [`ANSWER_MAX`]. The library sends a probe after about three round trips (RFC 9002, section
/// 6.2), so two probes may be lost.
const ROUND_TRIPS_MAX: u32 = 10;

/// A packet that the peer has to acknowledge.
#[derive(Debug, Clone, Copy)]
struct Unanswered {
    since: Instant,
    /// Number of acknowledgements received before the packet.
    acknowledged: u64,
}

#[derive(Debug, Default)]
pub(in crate::session::quic) struct Answers {
    /// Whether this connection sends the session's packets.
    has_turn: Cell<bool>,
    /// The first packet since the last answer; `None`: no packet was sent since then.
    unanswered: Cell<Option<Unanswered>>,
}

impl Answers {
    /// Records that this connection sends the session's packets from now on.
    pub(super) fn take_turn(&self) {
        self.has_turn.set(true);
    }

    /// Records that the library took a packet.
    pub(super) fn sent(&self, traffic: &Traffic) {
        if self.unanswered.get().is_none() {
            self.unanswered.set(Some(Unanswered::now(traffic)));
        }
    }

    /// Whether the peer has answered, or may still answer in time; `None`: another connection sends
    /// the session's packets.
    pub(in crate::session::quic) fn arrive(&self, traffic: &Traffic) -> Option<bool> {
        if !self.has_turn.get() {
            return None;
        }
        let Some(unanswered) = self.unanswered.get() else {
            return Some(true);
        };
        let waited = unanswered.since.elapsed();
        if waited < ANSWER_MAX {
            return Some(true);
        }
        let now = Unanswered::now(traffic);
        if now.acknowledged != unanswered.acknowledged {
            // If the congestion window is full, the library may take no packet before the next answer.
            self.unanswered.set((unsent(traffic) > 0).then_some(now));
            return Some(true);
        }
        Some(waited < traffic.connection.quic().rtt() * ROUND_TRIPS_MAX)
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
