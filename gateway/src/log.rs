//! The log: lines of `tracing` on stderr, written by a thread of their own.
//!
//! A worker only appends to a buffer: it never waits for whoever reads stderr, and wakes the thread
//! with the first line of a batch alone. (With a wake and a write for each line, the line of a closed
//! stream cost as much as a fifth of an open; measured with `muxlab load opens`.) What the buffer has
//! no room for is dropped and counted. `RUST_LOG` selects: `info,muxgate::streams=warn` leaves the line
//! of each closed stream out.

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use tracing_subscriber::EnvFilter;

/// Lines that wait, bytes; as many again are with the thread.
const PENDING_BYTES_MAX: usize = 1 << 20;
/// What comes within this time is written at once.
const GATHER: Duration = Duration::from_millis(20);
/// How long the end of the process waits for stderr to take the last lines.
const LAST_LINES_MAX: Duration = Duration::from_secs(1);

static LOG: Log = Log::new();

struct Log {
    pending: Mutex<Pending>,
    wake: Condvar,
    dropped: AtomicU64,
}

struct Pending {
    bytes: Vec<u8>,
    /// The process ends: what waits is the last.
    closed: bool,
}

/// Starts the log of this process.
///
/// # Errors
/// There is no thread to be had.
pub fn start() -> std::io::Result<Guard> {
    let (written, last) = mpsc::channel();
    std::thread::Builder::new()
        .name("log".to_owned())
        .spawn(move || {
            LOG.write_all();
            // Nobody waits where the process did not end well.
            let _ = written.send(());
        })?;
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(|| Line)
        .init();
    Ok(Guard(last))
}

/// Lines that were dropped since the start.
pub(crate) fn dropped() -> u64 {
    LOG.dropped.load(Relaxed)
}

/// Writes the lines that wait when dropped.
#[derive(Debug)]
pub struct Guard(mpsc::Receiver<()>);

impl Drop for Guard {
    fn drop(&mut self) {
        LOG.pending().closed = true;
        LOG.wake.notify_one();
        let _ = self.0.recv_timeout(LAST_LINES_MAX);
    }
}

/// One line on its way: `tracing` writes it as a whole.
struct Line;

impl Write for Line {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        LOG.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    const fn new() -> Self {
        Self {
            pending: Mutex::new(Pending {
                bytes: Vec::new(),
                closed: false,
            }),
            wake: Condvar::new(),
            dropped: AtomicU64::new(0),
        }
    }

    fn push(&self, line: &[u8]) {
        let mut pending = self.pending();
        let first = pending.bytes.is_empty();
        if pending.bytes.len() + line.len() > PENDING_BYTES_MAX {
            self.dropped.fetch_add(1, Relaxed);
            return;
        }
        pending.bytes.extend_from_slice(line);
        drop(pending);
        if first {
            self.wake.notify_one();
        }
    }

    /// Writes what comes until the log is closed.
    fn write_all(&self) {
        let mut batch = Vec::new();
        loop {
            let idle = |pending: &mut Pending| pending.bytes.is_empty() && !pending.closed;
            let pending = self
                .wake
                .wait_while(self.pending(), idle)
                .unwrap_or_else(PoisonError::into_inner);
            let mut pending = self
                .wake
                .wait_timeout_while(pending, GATHER, |pending| !pending.closed)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
            let closed = pending.closed;
            std::mem::swap(&mut batch, &mut pending.bytes);
            drop(pending);
            // Where stderr is gone, nobody can be told.
            let _ = std::io::stderr().write_all(&batch);
            batch.clear();
            if closed {
                return;
            }
        }
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_do_not_fit_are_dropped_and_counted() {
        let log = Log::new();
        let line = vec![b'x'; PENDING_BYTES_MAX / 4];
        (0..6).for_each(|_| log.push(&line));
        assert_eq!(log.pending().bytes.len(), PENDING_BYTES_MAX);
        assert_eq!(log.dropped.load(Relaxed), 2);
    }
}
