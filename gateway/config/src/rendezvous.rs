//! Gateways that meet at a rendezvous: the name and secret of a leaf, and the checks of the fields.

use serde::{Deserialize, Serialize};

use crate::{Config, ConfigError, Role};

/// Maximum length of a name, in characters.
const NAME_LENGTH_MAX: usize = 63;

/// The name and secret with which a leaf gateway authenticates to the rendezvous at `connect`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Leaf {
    /// The name under which the exit registers: 1 to 63 lower-case letters, digits, `-`, `_` and
    /// `.`.
    pub name: String,
    /// The file with the secret of this name and role, at least 16 bytes.
    pub secret_file: String,
}

/// Checks that a rendezvous has `secretsFile` and no `rendezvous`, and that a leaf has a valid name
/// and one address in `connect`.
pub(crate) fn check(config: &Config) -> Result<(), ConfigError> {
    let is_rendezvous = config.role == Role::Rendezvous;
    let wrong = |field, problem: &str| Err(ConfigError::field(field, problem));
    if is_rendezvous != config.secrets_file.is_some() {
        let problem = if is_rendezvous {
            "a rendezvous needs this field: the file with the secrets of all names"
        } else {
            "only a rendezvous has this field: remove the field"
        };
        return wrong("secretsFile", problem);
    }
    let Some(leaf) = &config.rendezvous else {
        return Ok(());
    };
    if is_rendezvous {
        return wrong(
            "rendezvous",
            "a rendezvous cannot connect to another rendezvous: remove the field",
        );
    }
    let may = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_.".contains(&b);
    if !(1..=NAME_LENGTH_MAX).contains(&leaf.name.len()) || !leaf.name.bytes().all(may) {
        let problem = "must be 1 to 63 lower-case letters, digits, -, _ and .";
        return wrong("rendezvous.name", problem);
    }
    Ok(())
}
