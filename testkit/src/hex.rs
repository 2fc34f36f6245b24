//! Bytes in hexadecimal digits.

use data_encoding::HEXLOWER_PERMISSIVE;

/// Parses the hexadecimal digits of `text` and ignores all other characters: `1c 00 / 00`.
#[must_use]
pub fn bytes(text: &str) -> Vec<u8> {
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    HEXLOWER_PERMISSIVE.decode(digits.as_bytes()).unwrap()
}

/// `bytes` as lower-case hexadecimal digits.
#[must_use]
pub fn digits(bytes: &[u8]) -> String {
    HEXLOWER_PERMISSIVE.encode(bytes)
}
