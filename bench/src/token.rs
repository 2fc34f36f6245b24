//! The bearer token that operator, runner and agents of one benchmark share.

use std::path::Path;

use anyhow::{Context, bail};
use subtle::ConstantTimeEq;

/// Least length of a token, bytes.
const BYTES_MIN: usize = 16;
/// Most bytes of a token file.
const BYTES_MAX: usize = 1024;

/// A token; never printed.
#[derive(Clone)]
pub struct Token(String);

impl Token {
    /// Reads the token from a file; white space around it does not count.
    ///
    /// # Errors
    /// The file cannot be read, or does not hold 16 to 1024 printable ASCII characters.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("the token file {} cannot be read", path.display()))?;
        Self::new(text.trim()).with_context(|| format!("token file {}", path.display()))
    }

    /// `text` as a token.
    ///
    /// # Errors
    /// It is not 16 to 1024 printable ASCII characters without spaces.
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

    /// Whether an `Authorization` header has this token. Takes as long for a nearly right token as
    /// for a wrong one of the same length.
    #[must_use]
    pub fn admits(&self, header: Option<&[u8]>) -> bool {
        let Some(offered) = header.and_then(|header| header.strip_prefix(b"Bearer ")) else {
            return false;
        };
        self.0.as_bytes().ct_eq(offered).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_exact_token_is_admitted() {
        let token = Token::new("0123456789abcdef").unwrap();
        assert!(token.admits(Some(token.header().as_bytes())));
        for wrong in [
            "",
            "Bearer ",
            "Bearer 0123456789abcdeg",
            "Bearer 0123456789abcdef0",
            "0123456789abcdef",
        ] {
            assert!(!token.admits(Some(wrong.as_bytes())), "{wrong:?}");
        }
        assert!(!token.admits(None));
    }

    #[test]
    fn a_short_or_unprintable_token_is_refused() {
        assert!(Token::new("short").is_err());
        assert!(Token::new("0123456789 abcdef").is_err());
    }
}
