//! Finds the position of a field in a YAML text.

use std::fmt;

use granit_parser::{Event, Parser, Span};

/// Maximum nesting depth. In a text with a deeper value, no field has a position.
const DEPTH_MAX: usize = 32;

/// A position in a text, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// The line.
    pub line: usize,
    /// The character in the line.
    pub column: usize,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// Returns the position of the value at `path`, such as `forwards[1].listen`, or of its closest
/// ancestor that exists. If that value has a key `word`, returns the position of the key's last
/// occurrence. `None`: the text is not valid YAML, or is nested more than [`DEPTH_MAX`] deep.
pub(crate) fn locate(text: &str, path: &str, word: Option<&str>) -> Option<Position> {
    let steps = path.split(['.', '[']).filter(|step| !step.is_empty());
    let steps: Vec<_> = steps.collect();
    let mut parser = Parser::new_from_str(text);
    loop {
        match next(&mut parser)? {
            (Event::StreamStart | Event::DocumentStart(..), _) => {}
            (event, at) => return find(&mut parser, &event, at, Some(&*steps), word, 0),
        }
    }
}

/// The next event that is not a comment, and its position.
fn next<'a>(
    parser: &mut impl Iterator<Item = Result<(Event<'a>, Span), granit_parser::ScanError>>,
) -> Option<(Event<'a>, Position)> {
    loop {
        let (event, span) = parser.next()?.ok()?;
        if !matches!(event, Event::Comment(..)) {
            let (line, column) = (span.start.line(), span.start.col() + 1);
            return Some((event, Position { line, column }));
        }
    }
}

/// Reads the value that begins with `event`, and returns the position that [`locate`] returns for the rest of the
/// path. `path`: `None`, unless the value is on the path.
fn find<'a>(
    parser: &mut impl Iterator<Item = Result<(Event<'a>, Span), granit_parser::ScanError>>,
    event: &Event<'a>,
    at: Position,
    path: Option<&[&str]>,
    word: Option<&str>,
    depth: usize,
) -> Option<Position> {
    if depth > DEPTH_MAX {
        return None;
    }
    let is_end = path.is_some_and(<[_]>::is_empty);
    let (mut step, rest) = match path {
        Some([step, rest @ ..]) => (Some(*step), rest),
        _ => (None, &[][..]),
    };
    let mut found = at;
    match event {
        Event::MappingStart(..) => loop {
            let (key, key_at) = next(parser)?;
            let name = match &key {
                Event::MappingEnd => break,
                Event::Scalar(name, ..) => name.to_string(),
                _ => {
                    find(parser, &key, key_at, None, None, depth + 1)?;
                    String::new()
                }
            };
            let (value, at) = next(parser)?;
            let path = (step == Some(&*name)).then_some(rest);
            let inner = find(parser, &value, at, path, word, depth + 1)?;
            if path.is_some() {
                // Only the first of several equal keys counts.
                (found, step) = (inner, None);
            } else if is_end && word == Some(&*name) {
                found = key_at;
            }
        },
        Event::SequenceStart(..) => {
            let wanted: Option<usize> = step.and_then(|step| step.strip_suffix(']')?.parse().ok());
            for index in 0.. {
                let (item, at) = next(parser)?;
                if matches!(item, Event::SequenceEnd) {
                    break;
                }
                let path = (wanted == Some(index)).then_some(rest);
                let inner = find(parser, &item, at, path, word, depth + 1)?;
                if path.is_some() {
                    found = inner;
                }
            }
        }
        _ => {}
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# a tunnel\nrole: Entry\nforwards:\n- name: a   # the first\n  listen: x\n- {name: b,\n   target: {host: h, port: 0}}\n";

    #[test]
    fn a_path_leads_to_its_value_or_as_far_as_there_is_one() {
        for (path, word, line, column) in [
            ("role", None, 2, 7),
            ("forwards[0].listen", None, 5, 11),
            ("forwards[1].target.port", None, 7, 28),
            ("forwards[1].target", Some("host"), 7, 13),
            ("forwards[1].listen", None, 6, 3),
            ("forwards[9].listen", None, 4, 3),
            ("nothing.at.all", None, 2, 1),
            ("", Some("forwards"), 3, 1),
            ("", Some("no such"), 2, 1),
        ] {
            let found = locate(TEXT, path, word).unwrap();
            assert_eq!(found, Position { line, column }, "{path} {word:?}");
        }
    }

    #[test]
    fn what_cannot_be_read_has_no_places() {
        assert_eq!(locate("a: [", "a", None), None);
        let deep = format!("a: {}{}", "[".repeat(100), "]".repeat(100));
        assert_eq!(locate(&deep, "a", None), None);
    }
}
