//! The phases of a stream's life.

use std::cell::Cell;
use std::io::ErrorKind;

use crate::base::closing::Reason;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cut {
    /// Whether received bytes are still delivered. Yes if the peer or the loss of a carrier cut the
    /// stream. No if this side cut the stream, for example because the local socket failed, or if
    /// the open failed.
    pub(crate) deliver: bool,
    pub(crate) reason: Reason,
    /// The error with which the local socket failed.
    pub(crate) error: Option<ErrorKind>,
    /// Whether the client was told that its request failed.
    pub(crate) told: bool,
}

impl Cut {
    /// A cut after which no bytes are delivered.
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
    /// The open is not answered yet.
    Opening,
    /// Both sides have accepted the stream.
    Open,
    /// No peer took the open, so the client's connection goes to the callback of the open. Another
    /// session may take the connection.
    Returned,
    /// The stream was cut: both of its halves ended early. `opened`: whether both sides have
    /// accepted the stream.
    Cut { cut: Cut, opened: bool },
}

/// The phase of a stream, and which of its halves have ended.
#[derive(Debug)]
pub(crate) struct Life {
    phase: Cell<Phase>,
    /// Whether the local socket has nothing more to send.
    source_ended: Cell<bool>,
    /// Whether the peer has nothing more to send.
    peer_finished: Cell<bool>,
}

impl Life {
    /// A stream whose open is not answered yet. `peer_finished`: whether the peer has nothing more
    /// to send.
    pub(crate) fn new(peer_finished: bool) -> Self {
        Self {
            phase: Cell::new(Phase::Opening),
            source_ended: Cell::new(false),
            peer_finished: Cell::new(peer_finished),
        }
    }

    /// Records that both sides have accepted the stream.
    pub(crate) fn open(&self) {
        self.phase.set(match self.phase.get() {
            Phase::Opening | Phase::Open => Phase::Open,
            Phase::Returned => Phase::Returned,
            Phase::Cut { cut, .. } => Phase::Cut { cut, opened: true },
        });
    }

    /// Cuts the stream. Only the first cut has an effect.
    pub(crate) fn cut(&self, cut: Cut) {
        let opened = match self.phase.get() {
            Phase::Opening => false,
            Phase::Open => true,
            Phase::Returned | Phase::Cut { .. } => return,
        };
        self.phase.set(Phase::Cut { cut, opened });
    }

    /// Returns the connection, since no peer took the open.
    pub(crate) fn give_back(&self) {
        self.phase.set(Phase::Returned);
    }

    pub(crate) fn end_source(&self) {
        self.source_ended.set(true);
    }

    pub(crate) fn finish_peer(&self) {
        self.peer_finished.set(true);
    }

    /// Whether both sides have accepted the stream, including a stream that was cut later.
    pub(crate) fn is_open(&self) -> bool {
        matches!(
            self.phase.get(),
            Phase::Open | Phase::Cut { opened: true, .. }
        )
    }

    pub(crate) fn is_returned(&self) -> bool {
        self.phase.get() == Phase::Returned
    }

    /// Whether the stream was cut or returned.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.phase.get(), Phase::Returned | Phase::Cut { .. })
    }

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

    /// The number of events so far: the answer to the open, and the ends of the halves.
    pub(crate) fn steps(&self) -> u64 {
        let steps = [
            self.is_open(),
            self.source_ended.get(),
            self.peer_finished.get(),
        ];
        steps.iter().filter(|step| **step).count() as u64
    }
}
