//! What goes to standard output: a document as a table for people, or as JSON or YAML for programs.

use std::ffi::OsString;
use std::io::{IsTerminal, Write};

use anyhow::Context;
use clap::ValueEnum;
use serde::Serialize;

use crate::end::Failure;

/// `apiVersion` of every document.
pub const API_VERSION: &str = "cli.muxtunnel.dev/v1alpha1";
/// No line for people is wider.
pub const COLUMNS: usize = 100;

/// The form of a document.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Table,
    /// One JSON document.
    Json,
    /// One YAML document.
    Yaml,
}

/// What a command answers.
pub trait Document: Serialize {
    /// For people: lines of at most [`COLUMNS`].
    fn text(&self, style: Style) -> String;
}

/// Whether words have colours.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Style {
    /// On a terminal, unless NO_COLOR is set.
    pub colours: bool,
}

impl Style {
    /// Something good.
    #[must_use]
    pub fn good(self, word: &str) -> String {
        self.paint("32", word)
    }

    /// Something to look at.
    #[must_use]
    pub fn warning(self, word: &str) -> String {
        self.paint("33", word)
    }

    /// A fault.
    #[must_use]
    pub fn bad(self, word: &str) -> String {
        self.paint("31", word)
    }

    fn paint(self, colour: &str, word: &str) -> String {
        if self.colours {
            format!("\x1b[{colour}m{word}\x1b[0m")
        } else {
            word.to_owned()
        }
    }
}

/// What the standard streams are.
#[derive(Debug, Clone, Copy, Default)]
pub struct Terminal {
    /// How to write to standard output.
    pub style: Style,
    /// Somebody can answer on standard input.
    pub stdin: bool,
    /// Standard output is seen by somebody.
    pub stdout: bool,
}

impl Terminal {
    /// Those of this process.
    #[must_use]
    pub fn of_process() -> Self {
        let stdout = std::io::stdout().is_terminal();
        Self {
            style: Style {
                colours: stdout && !is_set(std::env::var_os("NO_COLOR")),
            },
            stdin: std::io::stdin().is_terminal(),
            stdout,
        }
    }

    /// Prints a document.
    ///
    /// # Errors
    /// If standard output cannot be written to.
    pub fn print(&self, document: &impl Document, format: Format) -> Result<(), Failure> {
        write(&rendered(document, format, self.style)?)
    }
}

/// Whether NO_COLOR asks for no colours: it is there and not empty (<https://no-color.org>).
fn is_set(variable: Option<OsString>) -> bool {
    variable.is_some_and(|value| !value.is_empty())
}

/// A document in one form, with a line feed at its end.
///
/// # Errors
/// If it cannot be serialized, which no document of ours is.
pub fn rendered(
    document: &impl Document,
    format: Format,
    style: Style,
) -> Result<String, anyhow::Error> {
    let text = match format {
        Format::Table => document.text(style),
        Format::Json => serde_json::to_string_pretty(document)?,
        Format::Yaml => serde_yaml::to_string(document)?,
    };
    Ok(format!("{}\n", text.trim_end()))
}

/// Writes to standard output.
///
/// # Errors
/// If that fails.
pub fn write(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .context("cannot write to standard output")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_color_counts_where_it_is_not_empty() {
        assert!(is_set(Some("1".into())));
        assert!(!is_set(Some("".into())));
        assert!(!is_set(None));
    }
}
