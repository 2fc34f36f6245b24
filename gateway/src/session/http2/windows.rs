//! Flow-control windows that follow the bandwidth-delay product of the path.
//!
//! A connection's window is the session's receive memory. A stream's window starts at [`FIRST`].
//! The window doubles while the payload of a round trip exceeds two thirds of the window, as in
//! gRPC (grpc.io, "gRPC-Go performance improvements"). The window grows up to half of the receive
//! memory that no waiting payload occupies. So any number of stalled streams leaves memory for the
//! others.
//!
//! If the bytes in flight exceed the capacity of the path, the excess waits in a queue, and small
//! streams wait behind it. A round trip through that queue takes longer and would justify a still
//! larger window. So the busy streams together get the bytes that the path carries in twice the sum
//! of its shortest round trip and [`QUEUE`]. The busy streams share these bytes equally, as in the
//! native protocol (`gateway/proto/src/session/share.rs`).

use std::time::Duration;

/// Initial window of a stream, in bytes.
pub(super) const FIRST: u32 = 1 << 20;
/// Minimum window, in bytes.
const LEAST: u32 = 64 << 10;
/// Minimum window of a busy stream, in bytes.
const BUSY_LEAST: u64 = 256 << 10;
/// Maximum window, in bytes (RFC 9113, section 6.9.1).
const MOST: u64 = (1 << 31) - 1;
/// Queueing time that keeps both ends of the path busy.
const QUEUE: Duration = Duration::from_micros(500);

#[derive(Debug, Clone, Copy)]
pub(super) struct Trip {
    /// Received payload of all streams, in bytes.
    pub(super) received: u64,
    pub(super) took: Duration,
    /// Shortest known round trip time of the path.
    pub(super) nearest: Duration,
    /// Number of streams that received more than 1/64 of the payload (`BUSY_PART` of `halves.rs`).
    pub(super) busy: u32,
}

impl Trip {
    /// Number of bytes that each busy stream may have in flight.
    fn share(self) -> u64 {
        let nearest = self.nearest.min(self.took) + QUEUE;
        let took = self.took.as_micros().max(1);
        let held = u128::from(self.received) * nearest.as_micros() / took;
        let share = 2 * held / u128::from(self.busy.max(1));
        u64::try_from(share).unwrap_or(MOST).max(BUSY_LEAST)
    }
}

#[derive(Debug)]
pub(super) struct Windows {
    connection: u32,
    stream: u32,
}

impl Windows {
    /// `memory`: number of received bytes that the session may hold before local ends take them.
    pub(super) fn new(memory: u64) -> Self {
        let connection = memory.clamp(LEAST.into(), MOST) as u32;
        Self {
            connection,
            stream: FIRST.min((connection / 2).max(LEAST)),
        }
    }

    /// Window of all streams together, in bytes.
    pub(super) const fn connection(&self) -> u32 {
        self.connection
    }

    /// Window of each stream, in bytes.
    pub(super) const fn stream(&self) -> u32 {
        self.stream
    }

    /// Adapts the windows after a round trip, while local ends have not taken `held` bytes. Returns
    /// the new window of a stream if the window has changed.
    pub(super) fn fit(&mut self, trip: Trip, held: u64) -> Option<u32> {
        let before = self.stream;
        if trip.received > u64::from(self.stream) / 3 * 2 {
            self.stream = self.stream.saturating_mul(2);
        }
        // A round trip reduces the window by at most a half.
        let share = trip.share().max(u64::from(before) / 2).min(MOST) as u32;
        let free = u64::from(self.connection).saturating_sub(held);
        let most = (free / 2).max(LEAST.into()) as u32;
        // If the peer uses little of the window, the window needs no change. Each change costs a
        // SETTINGS frame, and some peers limit the number of these frames.
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

    /// A round trip on a path of 100 ms.
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
        // 1.6 GB/s on a path of 0.1 ms. The round trips take 20 ms because 32 MB are in flight.
        let queued = Trip {
            received: 32_000_000,
            took: Duration::from_millis(20),
            nearest: Duration::from_micros(100),
            busy: 1,
        };
        for _ in 0..10 {
            windows.fit(queued, 0);
        }
        assert_eq!(windows.stream(), 2 * 960_000);
        for _ in 0..10 {
            windows.fit(Trip { busy: 3, ..queued }, 0);
        }
        assert_eq!(windows.stream(), 2 * 320_000);
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
