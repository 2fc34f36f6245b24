//! How much a peer may send: windows that follow the bandwidth-delay product of the path.
//!
//! A connection's window is the session's memory. A stream's begins at [`FIRST`] and is doubled while a round trip brings
//! more than two thirds of it, as gRPC does (grpc.io, "gRPC-Go performance improvements"), up to its part of the memory: half
//! of what others do not hold, so that no number of stalled streams keeps one that is not from its own.
//!
//! What is on its way beyond what the path holds waits in front of small streams, and a round trip that waits there itself
//! asks for still more. So streams that are busy together have no more than twice what the path holds in its nearest round
//! trip and [`QUEUE`], in equal parts, as those of the native protocol do (`gateway/proto/src/session/share.rs`).

use std::time::Duration;

/// What a stream may send at first.
pub(super) const FIRST: u32 = 1 << 20;
/// The least.
const LEAST: u32 = 64 << 10;
/// The least of a busy stream.
const BUSY_LEAST: u64 = 256 << 10;
/// RFC 9113, section 6.9.1.
const MOST: u64 = (1 << 31) - 1;
/// How long payload may wait on its way so that its ends are never idle.
const QUEUE: Duration = Duration::from_millis(1);

/// What a round trip brought.
#[derive(Debug, Clone, Copy)]
pub(super) struct Trip {
    /// Payload of all streams, bytes.
    pub(super) received: u64,
    /// How long it took.
    pub(super) took: Duration,
    /// How long the shortest takes that the path knows of.
    pub(super) nearest: Duration,
    /// Streams that brought much of it.
    pub(super) busy: u32,
}

impl Trip {
    /// What each busy stream may have on its way, bytes.
    fn share(self) -> u64 {
        let nearest = self.nearest.min(self.took) + QUEUE;
        let took = self.took.as_micros().max(1);
        let held = u128::from(self.received) * nearest.as_micros() / took;
        let share = 2 * held / u128::from(self.busy.max(1));
        u64::try_from(share).unwrap_or(MOST).max(BUSY_LEAST)
    }
}

/// The windows of one connection.
#[derive(Debug)]
pub(super) struct Windows {
    connection: u32,
    stream: u32,
}

impl Windows {
    /// `memory`: bytes that the session may receive and not pass on.
    pub(super) fn new(memory: u64) -> Self {
        let connection = memory.clamp(LEAST.into(), MOST) as u32;
        Self {
            connection,
            stream: FIRST.min((connection / 2).max(LEAST)),
        }
    }

    /// Of all streams together.
    pub(super) const fn connection(&self) -> u32 {
        self.connection
    }

    /// Of each.
    pub(super) const fn stream(&self) -> u32 {
        self.stream
    }

    /// After a round trip; local ends have not taken `held` bytes. Returns what a stream may send from now on, where that is
    /// something else.
    pub(super) fn fit(&mut self, trip: Trip, held: u64) -> Option<u32> {
        let before = self.stream;
        if trip.received > u64::from(self.stream) / 3 * 2 {
            self.stream = self.stream.saturating_mul(2);
        }
        // One round trip halves it at most.
        let share = trip.share().max(u64::from(before) / 2).min(MOST) as u32;
        let free = u64::from(self.connection).saturating_sub(held);
        let most = (free / 2).max(LEAST.into()) as u32;
        // A window that is not used holds nothing up. Each change is a frame, which some peers count.
        let is_used = trip.received > u64::from(before) / 2;
        if is_used && (share < before / 4 * 3 || self.stream > before) {
            self.stream = self.stream.min(share);
        }
        self.stream = self.stream.min(most);
        (self.stream != before).then_some(self.stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a path of 100 ms.
    fn trip(received: u64) -> Trip {
        Trip {
            received,
            took: Duration::from_millis(100),
            nearest: Duration::from_millis(100),
            busy: 1,
        }
    }

    #[test]
    fn a_window_is_doubled_while_round_trips_fill_it_up_to_half_of_what_is_free() {
        let mut windows = Windows::new(64 << 20);
        assert_eq!((windows.connection(), windows.stream()), (64 << 20, FIRST));
        assert_eq!(windows.fit(trip(u64::from(FIRST) / 2), 0), None);
        assert_eq!(windows.fit(trip(u64::from(FIRST)), 0), Some(2 * FIRST));
        for _ in 0..10 {
            windows.fit(trip(1 << 30), 0);
        }
        assert_eq!(windows.stream(), 32 << 20);
        assert_eq!(windows.fit(trip(1 << 30), 48 << 20), Some(8 << 20));
        assert_eq!(windows.fit(trip(1 << 30), 64 << 20), Some(LEAST));
    }

    #[test]
    fn what_waits_on_its_way_asks_for_no_more() {
        let mut windows = Windows::new(256 << 20);
        // 1.6 GB/s on a path of 0.1 ms, whose round trips take 20 ms since 32 MB are on their way.
        let queued = Trip {
            received: 32_000_000,
            took: Duration::from_millis(20),
            nearest: Duration::from_micros(100),
            busy: 1,
        };
        for _ in 0..10 {
            windows.fit(queued, 0);
        }
        assert_eq!(windows.stream(), 2 * 1_760_000);
        for _ in 0..10 {
            windows.fit(Trip { busy: 10, ..queued }, 0);
        }
        assert_eq!(windows.stream(), 2 * 176_000);
        for _ in 0..20 {
            windows.fit(
                Trip {
                    busy: 100,
                    ..queued
                },
                0,
            );
        }
        assert_eq!(u64::from(windows.stream()), BUSY_LEAST);
    }

    #[test]
    fn a_window_that_is_not_used_stays() {
        let mut windows = Windows::new(64 << 20);
        for _ in 0..10 {
            windows.fit(trip(1 << 30), 0);
        }
        assert_eq!(windows.fit(trip(1000), 0), None);
        let mut windows = Windows::new(64 << 20);
        assert_eq!(windows.fit(Trip { busy: 0, ..trip(0) }, 0), None);
    }

    #[test]
    fn little_memory_has_a_small_window() {
        let windows = Windows::new(1 << 20);
        assert_eq!(
            (windows.connection(), windows.stream()),
            (1 << 20, 512 << 10)
        );
        assert_eq!(Windows::new(u64::MAX).connection(), MOST as u32);
    }
}
