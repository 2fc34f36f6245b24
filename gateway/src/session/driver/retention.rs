//! What a session may want to transmit again.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use muxtunnel_proto::Token;

use crate::base::telemetry::Telemetry;
use crate::stream::batch::Batch;
use crate::stream::pipe::Pipe;

/// A batch that is kept beside its way to the kernel.
pub(super) enum Retained {
    Batch(Rc<Batch>),
    /// One packet of payload.
    Pipe(Pipe),
}

/// All that is kept, until the session releases it. Its bound is the session's, `memory.retain`.
#[derive(Default)]
pub(super) struct Retention {
    by_token: RefCell<BTreeMap<u64, Retained>>,
    /// Bytes that the telemetry knows of.
    counted: Cell<u64>,
    named: Cell<u64>,
}

impl Retention {
    /// The name of one more batch, kept or not.
    pub(super) fn next_token(&self) -> Token {
        Token(self.named.replace(self.named.get() + 1))
    }

    pub(super) fn keep(&self, token: Token, retained: Retained) {
        self.by_token.borrow_mut().insert(token.0, retained);
    }

    /// `None`: it is not there.
    pub(super) fn take(&self, token: Token) -> Option<Retained> {
        self.by_token.borrow_mut().remove(&token.0)
    }

    /// The telemetry knows of `bytes` from now on.
    pub(super) fn count(&self, bytes: u64, telemetry: &Telemetry) {
        let before = self.counted.replace(bytes);
        telemetry.resumes.retains(before, bytes);
    }

    /// Nothing is kept any more.
    pub(super) fn clear(&self, telemetry: &Telemetry) {
        self.by_token.borrow_mut().clear();
        self.count(0, telemetry);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.by_token.borrow().len()
    }
}
