//! What is kept of payload that waits to be transmitted or acknowledged, in bytes, where the session resumes.

use std::collections::VecDeque;

use crate::session::Token;

/// The bytes, and the batches that are not needed any more.
#[derive(Debug, Default)]
pub(super) struct Retention {
    bytes: u64,
    released: VecDeque<Token>,
}

impl Retention {
    /// A batch that takes `held` bytes.
    pub(super) fn keep(&mut self, held: u64) {
        self.bytes += held;
    }

    /// A batch of `held` bytes was never transmitted, and never will be.
    pub(super) fn give_back(&mut self, held: u64) {
        self.bytes -= held;
    }

    /// The peer has all of a batch.
    pub(super) fn release(&mut self, held: u64, token: Token) {
        self.bytes -= held;
        self.released.push_back(token);
    }

    /// Bytes that are kept.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes that may be kept beside them, where `most` may be in all.
    pub(super) fn room(&self, most: u64) -> u64 {
        most.saturating_sub(self.bytes)
    }

    /// Batches that were released and not told.
    pub(super) fn released(&self) -> usize {
        self.released.len()
    }

    pub(super) fn pop_released(&mut self) -> Option<Token> {
        self.released.pop_front()
    }
}
