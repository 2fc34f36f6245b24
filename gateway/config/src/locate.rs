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

/// A value in the text and its children.
struct Node {
    at: Position,
    inner: Inner,
}

enum Inner {
    Scalar,
    /// Each item has the name and the position of its key, and its value.
    Mapping(Vec<(String, Position, Node)>),
    Sequence(Vec<Node>),
}

/// Returns the position of the value at `path`, such as `forwards[1].listen`, or of its closest
/// ancestor that exists. If that value has a key `word`, returns the position of the key's last
/// occurrence. `None`: the text is not valid YAML, or is nested more than [`DEPTH_MAX`] deep.
pub(crate) fn locate(text: &str, path: &str, word: Option<&str>) -> Option<Position> {
    let mut node = &read(text)?;
    let mut place = node.at;
    for step in path.split(['.', '[']).filter(|step| !step.is_empty()) {
        let next = match &node.inner {
            Inner::Scalar => None,
            Inner::Sequence(items) => {
                let index: Option<usize> =
                    step.strip_suffix(']').and_then(|step| step.parse().ok());
                index
                    .and_then(|index| items.get(index))
                    .map(|next| (next.at, next))
            }
            Inner::Mapping(items) => {
                let found = items.iter().find(|(key, ..)| key == step);
                found.map(|(_, _, next)| (next.at, next))
            }
        };
        let Some((at, next)) = next else {
            return Some(place);
        };
        (place, node) = (at, next);
    }
    let key = match (&node.inner, word) {
        (Inner::Mapping(items), Some(word)) => items.iter().rfind(|(key, ..)| key == word),
        _ => None,
    };
    Some(key.map_or(place, |(_, at, _)| *at))
}

fn read(text: &str) -> Option<Node> {
    let mut parser = Parser::new_from_str(text);
    loop {
        match next(&mut parser)? {
            (Event::StreamStart | Event::DocumentStart(..), _) => {}
            (event, at) => return node(&mut parser, &event, at, 0),
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

/// The value that begins with `event`.
fn node<'a>(
    parser: &mut impl Iterator<Item = Result<(Event<'a>, Span), granit_parser::ScanError>>,
    event: &Event<'a>,
    at: Position,
    depth: usize,
) -> Option<Node> {
    if depth > DEPTH_MAX {
        return None;
    }
    let inner = match event {
        Event::MappingStart(..) => {
            let mut items = Vec::new();
            loop {
                let (key, key_at) = next(parser)?;
                let name = match &key {
                    Event::MappingEnd => break Inner::Mapping(items),
                    Event::Scalar(name, ..) => name.to_string(),
                    _ => {
                        node(parser, &key, key_at, depth + 1)?;
                        String::new()
                    }
                };
                let (value, at) = next(parser)?;
                items.push((name, key_at, node(parser, &value, at, depth + 1)?));
            }
        }
        Event::SequenceStart(..) => {
            let mut items = Vec::new();
            loop {
                match next(parser)? {
                    (Event::SequenceEnd, _) => break Inner::Sequence(items),
                    (item, at) => items.push(node(parser, &item, at, depth + 1)?),
                }
            }
        }
        _ => Inner::Scalar,
    };
    Some(Node { at, inner })
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
