//! The only sanitizer of foreign text in log lines, answers and errors.
//!
//! A peer, a client or a rendezvous may send any text. The escapes prevent three attacks:
//!
//! - A line break starts a forged line.
//! - An escape sequence controls the terminal that shows the log.
//! - The text ` code=` looks like a field of the gateway.

use std::fmt::{self, Write};

/// Displays text with control characters escaped, for example as `\n` or `\u{1b}`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Printable<'a>(pub(crate) &'a str);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Escape(f).write_str(self.0)
    }
}

/// Passes on written text, with control characters escaped.
pub(crate) struct Escape<W>(pub(crate) W);

impl<W: Write> Write for Escape<W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut plain = 0;
        for (at, character) in text.char_indices().filter(|(_, c)| is_hidden(*c)) {
            self.0.write_str(&text[plain..at])?;
            write!(self.0, "{}", character.escape_default())?;
            plain = at + character.len_utf8();
        }
        self.0.write_str(&text[plain..])
    }
}

/// Whether a character is escaped: a control character, a character that ends a line, or a
/// character that reorders other characters.
fn is_hidden(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_shown_as_itself_is_escaped() {
        for (text, shown) in [
            ("db.internal:5432 é", "db.internal:5432 é"),
            ("a\nb\r\tc", "a\\nb\\r\\tc"),
            ("\u{1b}[31mred\u{7f}\u{9b}", "\\u{1b}[31mred\\u{7f}\\u{9b}"),
            ("\u{202e}txt\u{2028}", "\\u{202e}txt\\u{2028}"),
            ("", ""),
        ] {
            assert_eq!(Printable(text).to_string(), shown);
        }
    }
}
