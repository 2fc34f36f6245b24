//! The numbers of streams, and how many streams each side may open.

use super::codec::OFFSET_MAX;
use crate::session::StreamId;

/// The numbers that both sides have used.
#[derive(Debug)]
pub(super) struct StreamIds {
    /// The next number of this side. The dialler's numbers are even, the acceptor's are odd.
    next: u64,
    /// Number of streams in the table that this side opened.
    ours: usize,
    /// The peer's last stream; 0 before the first.
    peer_last: u64,
    /// Number of the peer's streams that have left the table.
    peer_gone: u64,
    /// Advertised total number of streams that the peer may open.
    advertised: u64,
}

impl StreamIds {
    /// `first` is this side's first number. `advertised` is the number of streams that the peer may
    /// open.
    pub(super) fn new(first: u64, advertised: u64) -> Self {
        Self {
            next: first,
            ours: 0,
            peer_last: 0,
            peer_gone: 0,
            advertised,
        }
    }

    /// Leaves this side `count` numbers.
    pub(super) fn leave(&mut self, count: u64) {
        let last = OFFSET_MAX - (OFFSET_MAX - self.next) % 2;
        self.next = last + 2 - 2 * count;
    }

    pub(super) fn is_ours(&self, stream: StreamId) -> bool {
        stream.0 % 2 == self.next % 2
    }

    /// Number of streams in the table that this side opened.
    pub(super) fn ours(&self) -> usize {
        self.ours
    }

    /// Whether this side has used all its numbers.
    pub(super) fn is_used_up(&self) -> bool {
        self.next > OFFSET_MAX
    }

    /// Takes the next number of this side.
    pub(super) fn open(&mut self) -> StreamId {
        let stream = StreamId(self.next);
        self.next += 2;
        self.ours += 1;
        stream
    }

    /// Whether the peer may open `stream` next.
    pub(super) fn is_next_of_peer(&self, stream: StreamId) -> bool {
        !self.is_ours(stream) && stream.0 > self.peer_last
    }

    /// Advertised total number of streams that the peer may open.
    pub(super) fn advertised(&self) -> u64 {
        self.advertised
    }

    /// Whether the peer may open another stream. `all` is the number of streams in the table.
    pub(super) fn has_room_for_peer(&self, all: usize) -> bool {
        self.peer_gone + ((all - self.ours) as u64) < self.advertised
    }

    /// Records that the peer opened `stream`.
    pub(super) fn opened_by_peer(&mut self, stream: StreamId) {
        self.peer_last = stream.0;
    }

    /// The peer's last stream.
    pub(super) fn peer_last(&self) -> StreamId {
        StreamId(self.peer_last)
    }

    /// The last stream of the side that opens `stream`. 0: the side has opened no stream.
    pub(super) fn last_like(&self, stream: StreamId) -> u64 {
        if self.is_ours(stream) {
            self.next.saturating_sub(2)
        } else {
            self.peer_last
        }
    }

    /// Records that `stream` has left the table.
    pub(super) fn close(&mut self, stream: StreamId) {
        if self.is_ours(stream) {
            self.ours -= 1;
        } else {
            self.peer_gone += 1;
        }
    }

    /// The new total number of streams that the peer may open, if a frame for this change is
    /// worthwhile. At most `streams_max` streams may be in the table.
    pub(super) fn due(&self, streams_max: u64) -> Option<u64> {
        let limit = self.peer_gone + streams_max;
        let step = (streams_max / 8).max(1);
        (limit - self.advertised >= step).then_some(limit)
    }

    /// Records `limit` as the advertised total number of streams that the peer may open.
    pub(super) fn advertise(&mut self, limit: u64) {
        self.advertised = limit;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_side_uses_its_numbers_up_to_the_last_one() {
        for first in [1, 2] {
            let mut ids = StreamIds::new(first, 10);
            ids.leave(2);
            assert!(!ids.is_used_up());
            let opened = [ids.open().0, ids.open().0];
            assert_eq!(opened.map(|id| id % 2), [first % 2; 2]);
            assert_eq!(opened[0] + 2, opened[1]);
            assert!(opened[1] <= OFFSET_MAX && opened[1] + 2 > OFFSET_MAX);
            assert!(ids.is_used_up());
        }
    }
}
