//! The log: lines that `kubectl logs` shows at once.

use std::io::Write;

use anyhow::Context;
use muxtunnel_bench_api::result::{LOG_WORD, Record};

/// Greatest width of a line for people.
const COLUMNS_MAX: usize = 100;
/// Indentation of a continuation line.
const INDENT: &str = "        ";

/// The log of a runner.
pub struct Log(Box<dyn Write + Send>);

impl Log {
    /// A log on `output`, which is flushed after each line.
    #[must_use]
    pub fn new(output: Box<dyn Write + Send>) -> Self {
        Self(output)
    }

    /// Writes a line for people. A line wider than [`COLUMNS_MAX`] continues on the next line,
    /// indented.
    pub(super) fn line(&mut self, line: &str) -> anyhow::Result<()> {
        line.split('\n')
            .flat_map(wrap)
            .try_for_each(|line| self.write(&line))
    }

    fn write(&mut self, line: &str) -> anyhow::Result<()> {
        writeln!(self.0, "{line}")
            .and_then(|()| self.0.flush())
            .context("cannot write the log")
    }

    /// Writes a line for programs.
    pub(super) fn record(&mut self, record: &Record) -> anyhow::Result<()> {
        let json = serde_json::to_string(record)?;
        self.write(&format!("{LOG_WORD}{json}"))
    }
}

/// Splits `line` into parts of at most [`COLUMNS_MAX`] columns, at spaces if possible.
fn wrap(line: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut rest = line.to_owned();
    while rest.chars().count() > COLUMNS_MAX {
        let end = rest
            .char_indices()
            .nth(COLUMNS_MAX)
            .map_or(rest.len(), |(index, _)| index);
        let indent = rest.len() - rest.trim_start().len();
        let at = rest[..end]
            .rfind(' ')
            .filter(|at| *at > indent)
            .unwrap_or(end);
        let tail = rest.split_off(at);
        lines.push(rest);
        rest = format!("{INDENT}{}", tail.trim_start());
    }
    lines.push(rest);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_lines_go_on_in_the_next_and_nothing_is_lost() {
        let words: Vec<_> = (0..60).map(|number| format!("word{number}")).collect();
        for line in [
            words.join(" "),
            "x".repeat(350),
            "ä".repeat(101),
            String::new(),
        ] {
            let lines = wrap(&line);
            assert!(
                lines.iter().all(|line| line.chars().count() <= COLUMNS_MAX),
                "{lines:?}"
            );
            let strip = |text: &str| text.replace(' ', "");
            assert_eq!(strip(&lines.concat()), strip(&line));
        }
        assert_eq!(wrap("short"), ["short"]);
    }
}
