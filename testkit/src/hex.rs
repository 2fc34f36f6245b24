//! Bytes as tests write them.

use data_encoding::HEXLOWER_PERMISSIVE;

/// The bytes of `text`, in which nothing but hexadecimal digits counts: `1c 00 / 00`.
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
