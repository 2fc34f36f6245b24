//! Limits frames and messages without payload. Each such frame costs the peer a few bytes and this
//! side some work, and no window bounds the number of frames.
//!
//! A few such frames are no abuse. Some peers send frames of reserved types so that receivers keep
//! tolerating them (GREASE), and some send an empty frame at each flush. So the limits are far
//! above such use, and far below a flood.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use crate::base::token_bucket::Bucket;

/// Permitted rate of successive frames without payload on one stream, in frames per second. A burst
/// may have the frames of [`ROW_BURST`] at this rate.
const ROW_PER_SECOND: u64 = 10;
const ROW_BURST: Duration = Duration::from_secs(10);
/// Number of frames of each stream that the connection's limit ignores, since some libraries end
/// each stream with an empty frame.
const FREE: u32 = 4;
/// Permitted rate of frames without payload on all streams of a connection, in frames per second. A
/// burst may have the frames of [`BURST`] at this rate.
const PER_SECOND: u64 = 1000;
const BURST: Duration = Duration::from_secs(10);

/// The peer sent too many frames without payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Excessive;

/// Counts the frames of one connection.
#[derive(Debug)]
pub(crate) struct Overhead(RefCell<Bucket>);

impl Default for Overhead {
    fn default() -> Self {
        Self(RefCell::new(Bucket::new(PER_SECOND, BURST)))
    }
}

impl Overhead {
    /// Counts a frame or message without payload.
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

/// Counts the frames of one stream.
#[derive(Debug)]
pub(crate) struct StreamOverhead {
    row: Bucket,
    free: u32,
}

impl Default for StreamOverhead {
    fn default() -> Self {
        let row = Bucket::new(ROW_PER_SECOND, ROW_BURST);
        Self { row, free: 0 }
    }
}

impl StreamOverhead {
    /// Counts a frame or message without payload.
    ///
    /// # Errors
    /// [`Excessive`].
    pub(crate) fn count(&mut self, all: &Overhead) -> Result<(), Excessive> {
        self.count_in_row(Instant::now())?;
        if self.free < FREE {
            self.free += 1;
            return Ok(());
        }
        all.count()
    }

    fn count_in_row(&mut self, now: Instant) -> Result<(), Excessive> {
        match self.row.try_take(now, 1) {
            true => Ok(()),
            false => Err(Excessive),
        }
    }

    /// Records payload, which ends a sequence of frames without payload.
    pub(crate) fn carried(&mut self) {
        self.row = Self::default().row;
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
            assert!((0..100).all(|_| one.count(&all).is_ok()));
            one.carried();
        }
        while one.count(&all).is_ok() {}
    }

    #[test]
    fn a_slow_row_without_payload_never_ends_the_connection() {
        let (mut one, start) = (StreamOverhead::default(), Instant::now());
        for second in 0..1000 {
            let now = start + Duration::from_secs(second);
            assert!((0..10).all(|_| one.count_in_row(now).is_ok()));
        }
        let later = start + Duration::from_secs(2000);
        assert_eq!(
            (0..1000)
                .filter(|_| one.count_in_row(later).is_ok())
                .count(),
            100
        );
    }
}
