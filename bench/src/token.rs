//! The bearer tokens of a benchmark: the token that runner and agents share, and the operator's
//! token.
//!
//! The operator may not read Secrets, so after a restart it no longer has its token. The operator
//! then creates a new token and publishes the token's hash in a ConfigMap. The runner reads the
//! ConfigMap as a mounted file.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// Least length of a token, bytes.
const BYTES_MIN: usize = 16;
/// Maximum number of bytes of a token file.
const BYTES_MAX: usize = 1024;

/// A bearer token, which is never printed.
#[derive(Clone)]
pub struct Token(String);

impl Token {
    /// Reads the token from a file, and removes white space around the token.
    ///
    /// # Errors
    /// If the file cannot be read, or does not contain 16 to 1024 printable ASCII characters.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the token file {}", path.display()))?;
        Self::new(text.trim()).with_context(|| format!("token file {}", path.display()))
    }

    /// `text` as a token.
    ///
    /// # Errors
    /// If the text is not 16 to 1024 printable ASCII characters without spaces.
    pub fn new(text: &str) -> anyhow::Result<Self> {
        let length_good = (BYTES_MIN..=BYTES_MAX).contains(&text.len());
        if !length_good || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            bail!(
                "a token is {BYTES_MIN} to {BYTES_MAX} printable ASCII characters without spaces"
            );
        }
        Ok(Self(text.to_owned()))
    }

    /// The value of the `Authorization` header.
    #[must_use]
    pub fn header(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

/// The condition on which a request is admitted.
#[derive(Clone)]
pub enum Admission {
    /// Requests with this token.
    Token(Token),
    /// Requests with a token whose SHA-256, in hexadecimal, is in this file at the time of the
    /// request.
    HashFile(PathBuf),
}

impl Admission {
    /// Whether an `Authorization` header is admitted. The comparison takes the same time for all
    /// tokens of one length.
    #[must_use]
    pub fn admits(&self, header: Option<&[u8]>) -> bool {
        let Some(offered) = header.and_then(|header| header.strip_prefix(b"Bearer ")) else {
            return false;
        };
        match self {
            Self::Token(token) => token.0.as_bytes().ct_eq(offered).into(),
            Self::HashFile(path) => {
                // A missing file admits no request.
                let wanted = std::fs::read_to_string(path).unwrap_or_default();
                sha256_hex(offered)
                    .as_bytes()
                    .ct_eq(wanted.trim().as_bytes())
                    .into()
            }
        }
    }
}

/// SHA-256 in lower-case hexadecimal.
#[must_use]
pub fn sha256_hex(bytes: &[u8]) -> String {
    HEXLOWER.encode(&Sha256::digest(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_exact_token_is_admitted() {
        let token = Token::new("0123456789abcdef").unwrap();
        let admission = Admission::Token(token.clone());
        assert!(admission.admits(Some(token.header().as_bytes())));
        for wrong in [
            "",
            "Bearer ",
            "Bearer 0123456789abcdeg",
            "Bearer 0123456789abcdef0",
            "0123456789abcdef",
        ] {
            assert!(!admission.admits(Some(wrong.as_bytes())), "{wrong:?}");
        }
        assert!(!admission.admits(None));
    }

    #[test]
    fn a_published_hash_admits_its_token_until_it_changes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sha256");
        let admission = Admission::HashFile(path.clone());
        let header = Token::new("0123456789abcdef").unwrap().header();
        assert!(
            !admission.admits(Some(header.as_bytes())),
            "no file admits nobody"
        );
        assert!(!admission.admits(Some(b"Bearer ")), "no file admits nobody");
        std::fs::write(&path, sha256_hex(b"0123456789abcdef") + "\n").unwrap();
        assert!(admission.admits(Some(header.as_bytes())));
        assert!(!admission.admits(Some(b"Bearer 0123456789abcdeg")));
        std::fs::write(&path, sha256_hex(b"another-token-012")).unwrap();
        assert!(!admission.admits(Some(header.as_bytes())));
    }

    #[test]
    fn a_short_or_unprintable_token_is_refused() {
        assert!(Token::new("short").is_err());
        assert!(Token::new("0123456789 abcdef").is_err());
    }
}
