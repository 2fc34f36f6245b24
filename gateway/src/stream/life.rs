//! Where a stream is in its life.

use std::cell::Cell;
use std::io::ErrorKind;

use crate::base::closing::Reason;

/// Why a stream was cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cut {
    /// Whether what came is still delivered: it was the peer, or the carrier. Else the local socket
    /// failed, nothing happened on it, or the open failed.
    pub(crate) deliver: bool,
    pub(crate) reason: Reason,
    /// What the local socket failed with.
    pub(crate) error: Option<ErrorKind>,
    /// The client was answered that nothing comes of its request.
    pub(crate) told: bool,
}

impl Cut {
    /// Nothing is delivered any more.
    pub(crate) fn at_once(reason: Reason) -> Self {
        Self {
            deliver: false,
            reason,
            error: None,
            told: false,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The open is not answered.
    Opening,
    /// Both sides agree on it.
    Open,
    /// Nobody took the open: the connection goes back to whom it came from.
    Returned,
    /// Both halves are over, before their ends. `opened`: both sides had agreed on it.
    Cut { cut: Cut, opened: bool },
}

/// The phase of a stream, and which of its halves have come to their ends.
#[derive(Debug)]
pub(crate) struct Life {
    phase: Cell<Phase>,
    /// The local socket has no more to send.
    source_ended: Cell<bool>,
    /// The peer has no more to send.
    peer_finished: Cell<bool>,
}

impl Life {
    /// Its open is not answered. `peer_finished`: the peer has no more to send.
    pub(crate) fn new(peer_finished: bool) -> Self {
        Self {
            phase: Cell::new(Phase::Opening),
            source_ended: Cell::new(false),
            peer_finished: Cell::new(peer_finished),
        }
    }

    /// Both sides agree on it.
    pub(crate) fn open(&self) {
        self.phase.set(match self.phase.get() {
            Phase::Opening | Phase::Open => Phase::Open,
            Phase::Returned => Phase::Returned,
            Phase::Cut { cut, .. } => Phase::Cut { cut, opened: true },
        });
    }

    /// The first cut counts.
    pub(crate) fn cut(&self, cut: Cut) {
        let opened = match self.phase.get() {
            Phase::Opening => false,
            Phase::Open => true,
            Phase::Returned | Phase::Cut { .. } => return,
        };
        self.phase.set(Phase::Cut { cut, opened });
    }

    /// Nobody took the open.
    pub(crate) fn give_back(&self) {
        self.phase.set(Phase::Returned);
    }

    pub(crate) fn end_source(&self) {
        self.source_ended.set(true);
    }

    pub(crate) fn finish_peer(&self) {
        self.peer_finished.set(true);
    }

    /// Whether both sides agree on it, or did before it was cut.
    pub(crate) fn is_open(&self) -> bool {
        matches!(
            self.phase.get(),
            Phase::Open | Phase::Cut { opened: true, .. }
        )
    }

    pub(crate) fn is_returned(&self) -> bool {
        self.phase.get() == Phase::Returned
    }

    /// Whether nothing of it goes on: it was cut, or is returned.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.phase.get(), Phase::Returned | Phase::Cut { .. })
    }

    /// Why it was cut.
    pub(crate) fn why_cut(&self) -> Option<Cut> {
        match self.phase.get() {
            Phase::Cut { cut, .. } => Some(cut),
            Phase::Opening | Phase::Open | Phase::Returned => None,
        }
    }

    pub(crate) fn has_source_ended(&self) -> bool {
        self.source_ended.get()
    }

    pub(crate) fn has_peer_finished(&self) -> bool {
        self.peer_finished.get()
    }

    /// How many steps it has come: the answer to its open, and the ends of its halves.
    pub(crate) fn steps(&self) -> u64 {
        let steps = [
            self.is_open(),
            self.source_ended.get(),
            self.peer_finished.get(),
        ];
        steps.iter().filter(|step| **step).count() as u64
    }
}
