//! Tables in kubectl's style: a head in capitals, two spaces between columns, no lines. Only the
//! last column wraps, and only between words, so that names can be copied.

use crate::output::Style;

/// Spaces between columns.
const GAP: usize = 2;
/// Least width of the last column, regardless of the widths of other columns.
const LAST_MIN: usize = 20;

/// Draws a table. Each row has as many cells as `head`.
#[must_use]
pub(crate) fn draw(head: &[&str], rows: Vec<Vec<String>>, style: Style) -> String {
    let head = head.iter().map(|name| (*name).to_owned()).collect();
    let rows: Vec<Vec<String>> = if style.headers {
        std::iter::once(head).chain(rows).collect()
    } else {
        rows
    };
    let columns = rows.first().map_or(0, |row| row.len().saturating_sub(1));
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(|column| width(column) + GAP).collect();
    let indent = widths.iter().sum();
    let columns = style.columns.max(indent + LAST_MIN);
    let line = |row: &Vec<String>| {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(&format!("{cell:width$}"));
        }
        if let Some(last) = row.get(widths.len()) {
            line.push_str(&wrapped(last, indent, columns));
        }
        line.trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Wraps text at `width`. Each line except the first begins with `indent` spaces. Longer words stay
/// whole.
#[must_use]
pub(crate) fn wrapped(text: &str, indent: usize, width: usize) -> String {
    let mut lines: Vec<String> = vec![String::new()];
    for word in text.split_whitespace() {
        let Some(line) = lines.last_mut() else {
            break;
        };
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= width.saturating_sub(indent) {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines.join(&format!("\n{}", " ".repeat(indent)))
}

/// Wraps shell commands, one per line, at `width`. Lines break between words, never within quotes,
/// and end with a backslash, so that the result can be copied. Each line but the first begins with
/// `indent` spaces.
#[must_use]
pub(crate) fn commands(text: &str, indent: usize, width: usize) -> String {
    let broken = |command| {
        let mut lines: Vec<String> = Vec::new();
        for word in shell_words(command) {
            // Continuation lines are indented by two columns. The backslash at the end of a line
            // needs two more columns.
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

/// The words of a command, with their quotes.
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

    fn style(columns: usize) -> Style {
        Style {
            columns,
            ..Style::default()
        }
    }

    #[test]
    fn columns_stand_below_each_other_and_lines_end_with_a_word() {
        let rows = || {
            vec![
                vec!["a".into(), "longer".into()],
                vec!["bb".into(), String::new()],
            ]
        };
        let drawn = draw(&["ONE", "TWO"], rows(), Style::default());
        assert_eq!(drawn, "ONE  TWO\na    longer\nbb");
        let bare = Style {
            headers: false,
            ..Style::default()
        };
        assert_eq!(draw(&["ONE", "TWO"], rows(), bare), "a   longer\nbb");
        assert_eq!(draw(&["ONE", "TWO"], Vec::new(), bare), "");
    }

    #[test]
    fn the_last_column_wraps_within_the_width() {
        let rows = vec![vec!["a-name".into(), "word ".repeat(60)]];
        for columns in [80, 120] {
            let drawn = draw(&["NAME", "MESSAGE"], rows.clone(), style(columns));
            let widest = drawn.lines().map(|line| line.chars().count()).max();
            assert!(widest.is_some_and(|widest| widest <= columns && widest > columns - 5));
            let mut lines = drawn.lines().skip(1);
            assert!(
                lines
                    .next()
                    .is_some_and(|line| line.starts_with("a-name  word"))
            );
            assert!(
                lines.all(|line| line.starts_with("        word")),
                "{drawn}"
            );
        }
        let whole = draw(&["NAME", "MESSAGE"], rows, style(usize::MAX));
        assert_eq!(whole.lines().count(), 2);
    }

    #[test]
    fn a_name_is_whole_however_narrow_the_table_is() {
        let (name, pod) = ("n".repeat(63), "p".repeat(90));
        let message = format!("the pod {pod} does not start");
        let rows = vec![vec![name.clone(), "True".into(), message]];
        let drawn = draw(&["NAME", "READY", "MESSAGE"], rows, style(60));
        assert!(
            drawn.contains(&format!("\n{name}  True   the pod\n")),
            "{drawn}"
        );
        assert!(drawn.contains(&format!(" {pod}\n")), "{drawn}");
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
