//! What goes to standard output: a document as a table for people, or as JSON or YAML for programs.

use std::ffi::OsString;
use std::io::{IsTerminal, Write};

use anyhow::Context;
use clap::ValueEnum;
use serde::Serialize;

use crate::end::Failure;

/// `apiVersion` of every document.
pub const API_VERSION: &str = "cli.muxtunnel.dev/v1alpha1";
/// Columns of text where standard output is no terminal.
pub const COLUMNS: usize = 100;
/// Columns that a terminal has at least; a narrower one breaks lines itself.
const COLUMNS_MIN: usize = 60;

/// The form of a document.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Table,
    /// For people: with further columns, and each object on one line.
    Wide,
    /// The name of each object, as kubectl takes it.
    Name,
    /// One JSON document.
    Json,
    /// One YAML document.
    Yaml,
}

/// When words have colours.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum ColorChoice {
    /// On a terminal, unless NO_COLOR is set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// What a command answers.
pub trait Document: Serialize {
    /// For people.
    fn text(&self, style: Style) -> String;

    /// The names of its objects, for [`Format::Name`].
    fn names(&self) -> Vec<String> {
        Vec::new()
    }
}

/// How text for people is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    /// Words have colours.
    pub colours: bool,
    /// Columns of a line. Text is broken between words, so a line of one long word is longer.
    pub columns: usize,
    /// With further columns ([`Format::Wide`]).
    pub wide: bool,
    /// Lists have a line of headers.
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

    /// The same, with or without headers of lists.
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

/// The columns of the terminal that is standard output. A terminal without a size has 0.
fn columns() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    let columns = usize::from(size.ws_col);
    (columns > 0).then(|| columns.max(COLUMNS_MIN))
}

/// Whether NO_COLOR asks for no colours: it is there and not empty (<https://no-color.org>).
fn is_set(variable: Option<OsString>) -> bool {
    variable.is_some_and(|value| !value.is_empty())
}

/// A document in one form, with a line feed at its end; nothing where a list without headers is empty.
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
        Format::Wide => document.text(Style {
            columns: usize::MAX,
            wide: true,
            ..style
        }),
        Format::Name => document.names().join("\n"),
        Format::Json => serde_json::to_string_pretty(document)?,
        Format::Yaml => serde_yaml::to_string(document)?,
    };
    Ok(match text.trim_end() {
        "" => String::new(),
        text => format!("{text}\n"),
    })
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
