//! Columns as kubectl has them: a head in capitals, two spaces between, no lines drawn. Cells wrap, so that no line
//! is wider than [`COLUMNS`].

use comfy_table::presets::NOTHING;
use comfy_table::{ColumnConstraint, ContentArrangement, Table};

use crate::output::COLUMNS;

/// Draws a table. Each row has as many cells as `head`. Any column may wrap.
#[must_use]
pub(crate) fn draw(head: &[&str], rows: Vec<Vec<String>>) -> String {
    draw_wrapping(head, rows, head)
}

/// Draws a table of which only the columns `wrapping` wrap; what is in the others is short.
#[must_use]
pub(crate) fn draw_wrapping(head: &[&str], rows: Vec<Vec<String>>, wrapping: &[&str]) -> String {
    let mut table = Table::new();
    table
        .load_style(NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(u16::try_from(COLUMNS).unwrap_or(u16::MAX))
        .set_header(head.to_vec())
        .add_rows(rows);
    let last = head.len().saturating_sub(1);
    for (at, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, if at == last { 0 } else { 2 }));
        if !head.get(at).is_some_and(|name| wrapping.contains(name)) {
            column.set_constraint(ColumnConstraint::ContentWidth);
        }
    }
    let lines: Vec<_> = table
        .lines()
        .map(|line| line.trim_end().to_owned())
        .collect();
    lines.join("\n")
}

/// Text in lines of at most `width`, each but the first behind `indent` spaces; words that are longer stay whole.
#[must_use]
pub(crate) fn wrapped(text: &str, indent: usize, width: usize) -> String {
    let mut lines: Vec<String> = vec![String::new()];
    for word in text.split_whitespace() {
        let Some(line) = lines.last_mut() else {
            break;
        };
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() + indent <= width {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines.join(&format!("\n{}", " ".repeat(indent)))
}

/// Shell commands, a line each, in lines of at most `width` that can be copied together: broken between words, never
/// within quotes, with a backslash at the end. Each line but the first stands behind `indent` spaces.
#[must_use]
pub(crate) fn commands(text: &str, indent: usize, width: usize) -> String {
    let broken = |command| {
        let mut lines: Vec<String> = Vec::new();
        for word in shell_words(command) {
            // Further lines of a command stand two columns to the right; two more are for the backslash.
            let margin = indent + 2 + 2;
            match lines.last_mut() {
                Some(line) if line.chars().count() + 1 + word.chars().count() + margin <= width => {
                    line.push(' ');
                    line.push_str(word);
                }
                _ => lines.push(word.to_owned()),
            }
        }
        lines.join(&format!(" \\\n{}", " ".repeat(indent + 2)))
    };
    let commands: Vec<_> = text.lines().map(broken).collect();
    commands.join(&format!("\n{}", " ".repeat(indent)))
}

/// The words of a command as they were written, with their quotes.
fn shell_words(command: &str) -> impl Iterator<Item = &str> {
    let mut quote = None;
    command
        .split(move |letter| {
            match (quote, letter) {
                (None, '"' | '\'') => quote = Some(letter),
                (Some(open), letter) if open == letter => quote = None,
                _ => {}
            }
            quote.is_none() && letter == ' '
        })
        .filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_below_each_other_and_lines_end_with_a_word() {
        let rows = vec![
            vec!["a".into(), "longer".into()],
            vec!["bb".into(), String::new()],
        ];
        assert_eq!(draw(&["ONE", "TWO"], rows), "ONE  TWO\na    longer\nbb");
    }

    #[test]
    fn long_cells_wrap_within_the_width() {
        let words = "word ".repeat(60);
        let drawn = draw(&["NAME", "MESSAGE"], vec![vec!["a-name".into(), words]]);
        assert!(drawn.lines().count() > 3, "{drawn}");
        assert!(
            drawn.lines().all(|line| line.chars().count() <= COLUMNS),
            "{drawn}"
        );
        assert!(
            drawn
                .lines()
                .nth(1)
                .is_some_and(|line| line.starts_with("a-name  word"))
        );
    }

    #[test]
    fn commands_are_broken_where_a_shell_joins_them_again() {
        let text = "one --flag=\"two words\" three\nfour";
        assert_eq!(
            commands(text, 2, 40),
            "one --flag=\"two words\" three\n  four"
        );
        let narrow = commands(text, 2, 30);
        assert_eq!(narrow, "one --flag=\"two words\" \\\n    three\n  four");
        let words = shlex::split(&narrow.replace("\\\n", "")).unwrap();
        assert_eq!(words, ["one", "--flag=two words", "three", "four"]);
    }

    #[test]
    fn wrapped_text_keeps_its_words() {
        assert_eq!(wrapped("one two three", 2, 9), "one two\n  three");
        assert_eq!(
            wrapped("a-word-that-is-too-long b", 2, 9),
            "a-word-that-is-too-long\n  b"
        );
    }
}
