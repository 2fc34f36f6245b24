//! Batches that a session may have to retransmit.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use muxtunnel_proto::Token;

use crate::base::telemetry::Telemetry;
use crate::stream::batch::Batch;
use crate::stream::retained_pipe::RetainedPayload;

/// A retained batch. The queue of a carrier refers to the same payload until the payload is
/// written.
pub(super) enum Retained {
    Batch(Rc<Batch>),
    /// One packet of payload.
    Pipe(RetainedPayload),
}

/// All retained batches, until the session releases them. The session bounds the batches by
/// `memory.retain`.
#[derive(Default)]
pub(super) struct Retention {
    by_token: RefCell<BTreeMap<u64, Retained>>,
    /// Number of retained bytes of this session that the telemetry includes now.
    counted: Cell<u64>,
    named: Cell<u64>,
}

impl Retention {
    /// Returns a name for the next batch, whether that batch is retained or not.
    pub(super) fn next_token(&self) -> Token {
        Token(self.named.replace(self.named.get() + 1))
    }

    pub(super) fn keep(&self, token: Token, retained: Retained) {
        self.by_token.borrow_mut().insert(token.0, retained);
    }

    /// Removes the batch of this name; `None`: no batch is retained under this name.
    pub(super) fn take(&self, token: Token) -> Option<Retained> {
        self.by_token.borrow_mut().remove(&token.0)
    }

    /// Updates the telemetry to `bytes`.
    pub(super) fn count(&self, bytes: u64, telemetry: &Telemetry) {
        let before = self.counted.replace(bytes);
        // All workers share the counter, so an unchanged value must not write to it.
        if before != bytes {
            telemetry.resumes.retains(before, bytes);
        }
    }

    pub(super) fn clear(&self, telemetry: &Telemetry) {
        self.by_token.borrow_mut().clear();
        self.count(0, telemetry);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.by_token.borrow().len()
    }
}
