//! Whether either side takes no more streams.

use crate::session::StreamId;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GoAway {
    /// The last stream that was taken is this one of the peer's.
    Due(StreamId),
    Sent,
}

/// GOAWAY of both sides.
#[derive(Debug, Default)]
pub(super) struct Departure {
    ours: Option<GoAway>,
    peers: bool,
}

impl Departure {
    /// This side takes no more; `last` is the last one that it took. The first one counts.
    pub(super) fn begin(&mut self, last: StreamId) {
        self.ours.get_or_insert(GoAway::Due(last));
    }

    /// Whether this side takes no more.
    pub(super) fn has_begun(&self) -> bool {
        self.ours.is_some()
    }

    /// Whether GOAWAY is to be said.
    pub(super) fn is_due(&self) -> bool {
        matches!(self.ours, Some(GoAway::Due(_)))
    }

    /// Says it: with the last stream that was taken.
    pub(super) fn take(&mut self) -> Option<StreamId> {
        let Some(GoAway::Due(last)) = self.ours else {
            return None;
        };
        self.ours = Some(GoAway::Sent);
        Some(last)
    }

    /// The peer takes no more. Returns whether that is news.
    pub(super) fn hear(&mut self) -> bool {
        !std::mem::replace(&mut self.peers, true)
    }

    /// Whether the peer takes no more.
    pub(super) fn is_heard(&self) -> bool {
        self.peers
    }
}
