//! The log: a separate thread writes the lines of `tracing` to stderr.
//!
//! A worker only appends to a buffer. A worker never waits for the reader of stderr, and only the
//! first line of a batch wakes the thread. With a wake and a write for each line, logging a closed
//! stream cost a fifth as much as opening a stream (measured with `muxlab load opens`). Lines that
//! do not fit into the buffer are dropped and counted. `RUST_LOG` selects the lines:
//! `info,muxgate::streams=warn` omits the lines of closed streams.

use std::fmt::{self, Debug, Write as _};
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc;
use std::time::Duration;

use clap::ValueEnum;
use parking_lot::{Condvar, Mutex, MutexGuard};
use tracing::field::{Field, Visit};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::Writer;

use crate::base::printable::Escape;

/// Maximum number of bytes that wait in the buffer. The thread holds up to the same number.
const PENDING_BYTES_MAX: usize = 1 << 20;
/// Lines that arrive within this time are written together.
const GATHER: Duration = Duration::from_millis(20);
/// How long the process waits, before it exits, for stderr to take the last lines.
const LAST_LINES_MAX: Duration = Duration::from_secs(1);

static LOG: Log = Log::new();

struct Log {
    pending: Mutex<Pending>,
    wake: Condvar,
    dropped: AtomicU64,
}

struct Pending {
    bytes: Vec<u8>,
    /// Whether the process ends, so that no further lines arrive.
    closed: bool,
}

/// The format of a log line. As text, a line has time, level, target, message and `name=value` for
/// each field. The JSON object has `timestamp`, `level`, `target` and `fields`. The fields are in a
/// nested object, since a field may also be called `target`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Lines of text.
    Text,
    /// One JSON object per line, for log collectors.
    Json,
}

/// Starts the log of this process.
///
/// # Errors
/// The system cannot start a thread.
pub fn start(format: Format) -> std::io::Result<Guard> {
    let (written, last) = mpsc::channel();
    std::thread::Builder::new()
        .name("log".to_owned())
        .spawn(move || {
            LOG.write_all();
            // The receiver is dropped if the process did not end regularly.
            let _ = written.send(());
        })?;
    let filter = filter(std::env::var(EnvFilter::DEFAULT_ENV).ok());
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| Line);
    match format {
        Format::Text => lines
            .with_ansi(std::io::stderr().is_terminal())
            .fmt_fields(Fields)
            .init(),
        // Spans come from libraries, and would be repeated on each line.
        Format::Json => lines
            .json()
            .with_current_span(false)
            .with_span_list(false)
            .init(),
    }
    Ok(Guard(last))
}

/// The filter of lines. The libraries for SSH and DNS log everything that others send, without a
/// limit, so their lines require an explicit selection.
fn filter(selected: Option<String>) -> EnvFilter {
    const LIBRARIES: [&str; 2] = ["russh", "hickory"];
    let quiet = |selected: &str| {
        let mut filter = selected.to_owned();
        for library in LIBRARIES {
            if !selected.contains(library) {
                filter += &format!(",{library}=off");
            }
        }
        filter
    };
    let selected = selected.unwrap_or_else(|| "info".to_owned());
    EnvFilter::try_new(quiet(&selected)).unwrap_or_else(|_| EnvFilter::new(quiet("info")))
}

/// Number of lines that were dropped since the start.
pub(crate) fn dropped() -> u64 {
    LOG.dropped.load(Relaxed)
}

/// Dropping the value writes the waiting lines.
#[derive(Debug)]
pub struct Guard(mpsc::Receiver<()>);

impl Drop for Guard {
    fn drop(&mut self) {
        LOG.pending().closed = true;
        LOG.wake.notify_one();
        let _ = self.0.recv_timeout(LAST_LINES_MAX);
    }
}

/// Writes the fields of an event in one line, even if the fields contain foreign text. Any value
/// but a single plain word is quoted. Otherwise a part of the value could look like a field.
struct Fields;

