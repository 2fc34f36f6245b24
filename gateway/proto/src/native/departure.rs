//! GOAWAY: whether each side still accepts streams.

use crate::session::StreamId;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GoAway {
    /// GOAWAY must be sent, with the peer's last accepted stream.
    Due(StreamId),
    Sent,
}

/// The GOAWAY of both sides.
#[derive(Debug, Default)]
pub(super) struct Departure {
    ours: Option<GoAway>,
    peers: bool,
}

impl Departure {
    /// Records that this side accepts no more streams. `last` is the last accepted stream. Only the
    /// first call has an effect.
    pub(super) fn begin(&mut self, last: StreamId) {
        self.ours.get_or_insert(GoAway::Due(last));
    }

    /// Whether this side accepts no more streams.
    pub(super) fn has_begun(&self) -> bool {
        self.ours.is_some()
    }

    /// Whether GOAWAY must be sent.
    pub(super) fn is_due(&self) -> bool {
        matches!(self.ours, Some(GoAway::Due(_)))
    }

    /// The last accepted stream, for the GOAWAY that is sent now.
    pub(super) fn take(&mut self) -> Option<StreamId> {
        let Some(GoAway::Due(last)) = self.ours else {
            return None;
        };
        self.ours = Some(GoAway::Sent);
        Some(last)
    }

    /// Records that the peer accepts no more streams. Returns whether this is new.
    pub(super) fn hear(&mut self) -> bool {
        !std::mem::replace(&mut self.peers, true)
    }

    /// Whether the peer accepts no more streams.
    pub(super) fn is_heard(&self) -> bool {
        self.peers
    }
}
