//! Standard output: a document as a table for people, or as JSON or YAML for programs.

use std::ffi::OsString;
use std::io::{IsTerminal, Write};

use anyhow::Context;
use clap::ValueEnum;
use serde::Serialize;

use crate::end::Failure;

/// `apiVersion` of every document.
const API_VERSION: &str = "cli.muxtunnel.dev/v1alpha1";
/// Columns of text if standard output is not a terminal.
pub const COLUMNS: usize = 100;
/// Least number of columns; a narrower terminal breaks lines itself.
const COLUMNS_MIN: usize = 60;

/// The format of a document.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A table, for people.
    #[default]
    Table,
    /// A table with further columns, and each object on one line.
    Wide,
    /// The name of each object, as kubectl takes it.
    Name,
    /// One JSON document.
    Json,
    /// One YAML document.
    Yaml,
}

/// When the output has colours.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum ColorChoice {
    /// Colours on a terminal, unless NO_COLOR is set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// The result of a command.
pub trait Document: Serialize {
    /// The document's kind.
    const KIND: &'static str;

    /// The text for people.
    fn text(&self, style: Style) -> String;

    /// The names of the document's objects, for [`Format::Name`].
    fn names(&self) -> Vec<String> {
        Vec::new()
    }
}

/// A document as other programs read it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Whole<'a, D> {
    api_version: &'static str,
    kind: &'static str,
    #[serde(flatten)]
    document: &'a D,
}

/// The layout of text for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    /// Whether words have colours.
    pub colours: bool,
    /// Columns of a line. Lines break between words, so a line with one long word can be longer.
    pub columns: usize,
    /// Whether there are further columns ([`Format::Wide`]).
    pub wide: bool,
    /// Whether lists have a header line.
    pub headers: bool,
}

impl Default for Style {
    fn default() -> Self {
        Self {
            colours: false,
            columns: COLUMNS,
            wide: false,
            headers: true,
        }
    }
}

impl Style {
    /// Formats a good result.
    #[must_use]
    pub fn good(self, word: &str) -> String {
        self.paint("32", word)
    }

    /// Formats a warning.
    #[must_use]
    pub fn warning(self, word: &str) -> String {
        self.paint("33", word)
    }

    /// Formats a fault.
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

/// The standard streams of the process.
#[derive(Debug, Clone, Copy, Default)]
pub struct Terminal {
    /// The layout for standard output.
    pub style: Style,
    /// Whether standard input is a terminal, so a user can answer.
    pub stdin: bool,
    /// Whether standard output is a terminal.
    pub stdout: bool,
}

impl Terminal {
    /// The standard streams of this process.
    #[must_use]
    pub fn of_process(color: ColorChoice) -> Self {
        let stdout = std::io::stdout().is_terminal();
        let colours = match color {
            ColorChoice::Auto => stdout && !is_set(std::env::var_os("NO_COLOR")),
            ColorChoice::Always => true,
            ColorChoice::Never => false,
        };
        Self {
            style: Style {
                colours,
                columns: columns().unwrap_or(COLUMNS),
                ..Style::default()
            },
            stdin: std::io::stdin().is_terminal(),
            stdout,
        }
    }

    /// Returns a copy with or without header lines.
    #[must_use]
    pub fn with_headers(self, headers: bool) -> Self {
        let style = Style {
            headers,
            ..self.style
        };
        Self { style, ..self }
    }

    /// Prints a document.
    ///
    /// # Errors
    /// If standard output cannot be written to.
    pub fn print(&self, document: &impl Document, format: Format) -> Result<(), Failure> {
        write(&rendered(document, format, self.style)?)
    }
}

/// The columns of the terminal on standard output. A terminal without a size reports 0.
fn columns() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    let columns = usize::from(size.ws_col);
    (columns > 0).then(|| columns.max(COLUMNS_MIN))
}

/// Whether NO_COLOR disables colours: it is set and not empty (<https://no-color.org>).
fn is_set(variable: Option<OsString>) -> bool {
    variable.is_some_and(|value| !value.is_empty())
}

/// Renders a document in one format, with a line feed at its end. An empty list without headers
/// gives an empty text.
///
/// # Errors
/// If the document cannot be serialized. This does not happen with the documents of this crate.
pub fn rendered<D: Document>(
    document: &D,
    format: Format,
    style: Style,
) -> Result<String, anyhow::Error> {
    let whole = Whole {
        api_version: API_VERSION,
        kind: D::KIND,
        document,
    };
    let text = match format {
        Format::Table => document.text(style),
        Format::Wide => document.text(Style {
            columns: usize::MAX,
            wide: true,
            ..style
        }),
        Format::Name => document.names().join("\n"),
        Format::Json => serde_json::to_string_pretty(&whole)?,
        Format::Yaml => serde_yaml::to_string(&whole)?,
    };
    Ok(match text.trim_end() {
        "" => String::new(),
        text => format!("{text}\n"),
    })
}

/// Writes to standard output.
///
/// # Errors
/// If the write fails.
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
