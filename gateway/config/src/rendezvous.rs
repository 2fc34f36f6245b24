//! Gateways that meet at a third one: what a leaf shows there, and what the rendezvous knows.

use serde::{Deserialize, Serialize};

use crate::{Config, ConfigError, Role};

/// Longest name, characters.
const NAME_LENGTH_MAX: usize = 63;

/// What a leaf gateway shows to the rendezvous at `connect`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Leaf {
    /// The name under which the exit is visited: 1 to 63 lower-case letters, digits, `-`, `_` and `.`.
    pub name: String,
    /// The file with the name's secret for this role, at least 16 bytes.
    pub secret_file: String,
}

/// A rendezvous listens and has secrets, a leaf connects; none of them anything else.
pub(crate) fn check(config: &Config) -> Result<(), ConfigError> {
    let is_rendezvous = config.role == Role::Rendezvous;
    let wrong = |field, problem: &str| Err(ConfigError::field(field, problem));
    if is_rendezvous != config.secrets_file.is_some() {
        let problem = "a rendezvous needs the file of its names' secrets; nobody else has one";
        return wrong("secretsFile", problem);
    }
    let Some(leaf) = &config.rendezvous else {
        return Ok(());
    };
    if is_rendezvous {
        return wrong("rendezvous", "a rendezvous is no leaf of another one");
    }
    if config.connect_fallback.is_some() {
        return wrong("connectFallback", "leads to no rendezvous: leave it out");
    }
    let may = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_.".contains(&b);
    if !(1..=NAME_LENGTH_MAX).contains(&leaf.name.len()) || !leaf.name.bytes().all(may) {
        let problem = "must be 1 to 63 lower-case letters, digits, -, _ and .";
        return wrong("rendezvous.name", problem);
    }
    match &config.connect {
        Some(connect) if connect.contains(',') => wrong("connect", "a leaf has one rendezvous"),
        _ => Ok(()),
    }
}
