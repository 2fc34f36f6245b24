//! The size of the retransmit buffer. In a session that supports resumption, this buffer holds the
//! payload that waits for transmission or acknowledgement.

use std::collections::VecDeque;

use crate::session::Token;

/// The number of retained bytes, and the batches that are no longer needed.
#[derive(Debug, Default)]
pub(super) struct Retention {
    bytes: u64,
    released: VecDeque<Token>,
}

impl Retention {
    /// Retains a batch that takes `held` bytes.
    pub(super) fn keep(&mut self, held: u64) {
        self.bytes += held;
    }

    /// Releases a batch of `held` bytes that will never be transmitted.
    pub(super) fn give_back(&mut self, held: u64) {
        self.bytes -= held;
    }

    /// Releases a batch that the peer has received completely.
    pub(super) fn release(&mut self, held: u64, token: Token) {
        self.bytes -= held;
        self.released.push_back(token);
    }

    /// Number of retained bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of bytes that may still be retained, if the total may be at most `most`.
    pub(super) fn room(&self, most: u64) -> u64 {
        most.saturating_sub(self.bytes)
    }

    /// Number of released batches that have not been reported to the driver.
    pub(super) fn released(&self) -> usize {
        self.released.len()
    }

    pub(super) fn pop_released(&mut self) -> Option<Token> {
        self.released.pop_front()
    }
}
