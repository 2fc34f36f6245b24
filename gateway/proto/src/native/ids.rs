//! The numbers of streams, and how many each side may open.

use super::codec::OFFSET_MAX;
use crate::session::StreamId;

/// The numbers that both sides have used up.
#[derive(Debug)]
pub(super) struct StreamIds {
    /// The next one of ours. The dialler's are even, the acceptor's odd.
    next: u64,
    /// How many of ours are in the table.
    ours: usize,
    /// The peer's last stream, 0 before the first.
    peer_last: u64,
    /// The peer's streams that are gone.
    peer_gone: u64,
    /// How many the peer may open in all, as it knows.
    advertised: u64,
}

impl StreamIds {
    /// `first`: of ours. The peer knows that it may open `advertised`.
    pub(super) fn new(first: u64, advertised: u64) -> Self {
        Self {
            next: first,
            ours: 0,
            peer_last: 0,
            peer_gone: 0,
            advertised,
        }
    }

    pub(super) fn is_ours(&self, stream: StreamId) -> bool {
        stream.0 % 2 == self.next % 2
    }

    /// How many of ours are in the table.
    pub(super) fn ours(&self) -> usize {
        self.ours
    }

    /// Whether none is left of ours.
    pub(super) fn is_used_up(&self) -> bool {
        self.next > OFFSET_MAX
    }

    /// The next one of ours.
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

    /// How many the peer may open in all, as it knows.
    pub(super) fn advertised(&self) -> u64 {
        self.advertised
    }

    /// Whether the peer may open one more, where `all` streams are in the table.
    pub(super) fn has_room_for_peer(&self, all: usize) -> bool {
        self.peer_gone + ((all - self.ours) as u64) < self.advertised
    }

    /// The peer opens `stream`.
    pub(super) fn opened_by_peer(&mut self, stream: StreamId) {
        self.peer_last = stream.0;
    }

    /// The peer's last one.
    pub(super) fn peer_last(&self) -> StreamId {
        StreamId(self.peer_last)
    }

    /// The last one of the side whose `stream` is; 0: none.
    pub(super) fn last_like(&self, stream: StreamId) -> u64 {
        if self.is_ours(stream) {
            self.next.saturating_sub(2)
        } else {
            self.peer_last
        }
    }

    /// `stream` is gone from the table.
    pub(super) fn close(&mut self, stream: StreamId) {
        if self.is_ours(stream) {
            self.ours -= 1;
        } else {
            self.peer_gone += 1;
        }
    }

    /// How many the peer may open in all, where `streams_max` may be in the table, once that is worth a frame.
    pub(super) fn due(&self, streams_max: u64) -> Option<u64> {
        let limit = self.peer_gone + streams_max;
        let step = (streams_max / 8).max(1);
        (limit - self.advertised >= step).then_some(limit)
    }

    /// The peer is told that it may open `limit` in all.
    pub(super) fn advertise(&mut self, limit: u64) {
        self.advertised = limit;
    }
}
