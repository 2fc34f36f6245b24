//! Errors of a configuration, with their positions in its text.

use std::fmt::{self, Display};
use std::ops::RangeInclusive;

use serde::de::DeserializeOwned;

use crate::Position;
use crate::locate::locate;

/// Why a configuration is invalid.
#[derive(Debug)]
pub struct ConfigError {
    /// The position in the text. `None`: the configuration has no text, or the field is not in the text.
    pub at: Option<Position>,
    /// Path of the field, such as `forwards[2].listen`. Empty: the whole document.
    field: String,
    /// The problem and the expected value.
    problem: String,
}

impl std::error::Error for ConfigError {}

impl Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(at) = self.at {
            write!(f, "{at}: ")?;
        }
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.problem)
    }
}

impl ConfigError {
    /// The error of a field, without a position. `field` is its path. Empty: the whole document.
    pub fn field(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self {
            at: None,
            field: field.into(),
            problem: problem.into(),
        }
    }

    /// The error of the first problem, if there is one: its field, and what is wrong.
    pub(crate) fn unless_none<F: Into<String>, P: Into<String>>(
        problem: Option<(F, P)>,
    ) -> Result<(), Self> {
        match problem {
            Some((field, problem)) => Err(Self::field(field, problem)),
            None => Ok(()),
        }
    }

    /// Checks that the value of `field` is within `range`.
    pub(crate) fn unless_in<T: PartialOrd + Display>(
        field: &str,
        value: T,
        range: RangeInclusive<T>,
    ) -> Result<(), Self> {
        let is_out = !range.contains(&value);
        let (least, most) = range.into_inner();
        Self::unless_none(is_out.then(|| (field, format!("must be from {least} to {most}"))))
    }

    /// Checks that the list `field` has at most `most` entries.
    pub(crate) fn unless_at_most(field: &str, count: usize, most: usize) -> Result<(), Self> {
        let problem = || format!("has {count} entries, at most {most} are allowed");
        Self::unless_none((count > most).then(|| (field, problem())))
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
        let word = word(&self.problem);
        // An unknown key has no value to search for, so the search starts at its parent.
        let parent = word.and_then(|word| self.field.strip_suffix(word));
        let path = parent.map_or(&*self.field, |parent| parent.trim_end_matches('.'));
        let at = locate(text, path, word);
        Self { at, ..self }
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
        let error = ConfigError::field(path, problem).within(text);
        // If the whole text is invalid, only the parser knows the position.
        let of_parser = place.map(|place| Position {
            line: place.line(),
            column: place.column(),
        });
        let at = error.at.or(of_parser);
        ConfigError { at, ..error }
    })
}

/// The key that a parser's message about a mapping names, without an index.
fn word(problem: &str) -> Option<&str> {
    let kinds = ["unknown field ", "duplicate field "];
    let mut rest = kinds.iter().filter_map(|kind| problem.strip_prefix(kind));
    let rest = rest.next().unwrap_or(problem);
    rest.strip_prefix('`')?.split(['`', '[']).next()
}
