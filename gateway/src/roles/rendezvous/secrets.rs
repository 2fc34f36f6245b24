//! Secrets of names, read from files. A leaf's file contains the secret of the leaf's name, and a
//! rendezvous's file contains the secrets of all names.
//!
//! The secrets are wiped from memory when they are dropped, and never printed.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use muxtunnel_proto::rendezvous::{Purpose, is_name};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use crate::base::files::{Unusable, read_text};

/// Minimum length of a secret: 128 bits if the bytes are random.
const SECRET_BYTES_MIN: usize = 16;
/// Maximum number of names.
const NAMES_MAX: usize = 4096;

/// A secret that a leaf and the rendezvous share.
pub(crate) struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// Reads a leaf's file. White space around the secret is ignored.
    ///
    /// # Errors
    /// The file cannot be read, or contains no valid secret.
    pub(crate) fn read(path: &Path) -> Result<Self, Unusable> {
        Self::new(read_text(path)?.trim()).map_err(|problem| Unusable::new(path, problem))
    }

    pub(super) fn new(text: &str) -> Result<Self, String> {
        if text.len() < SECRET_BYTES_MIN {
            return Err(format!(
                "the secret has {} bytes: expected at least {SECRET_BYTES_MIN}, for example from `openssl rand -hex 32`",
                text.len()
            ));
        }
        Ok(Self(Zeroizing::new(text.as_bytes().to_vec())))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn is(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret").finish_non_exhaustive()
    }
}

/// The two secrets of a name, by role. A leaf that may only visit a name must not be able to
/// register the name in place of the exit.
#[derive(Debug)]
struct Roles {
    /// The secret for registering the name, and for answering invitations.
    exit: Secret,
    /// The secret for visiting the name.
    entry: Secret,
}

/// The secrets of all names.
#[derive(Debug)]
pub(crate) struct Secrets {
    by_name: BTreeMap<String, Roles>,
    /// A random secret for all unknown names, so that a proof for an unknown name takes the same
    /// time.
    unknown: Secret,
}

impl Secrets {
    /// Reads a file of lines `NAME EXIT-SECRET ENTRY-SECRET`. The function ignores empty lines and
    /// lines that begin with `#`.
    ///
    /// # Errors
    /// The file cannot be read, or a line is invalid.
    pub(crate) fn read(path: &Path) -> Result<Self, Unusable> {
        Self::parse(&read_text(path)?).map_err(|problem| Unusable::new(path, problem))
    }

    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut by_name = BTreeMap::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let at = |problem: String| format!("line {}: {problem}", index + 1);
            let words: Vec<&str> = line.split_whitespace().collect();
            let [name, exit, entry] = words[..] else {
                return Err(at("expected NAME EXIT-SECRET ENTRY-SECRET".to_owned()));
            };
            if !is_name(name) {
                return Err(at(
                    "invalid name: expected 1 to 63 characters of a-z, 0-9, '-', '_' and '.'"
                        .to_owned(),
                ));
            }
            let [exit, entry] = [exit, entry].map(Secret::new);
            let roles = Roles {
                exit: exit.map_err(at)?,
                entry: entry.map_err(at)?,
            };
            if roles.exit.is(&roles.entry) {
                return Err(at(
                    "both secrets are the same, so an entry could register the name: use two different secrets".to_owned(),
                ));
            }
            if by_name.insert(name.to_owned(), roles).is_some() {
                return Err(at(format!("duplicate name {name:?}")));
            }
        }
        if by_name.len() > NAMES_MAX {
            return Err(format!("more than {NAMES_MAX} names"));
        }
        let unknown = Secret(Zeroizing::new(rand::random::<[u8; 32]>().to_vec()));
        Ok(Self { by_name, unknown })
    }

    /// The secret of a name for a purpose. If the name is unknown, a random secret.
    pub(super) fn of(&self, name: &str, purpose: Purpose) -> &Secret {
        match (self.by_name.get(name), purpose) {
            (Some(roles), Purpose::Register | Purpose::Attend(_)) => &roles.exit,
            (Some(roles), Purpose::Visit) => &roles.entry,
            (None, _) => &self.unknown,
        }
    }

    /// Whether both sets have the same exit secret for the name.
    pub(super) fn agree_on(&self, other: &Self, name: &str) -> bool {
        let both = self.by_name.get(name).zip(other.by_name.get(name));
        both.is_some_and(|(one, another)| one.exit.is(&another.exit))
    }

    /// The number of names.
    pub(super) fn names(&self) -> usize {
        self.by_name.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_used_says_where() {
        for (text, problem) in [
            ("db", "line 1: expected NAME EXIT-SECRET ENTRY-SECRET"),
            (
                "db 0123456789abcdef",
                "line 1: expected NAME EXIT-SECRET ENTRY-SECRET",
            ),
            (
                "db 0123456789abcdef 0123456789abcdef",
                "line 1: both secrets are the same",
            ),
            (
                "# x\nDB 0123456789abcdef 1123456789abcdef",
                "line 2: invalid name",
            ),
            ("db 0123 1123456789abcdef", "line 1"),
            (
                "db 0123456789abcdef 1123456789abcdef\ndb 0123456789abcdef 1123456789abcdef",
                "line 2: duplicate name \"db\"",
            ),
        ] {
            let error = Secrets::parse(text).unwrap_err();
            assert!(error.starts_with(problem), "{error}");
            assert!(!error.contains("0123456789"), "{error}");
        }
    }

    #[test]
    fn nothing_shows_a_secret() {
        let secrets = Secrets::parse("db hunter2hunter2hunter2 hunter3hunter3hunter3").unwrap();
        assert!(!format!("{secrets:?}").contains("hunter"));
        assert!(
            !format!("{secrets:?}").contains("104"),
            "the bytes of a secret, as decimal numbers"
        );
    }

    #[test]
    fn a_name_has_the_same_secret_or_not() {
        let lines = |lines: &[(&str, &str)]| {
            let line =
                |(name, secret): &(&str, &str)| format!("{name} {secret} entry-of-16-bytes\n");
            Secrets::parse(&lines.iter().map(line).collect::<String>()).unwrap()
        };
        let old = lines(&[("a", "0123456789abcdef"), ("b", "0123456789abcdef")]);
        let new = lines(&[
            ("a", "0123456789abcdef"),
            ("b", "0123456789abcdeg"),
            ("c", "0123456789abcdef"),
        ]);
        assert!(new.agree_on(&old, "a"));
        assert!(!new.agree_on(&old, "b") && !new.agree_on(&old, "c"));
    }
}
