//! Why a configuration cannot be used, and where in its text that is.

use serde::de::DeserializeOwned;

use crate::Position;
use crate::locate::locate;

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A place of the text.
    #[error("{at}: {}{problem}", prefix(.field))]
    At {
        /// Where.
        at: Position,
        /// Path of the field, such as `forwards[2].listen`; empty: the whole.
        field: String,
        /// What is wrong and what is expected.
        problem: String,
    },
    /// There is no text, or no place in it.
    #[error("{}{problem}", prefix(.field))]
    Field {
        /// Path of the field; empty: the whole.
        field: String,
        /// What is wrong and what is expected.
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

    /// With its place in `text`.
    pub(crate) fn within(self, text: &str) -> Self {
        let Self::Field { field, problem } = self else {
            return self;
        };
        let word = word(&problem);
        // A key that is unknown has no value of interest.
        let parent = word.and_then(|word| field.strip_suffix(word));
        let path = parent.map_or(&*field, |parent| parent.trim_end_matches('.'));
        match locate(text, path, word) {
            Some(at) => Self::At { at, field, problem },
            None => Self::Field { field, problem },
        }
    }
}

/// Reads `text`.
///
/// # Errors
/// It is no YAML, or not of this shape; with its place.
pub(crate) fn read<T: DeserializeOwned>(text: &str) -> Result<T, ConfigError> {
    let read = serde_path_to_error::deserialize(serde_yaml::Deserializer::from_str(text));
    read.map_err(|error| {
        let path = error.path().to_string();
        // What was not read yet has no name.
        let path = path.split('?').next().unwrap_or_default();
        let path = path.trim_end_matches('.').to_owned();
        let error = error.inner();
        let place = error.location();
        let mut problem = error.to_string();
        if let Some(place) = &place {
            // Said once, in front.
            let place = format!(" at line {} column {}", place.line(), place.column());
            problem = problem.replacen(&place, "", 1);
        }
        // The parser's own path is that of the mapping around it.
        let around = path.rmatch_indices(['.', '[']).map(|(at, _)| &path[..at]);
        for path in std::iter::once(&*path).chain(around) {
            if let Some(rest) = problem.strip_prefix(&format!("{path}: ")) {
                problem = rest.to_owned();
                break;
            }
        }
        match ConfigError::field(path, problem).within(text) {
            // The text as a whole cannot be read: only the parser knows how far it came.
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

/// The key that a problem of a mapping is about.
fn word(problem: &str) -> Option<&str> {
    let kinds = ["unknown field ", "duplicate field "];
    let mut rest = kinds.iter().filter_map(|kind| problem.strip_prefix(kind));
    let rest = rest.next().unwrap_or(problem);
    rest.strip_prefix('`')?.split('`').next()
}
