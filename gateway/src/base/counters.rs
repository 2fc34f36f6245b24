//! Counters of streams, one set for the whole gateway and one for each forward, of waiting for credit, of splicing and of
//! resuming.
//!
//! Relaxed atomics, written by workers, read by the admin thread. Bounded by the reasons and codes
//! that exist.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use muxtunnel_codes::Code;
use muxtunnel_gateway_config::status;
use parking_lot::Mutex;

use crate::base::closing::Reason;

/// Streams that could send and were not let, since the start.
#[derive(Debug, Default)]
pub(crate) struct CreditCounters {
    waits: AtomicU64,
    nanoseconds: AtomicU64,
}

/// A stream waits; until this is dropped.
pub(crate) struct CreditWait<'a> {
    counters: &'a CreditCounters,
    since: Instant,
}

impl CreditCounters {
    /// A stream begins to wait.
    pub(crate) fn wait(&self) -> CreditWait<'_> {
        self.waits.fetch_add(1, Relaxed);
        CreditWait {
            counters: self,
            since: Instant::now(),
        }
    }

    /// As of now; a wait's time counts from its end.
    pub(crate) fn status(&self) -> status::Credit {
        status::Credit {
            waits: self.waits.load(Relaxed),
            waited_seconds: self.nanoseconds.load(Relaxed) as f64 / 1e9,
        }
    }
}

impl Drop for CreditWait<'_> {
    fn drop(&mut self) {
        // 584 years fit.
        let nanoseconds = self.since.elapsed().as_nanos() as u64;
        self.counters.nanoseconds.fetch_add(nanoseconds, Relaxed);
    }
}

/// Payload that went through the kernel alone since the start.
#[derive(Debug, Default)]
pub(crate) struct SpliceCounters {
    sent: AtomicU64,
    received: AtomicU64,
    fallback: AtomicU64,
    pipes_lacking: AtomicU64,
}

impl SpliceCounters {
    /// From a local socket, into a pipe.
    pub(crate) fn sent(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Relaxed);
    }

    /// From a carrier, into a pipe.
    pub(crate) fn received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Relaxed);
    }

    /// From a carrier into memory, though there was enough for a pipe.
    pub(crate) fn fell_back(&self, bytes: usize) {
        self.fallback.fetch_add(bytes as u64, Relaxed);
    }

    /// There was no pipe.
    pub(crate) fn pipe_lacked(&self) {
        self.pipes_lacking.fetch_add(1, Relaxed);
    }

    /// As of now.
    pub(crate) fn status(&self) -> status::Splice {
        status::Splice {
            bytes_sent: self.sent.load(Relaxed),
            bytes_received: self.received.load(Relaxed),
            bytes_fallen_back: self.fallback.load(Relaxed),
            pipes_lacking: self.pipes_lacking.load(Relaxed),
        }
    }
}

/// What it takes that streams outlive their carriers, in all sessions.
#[derive(Debug, Default)]
pub(crate) struct ResumeCounters {
    retained: AtomicU64,
    resumed: AtomicU64,
    again: AtomicU64,
}

impl ResumeCounters {
    /// A session retained `before` bytes and now retains `now`.
    pub(crate) fn retains(&self, before: u64, now: u64) {
        // Wraps where it is less: the sum of all sessions is right.
        self.retained.fetch_add(now.wrapping_sub(before), Relaxed);
    }

    /// A carrier was lost and its session went on.
    pub(crate) fn resumed(&self) {
        self.resumed.fetch_add(1, Relaxed);
    }

    /// Payload went again that a lost carrier did not deliver.
    pub(crate) fn sent_again(&self, bytes: usize) {
        self.again.fetch_add(bytes as u64, Relaxed);
    }

    /// As of now.
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
    bytes_sent: AtomicU64,
    bytes_received: AtomicU64,
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

    /// Payload from a local socket.
    pub(crate) fn sent(&self, bytes: usize) {
        self.bytes_sent.fetch_add(bytes as u64, Relaxed);
    }

    /// Payload that a local socket took.
    pub(crate) fn received(&self, bytes: usize) {
        self.bytes_received.fetch_add(bytes as u64, Relaxed);
    }

    /// As of now.
    pub(crate) fn status(&self) -> status::Streams {
        let refused = self.refused.lock();
        status::Streams {
            open: self.open.load(Relaxed),
            opened: self.opened.load(Relaxed),
            closed: Reason::ALL
                .into_iter()
                .map(|reason| {
                    let count = self.closed[reason as usize].load(Relaxed);
                    (reason.label().to_owned(), count)
                })
                .collect(),
            refused: refused
                .iter()
                .map(|(code, count)| (code.to_string(), *count))
                .collect(),
            bytes_sent: self.bytes_sent.load(Relaxed),
            bytes_received: self.bytes_received.load(Relaxed),
        }
    }
}
