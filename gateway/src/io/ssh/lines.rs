//! The elements of lines in OpenSSH's files: fields, keys and patterns.

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

/// Matches a name against a pattern with `*` and `?`. The cost is linear, except for the part after
/// the last `*`, which is tried at each position.
pub(super) fn glob(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut begin) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while begin < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, begin));
                at += 1;
            }
            Some(byte) if *byte == b'?' || *byte == name[begin] => {
                at += 1;
                begin += 1;
            }
            _ => match star {
                Some((position, from)) => {
                    star = Some((position, from + 1));
                    at = position + 1;
                    begin = from + 1;
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

/// Works like [`glob`], but ignores case.
pub(super) fn glob_in_any_case(pattern: &str, name: &str) -> bool {
    let lower = |text: &str| text.to_ascii_lowercase();
    glob(lower(pattern).as_bytes(), lower(name).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_far_as_they_say() {
        for (pattern, name, is_match) in [
            ("", "", true),
            ("*", "", true),
            ("a*b*c", "axxbyyc", true),
            ("a*b*c", "axxbyy", false),
            ("*a", "aaab", false),
            ("?", "", false),
            ("**?", "a", true),
        ] {
            assert_eq!(
                glob(pattern.as_bytes(), name.as_bytes()),
                is_match,
                "{pattern} {name}"
            );
        }
        assert!(glob_in_any_case("A*", "aB") && !glob_in_any_case("a", "b"));
    }

    #[test]
    fn lines_that_say_nothing_are_counted_and_left_out() {
        let text = "# a comment\n\n one \r\n\t# another\ntwo";
        assert_eq!(lines(text).collect::<Vec<_>>(), [(3, "one"), (5, "two")]);
    }
}
