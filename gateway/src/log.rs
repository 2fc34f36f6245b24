//! The log: lines of `tracing` on stderr, written by a thread of their own.
//!
//! A worker never waits for whoever reads stderr. At most [`LINES_MAX`] lines wait for the thread;
//! what is more is dropped and counted. `RUST_LOG` selects: `info,muxgate::streams=warn` leaves the
//! line of each closed stream out.

use std::io::{BufWriter, IsTerminal};
use std::sync::OnceLock;

use tracing_appender::non_blocking::{ErrorCounter, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;

/// Lines that wait for the thread, about 1 MiB.
const LINES_MAX: usize = 4096;

static DROPPED: OnceLock<ErrorCounter> = OnceLock::new();

/// Starts the log of this process. The lines that wait are written when the guard is dropped.
pub fn start() -> WorkerGuard {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let stderr = std::io::stderr();
    let colours = stderr.is_terminal();
    let (writer, guard) = NonBlockingBuilder::default()
        .buffered_lines_limit(LINES_MAX)
        .thread_name("log")
        .finish(BufWriter::new(stderr));
    DROPPED.get_or_init(|| writer.error_counter());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(colours)
        .with_writer(writer)
        .init();
    guard
}

/// Lines that were dropped since the start.
pub(crate) fn dropped() -> u64 {
    DROPPED
        .get()
        .map_or(0, |counter| counter.dropped_lines() as u64)
}
