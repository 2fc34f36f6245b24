//! Whether the peer answers packets.
//!
//! A peer whose process was killed sends nothing, not even a close. The connection ends only after
//! the idle timeout. Until then, packets should take another session of the same peer, if there is
//! one.

use std::cell::Cell;
use std::time::Duration;

use tokio::time::Instant;

use crate::session::quic_streams::Traffic;

/// A peer does not answer if it sends nothing after a packet, for both this time and
/// [`ROUND_TRIPS_MAX`] round trips.
const ANSWER_MAX: Duration = Duration::from_millis(500);
/// See [`ANSWER_MAX`]. The library sends a probe after about three round trips (RFC 9002, section
/// 6.2), so two probes may be lost.
const ROUND_TRIPS_MAX: u32 = 10;

/// A sent packet that the peer has to acknowledge, and the number of datagrams received before it.
#[derive(Debug, Clone, Copy)]
struct Unanswered {
    since: Instant,
    received: u64,
}

#[derive(Debug, Default)]
pub(in crate::session::quic) struct Answers {
    /// The first packet since the peer last answered; `None`: no packet was sent since.
    unanswered: Cell<Option<Unanswered>>,
}

impl Answers {
    /// Records that the library took a packet.
    pub(super) fn sent(&self, traffic: &Traffic) {
        if self.unanswered.get().is_none() {
            self.unanswered.set(Some(Unanswered {
                since: Instant::now(),
                received: received(traffic),
            }));
        }
    }

    /// Whether the peer has answered, or may still answer in time.
    pub(in crate::session::quic) fn arrive(&self, traffic: &Traffic) -> bool {
        let Some(Unanswered {
            since,
            received: before,
        }) = self.unanswered.get()
        else {
            return true;
        };
        let waited = since.elapsed();
        if waited < ANSWER_MAX {
            return true;
        }
        if received(traffic) != before {
            self.unanswered.set(None);
            return true;
        }
        waited < traffic.connection.quic().rtt() * ROUND_TRIPS_MAX
    }
}

/// Number of UDP datagrams of the peer.
fn received(traffic: &Traffic) -> u64 {
    traffic.connection.quic().stats().udp_rx.datagrams
}
