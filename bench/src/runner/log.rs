//! Where people read: lines that are seen in `kubectl logs` as they happen.

use std::io::Write;

use anyhow::Context;
use muxtunnel_bench_api::result::{LOG_WORD, Record};

/// The log.
pub struct Log(Box<dyn Write + Send>);

impl Log {
    /// A log on `output`, which is flushed after each line.
    #[must_use]
    pub fn new(output: Box<dyn Write + Send>) -> Self {
        Self(output)
    }

    /// A line for people.
    pub(super) fn line(&mut self, line: &str) -> anyhow::Result<()> {
        writeln!(self.0, "{line}")
            .and_then(|()| self.0.flush())
            .context("writing the log")
    }

    /// A line for machines.
    pub(super) fn record(&mut self, record: &Record) -> anyhow::Result<()> {
        let json = serde_json::to_string(record)?;
        self.line(&format!("{LOG_WORD}{json}"))
    }
}