impl<'writer> FormatFields<'writer> for Fields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'writer>, fields: R) -> fmt::Result {
        let mut values = Values {
            writer,
            shown: String::new(),
            is_first: true,
            result: Ok(()),
        };
        fields.record(&mut values);
        values.result
    }
}

struct Values<'writer> {
    writer: Writer<'writer>,
    /// The value that is being formatted.
    shown: String,
    is_first: bool,
    result: fmt::Result,
}

impl Values<'_> {
    fn write(&mut self, field: &Field, value: &dyn Debug) -> fmt::Result {
        if !std::mem::replace(&mut self.is_first, false) {
            self.writer.write_char(' ')?;
        }
        if field.name() == "message" {
            return write!(Escape(&mut self.writer), "{value:?}");
        }
        self.shown.clear();
        write!(self.shown, "{value:?}")?;
        let name = field.name();
        match is_word(&self.shown) {
            true => write!(self.writer, "{name}={}", self.shown),
            false => write!(self.writer, "{name}={:?}", self.shown),
        }
    }
}

fn is_word(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'=');
    !text.is_empty() && text.bytes().all(is_plain)
}

impl Visit for Values<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if self.result.is_ok() {
            self.result = self.write(field, value);
        }
    }

    /// Always quotes strings.
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            return self.record_debug(field, &format_args!("{value}"));
        }
        if self.result.is_ok() {
            let gap = match std::mem::replace(&mut self.is_first, false) {
                true => "",
                false => " ",
            };
            self.result = write!(self.writer, "{gap}{}={value:?}", field.name());
        }
    }
}

/// One line that is being written. `tracing` writes the line in a single call.
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

    /// Writes lines until the log is closed.
    fn write_all(&self) {
        let mut batch = Vec::new();
        loop {
            let idle = |pending: &mut Pending| pending.bytes.is_empty() && !pending.closed;
            let open = |pending: &mut Pending| !pending.closed;
            let mut pending = self.pending();
            self.wake.wait_while(&mut pending, idle);
            self.wake.wait_while_for(&mut pending, open, GATHER);
            let closed = pending.closed;
            std::mem::swap(&mut batch, &mut pending.bytes);
            drop(pending);
            // If stderr is closed, the error cannot be reported.
            let _ = std::io::stderr().write_all(&batch);
            batch.clear();
            if closed {
                return;
            }
        }
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logged(events: impl FnOnce()) -> String {
        #[derive(Clone, Default)]
        struct Kept(std::sync::Arc<Mutex<Vec<u8>>>);

        impl Write for Kept {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                self.0.lock().extend_from_slice(bytes);
                Ok(bytes.len())
            }

            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }

        let kept = Kept::default();
        let writer = kept.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .without_time()
            .fmt_fields(Fields)
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, events);
        let bytes = kept.0.lock().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn text_of_others_makes_no_line_and_no_field() {
        let target = "tcp://x:1\n2026-01-01T00:00:00Z  INFO all is well\u{1b}[2J code=MT0000";
        let text = logged(|| {
            tracing::warn!(%target, plain = %"db:5432", text = target, count = 3, "Open of {target}");
        });
        assert_eq!(text.matches('\n').count(), 1, "{text}");
        assert!(text.ends_with('\n') && !text.contains('\u{1b}'), "{text}");
        let quoted = format!("{target:?}");
        assert!(
            text.contains(&format!(
                " target={quoted} plain=db:5432 text={quoted} count=3"
            )),
            "{text}"
        );
        assert!(!text.contains("well\u{1b}[2J code=MT0000 plain"), "{text}");
    }

    #[test]
    fn lines_that_do_not_fit_are_dropped_and_counted() {
        let log = Log::new();
        let line = vec![b'x'; PENDING_BYTES_MAX / 4];
        (0..6).for_each(|_| log.push(&line));
        assert_eq!(log.pending().bytes.len(), PENDING_BYTES_MAX);
        assert_eq!(log.dropped.load(Relaxed), 2);
    }
}
