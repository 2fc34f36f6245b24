//! Patterns with `*` and `?`, as in the files of OpenSSH.

/// Matches a name against a pattern with `*` and `?`. The cost is linear, except for the part after
/// the last `*`, which is tried at each position.
pub(crate) fn glob(pattern: &[u8], name: &[u8]) -> bool {
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
pub(crate) fn glob_in_any_case(pattern: &str, name: &str) -> bool {
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
}
