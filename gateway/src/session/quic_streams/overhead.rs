//! Frames and messages that carry nothing: each costs the peer a few bytes and this side some work, and no window bounds them.
//!
//! A few are no abuse: peers send frames of kinds that nobody knows so that they stay allowed, and some an empty one at each
//! flush. So the bounds are far above that, and far below what a flood brings.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use crate::base::token_bucket::Bucket;

/// On one stream, without payload in between.
const IN_A_ROW_MAX: u32 = 100;
/// On all streams of a connection, a second, and for how long at once.
const PER_SECOND: u64 = 1000;
const BURST: Duration = Duration::from_secs(10);

/// There are too many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Excessive;

/// Those of one connection.
#[derive(Debug)]
pub(crate) struct Overhead(RefCell<Bucket>);

impl Default for Overhead {
    fn default() -> Self {
        Self(RefCell::new(Bucket::new(PER_SECOND, BURST)))
    }
}

impl Overhead {
    /// One more.
    ///
    /// # Errors
    /// [`Excessive`].
    pub(crate) fn count(&self) -> Result<(), Excessive> {
        match self.0.borrow_mut().try_take(Instant::now(), 1) {
            true => Ok(()),
            false => Err(Excessive),
        }
    }
}

/// Those of one stream since its last payload.
#[derive(Debug, Default)]
pub(crate) struct InARow(u32);

impl InARow {
    /// One more.
    ///
    /// # Errors
    /// [`Excessive`].
    pub(crate) fn count(&mut self, all: &Overhead) -> Result<(), Excessive> {
        self.0 += 1;
        match self.0 <= IN_A_ROW_MAX {
            true => all.count(),
            false => Err(Excessive),
        }
    }

    /// Payload.
    pub(crate) fn end(&mut self) {
        self.0 = 0;
    }
}
