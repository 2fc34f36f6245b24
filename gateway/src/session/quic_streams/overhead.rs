//! Frames and messages that carry nothing: each costs the peer a few bytes and this side some work, and no window bounds them.
//!
//! A few are no abuse: peers send frames of kinds that nobody knows so that they stay allowed, and some an empty one at each
//! flush. So the bounds are far above that, and far below what a flood brings.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use crate::base::token_bucket::Bucket;

/// On one stream, without payload in between.
const IN_A_ROW_MAX: u32 = 100;
/// The first ones of each stream do not count for its connection: some libraries end each stream by one.
const FREE: u32 = 4;
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

/// Those of one stream.
#[derive(Debug, Default)]
pub(crate) struct StreamOverhead {
    in_a_row: u32,
    free: u32,
}

impl StreamOverhead {
    /// One more.
    ///
    /// # Errors
    /// [`Excessive`].
    pub(crate) fn count(&mut self, all: &Overhead) -> Result<(), Excessive> {
        self.in_a_row += 1;
        if self.in_a_row > IN_A_ROW_MAX {
            return Err(Excessive);
        }
        if self.free < FREE {
            self.free += 1;
            return Ok(());
        }
        all.count()
    }

    /// Payload came.
    pub(crate) fn carried(&mut self) {
        self.in_a_row = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_ones_of_each_stream_are_free_and_a_row_ends_with_payload() {
        let all = Overhead::default();
        while all.count().is_ok() {}
        for _ in 0..1000 {
            let mut one = StreamOverhead::default();
            assert!((0..FREE).all(|_| one.count(&all).is_ok()));
        }
        let (all, mut one) = (Overhead::default(), StreamOverhead::default());
        for _ in 0..3 {
            assert!((0..IN_A_ROW_MAX).all(|_| one.count(&all).is_ok()));
            one.carried();
        }
        assert!((0..IN_A_ROW_MAX).all(|_| one.count(&all).is_ok()));
        assert_eq!(one.count(&all), Err(Excessive));
    }
}
