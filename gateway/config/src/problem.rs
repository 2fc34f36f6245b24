//! Errors of a configuration, with their positions in its text.

use std::fmt::Display;
use std::ops::RangeInclusive;

use serde::de::DeserializeOwned;

use crate::Position;
use crate::locate::locate;

/// Why a configuration is invalid.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// An error at a position in the text.
    #[error("{at}: {}{problem}", prefix(.field))]
    At {
        /// The position.
        at: Position,
        /// Path of the field, such as `forwards[2].listen`. Empty: the whole document.
        field: String,
        /// The problem and the expected value.
        problem: String,
    },
    /// An error without a position: the configuration has no text, or the field is not in the text.
    #[error("{}{problem}", prefix(.field))]
    Field {
        /// Path of the field. Empty: the whole document.
        field: String,
        /// The problem and the expected value.
        problem: String,
    },
}

fn prefix(field: &str) -> String {
    match field {
        "" => String::new(),
        field => format!("{field}: "),
    }
}

impl ConfigError {
    pub(crate) fn field(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Field {
            field: field.into(),
            problem: problem.into(),
        }
    }

    /// Checks that the value of `field` is within `range`.
    pub(crate) fn unless_in<T: PartialOrd + Display>(
        field: &str,
        value: T,
        range: RangeInclusive<T>,
    ) -> Result<(), Self> {
        match range.contains(&value) {
            true => Ok(()),
            false => {
                let (least, most) = (range.start(), range.end());
                Err(Self::field(
                    field,
                    format!("must be from {least} to {most}"),
                ))
            }
        }
    }

    /// Checks that the list `field` has at most `most` entries.
    pub(crate) fn unless_at_most(field: &str, count: usize, most: usize) -> Result<(), Self> {
        match count <= most {
            true => Ok(()),
            false => {
                let problem = format!("has {count} entries, at most {most} are allowed");
                Err(Self::field(field, problem))
            }
        }
    }

    /// Checks each item of the list `field`.
    pub(crate) fn each<T>(
        field: &str,
        items: &[T],
        check: impl Fn(&T) -> Result<(), String>,
    ) -> Result<(), Self> {
        let mut numbered = items.iter().enumerate();
        numbered.try_for_each(|(index, item)| {
            check(item).map_err(|problem| Self::field(format!("{field}[{index}]"), problem))
        })
    }

    /// Adds the position of the field in `text`.
    pub(crate) fn within(self, text: &str) -> Self {
        let Self::Field { field, problem } = self else {
            return self;
        };
        let word = word(&problem);
        // An unknown key has no value to search for, so the search starts at its parent.
        let parent = word.and_then(|word| field.strip_suffix(word));
        let path = parent.map_or(&*field, |parent| parent.trim_end_matches('.'));
        match locate(text, path, word) {
            Some(at) => Self::At { at, field, problem },
            None => Self::Field { field, problem },
        }
    }
}

/// Parses `text`.
///
/// # Errors
/// The text is not valid YAML or does not match the type. The error has its position.
pub(crate) fn read<T: DeserializeOwned>(text: &str) -> Result<T, ConfigError> {
    let read = serde_path_to_error::deserialize(serde_yaml::Deserializer::from_str(text));
    read.map_err(|error| {
        let path = error.path().to_string();
        // The path contains `?` for a value that is not parsed yet.
        let path = path.split('?').next().unwrap_or_default();
        let path = path.trim_end_matches('.').to_owned();
        let error = error.inner();
        let place = error.location();
        let mut problem = error.to_string();
        if let Some(place) = &place {
            // The position is printed once, at the start of the message.
            let place = format!(" at line {} column {}", place.line(), place.column());
            problem = problem.replacen(&place, "", 1);
        }
        // The parser repeats the path of the enclosing mapping.
        let around = path.rmatch_indices(['.', '[']).map(|(at, _)| &path[..at]);
        for path in std::iter::once(&*path).chain(around) {
            if let Some(rest) = problem.strip_prefix(&format!("{path}: ")) {
                problem = rest.to_owned();
                break;
            }
        }
        match ConfigError::field(path, problem).within(text) {
            // The whole text is invalid, so only the parser knows the position.
            ConfigError::Field { field, problem } => match place {
                Some(place) => {
                    let (line, column) = (place.line(), place.column());
                    let at = Position { line, column };
                    ConfigError::At { at, field, problem }
                }
                None => ConfigError::Field { field, problem },
            },
            located => located,
        }
    })
}

/// The key that a parser's message about a mapping names, without an index.
fn word(problem: &str) -> Option<&str> {
    let kinds = ["unknown field ", "duplicate field "];
    let mut rest = kinds.iter().filter_map(|kind| problem.strip_prefix(kind));
    let rest = rest.next().unwrap_or(problem);
    rest.strip_prefix('`')?.split(['`', '[']).next()
}
