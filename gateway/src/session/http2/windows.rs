//! How much a peer may send: windows that follow the bandwidth-delay product of the path.
//!
//! A connection's window is the session's memory. A stream's begins at [`FIRST`] and is doubled while a round trip brings
//! more than two thirds of it, as gRPC does (grpc.io, "gRPC-Go performance improvements"), up to its part of the memory: half
//! of what others do not hold, so that no number of stalled streams keeps one that is not from its own.

/// What a stream may send at first.
pub(super) const FIRST: u32 = 1 << 20;
/// The least.
const LEAST: u32 = 64 << 10;
/// RFC 9113, section 6.9.1.
const MOST: u64 = (1 << 31) - 1;

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

    /// A round trip brought `received` bytes, and local ends have not taken `held`. Returns what a stream may send from now
    /// on, where that is something else.
    pub(super) fn fit(&mut self, received: u64, held: u64) -> Option<u32> {
        let before = self.stream;
        if received > u64::from(self.stream) / 3 * 2 {
            self.stream = self.stream.saturating_mul(2);
        }
        let free = u64::from(self.connection).saturating_sub(held);
        let most = (free / 2).max(LEAST.into()) as u32;
        self.stream = self.stream.min(most);
        (self.stream != before).then_some(self.stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_doubled_while_round_trips_fill_it_up_to_half_of_what_is_free() {
        let mut windows = Windows::new(64 << 20);
        assert_eq!((windows.connection(), windows.stream()), (64 << 20, FIRST));
        assert_eq!(windows.fit(u64::from(FIRST) / 2, 0), None);
        assert_eq!(windows.fit(u64::from(FIRST), 0), Some(2 * FIRST));
        for _ in 0..10 {
            windows.fit(1 << 30, 0);
        }
        assert_eq!(windows.stream(), 32 << 20);
        assert_eq!(windows.fit(0, 48 << 20), Some(8 << 20));
        assert_eq!(windows.fit(0, 64 << 20), Some(LEAST));
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
