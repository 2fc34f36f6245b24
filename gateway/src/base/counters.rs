//! Counters of streams (one set for the gateway and one for each forward), of waits for credit, of
//! splicing and of resuming.
//!
//! The counters are relaxed atomics: workers write them, and the admin thread reads them. Their
//! number is bounded by the number of reasons and codes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use muxtunnel_codes::Code;
use muxtunnel_gateway_config::status;
use parking_lot::Mutex;

use crate::base::closing::Reason;

/// A number that workers increase and the admin thread reads.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, number: usize) {
        self.0.fetch_add(number as u64, Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Waits of streams that had data but no credit, since the start.
#[derive(Debug, Default)]
pub(crate) struct CreditCounters {
    waits: AtomicU64,
    nanoseconds: AtomicU64,
}

/// The wait of one stream. Dropping the value ends the wait.
pub(crate) struct CreditWait<'a> {
    counters: &'a CreditCounters,
    since: Instant,
}

impl CreditCounters {
    /// Starts the wait of a stream.
    pub(crate) fn wait(&self) -> CreditWait<'_> {
        self.waits.fetch_add(1, Relaxed);
        CreditWait {
            counters: self,
            since: Instant::now(),
        }
    }

    /// The current values. A wait adds its time when it ends.
    pub(crate) fn status(&self) -> status::Credit {
        status::Credit {
            waits: self.waits.load(Relaxed),
            waited_seconds: self.nanoseconds.load(Relaxed) as f64 / 1e9,
        }
    }
}

impl Drop for CreditWait<'_> {
    fn drop(&mut self) {
        // The cast is correct for 584 years.
        let nanoseconds = self.since.elapsed().as_nanos() as u64;
        self.counters.nanoseconds.fetch_add(nanoseconds, Relaxed);
    }
}

/// Payload that was spliced since the start.
#[derive(Debug, Default)]
pub(crate) struct SpliceCounters {
    /// Bytes from a local socket into a pipe.
    pub(crate) sent: Counter,
    /// Bytes from a carrier into a pipe.
    pub(crate) received: Counter,
    /// Bytes from a carrier that were copied into memory, although there were enough bytes for a
    /// splice.
    pub(crate) fallen_back: Counter,
    pub(crate) pipes_lacking: Counter,
}

impl SpliceCounters {
    pub(crate) fn status(&self) -> status::Splice {
        status::Splice {
            bytes_sent: self.sent.get(),
            bytes_received: self.received.get(),
            bytes_fallen_back: self.fallen_back.get(),
            pipes_lacking: self.pipes_lacking.get(),
        }
    }
}

/// The cost of streams that outlive their carriers, in all sessions.
#[derive(Debug, Default)]
pub(crate) struct ResumeCounters {
    retained: AtomicU64,
    resumed: AtomicU64,
    again: AtomicU64,
}

impl ResumeCounters {
    /// Adjusts the sum for a session that retained `before` bytes and now retains `now`.
    pub(crate) fn retains(&self, before: u64, now: u64) {
        // Wraps if `now` is less than `before`; the sum over all sessions is still correct.
        self.retained.fetch_add(now.wrapping_sub(before), Relaxed);
    }

    /// Counts a lost carrier whose session continued.
    pub(crate) fn resumed(&self) {
        self.resumed.fetch_add(1, Relaxed);
    }

    /// Counts payload that was retransmitted after a carrier was lost.
    pub(crate) fn sent_again(&self, bytes: usize) {
        self.again.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn status(&self) -> status::Resume {
        status::Resume {
            bytes_retained: self.retained.load(Relaxed),
            carriers_survived: self.resumed.load(Relaxed),
            bytes_sent_again: self.again.load(Relaxed),
        }
    }
}

/// Streams since the start.
#[derive(Debug, Default)]
pub(crate) struct StreamCounters {
    open: AtomicU64,
    opened: AtomicU64,
    closed: [AtomicU64; Reason::ALL.len()],
    refused: Mutex<BTreeMap<Code, u64>>,
    /// Payload from local sockets.
    pub(crate) sent: Counter,
    /// Payload that local sockets took.
    pub(crate) received: Counter,
}

impl StreamCounters {
    pub(crate) fn opened(&self) {
        self.open.fetch_add(1, Relaxed);
        self.opened.fetch_add(1, Relaxed);
    }

    pub(crate) fn closed(&self, reason: Reason) {
        self.open.fetch_sub(1, Relaxed);
        self.closed[reason as usize].fetch_add(1, Relaxed);
    }

    /// Counts an open that was refused or failed.
    pub(crate) fn refused(&self, code: Code) {
        let mut refused = self.refused.lock();
        *refused.entry(code).or_default() += 1;
    }

    pub(crate) fn status(&self) -> status::Streams {
        let refused = self.refused.lock();
        status::Streams {
            open: self.open.load(Relaxed),
            opened: self.opened.load(Relaxed),
            closed: Reason::ALL
                .into_iter()
                .zip(&self.closed)
                .map(|((_, label), count)| (label.to_owned(), count.load(Relaxed)))
                .collect(),
            refused: refused
                .iter()
                .map(|(code, count)| (code.to_string(), *count))
                .collect(),
            bytes_sent: self.sent.get(),
            bytes_received: self.received.get(),
        }
    }
}
