//! The elements of lines in OpenSSH's files: fields and keys.

use russh::keys::ssh_key::{Error, PublicKey};

/// The separators between fields; there may be several.
pub(super) const SPACES: [char; 2] = [' ', '\t'];

/// The lines of a file with their line numbers, without empty lines and comments.
pub(super) fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.lines().enumerate();
    let lines = lines.map(|(index, line)| (index + 1, line.trim()));
    lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}

/// Splits a line into the first field and the rest.
pub(super) fn field(text: &str) -> (&str, &str) {
    match text.split_once(SPACES) {
        Some((field, rest)) => (field, rest.trim_start_matches(SPACES)),
        None => (text, ""),
    }
}

/// Parses `TYPE BASE64 [COMMENT]`. The library's own parser accepts only a single space as a
/// separator.
///
/// # Errors
/// The text is not a key.
pub(super) fn public_key(text: &str) -> Result<PublicKey, Error> {
    let (kind, rest) = field(text);
    let (blob, _) = field(rest);
    PublicKey::from_openssh(&format!("{kind} {blob}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_say_nothing_are_counted_and_left_out() {
        let text = "# a comment\n\n one \r\n\t# another\ntwo";
        assert_eq!(lines(text).collect::<Vec<_>>(), [(3, "one"), (5, "two")]);
    }
}
