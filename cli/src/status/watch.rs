//! `--watch`: reads repeatedly, and prints changes.

use std::time::Duration;

use serde_json::Value;
use tokio::time::sleep;

use crate::cluster::can_pass;
use crate::end::{Ended, Failure};
use crate::output::{self, Document, Format, Style, Terminal, rendered};

/// Time between two reads. Reads need no more rights than a single `status`.
const INTERVAL: Duration = Duration::from_secs(2);
/// Moves the cursor to the top left corner and erases the screen.
const ERASE: &str = "\x1b[H\x1b[2J";

/// Prints the document of `read`, and prints it again at each change, or a table on a terminal at
/// each read. Returns only with an error.
///
/// # Errors
/// If the first read fails, or if a later read fails permanently, for example because the tunnel
/// was deleted.
pub(super) async fn watch<D: Document>(
    terminal: &Terminal,
    format: Format,
    mut read: impl AsyncFnMut() -> Result<D, Failure>,
) -> Result<Ended, Failure> {
    let mut screen = Screen::new(terminal, format);
    let mut reported = String::new();
    loop {
        match read().await {
            Ok(document) => {
                if let Some(text) = screen.next(&document)? {
                    output::write(&text)?;
                }
                reported.clear();
            }
            Err(Failure::Failed(error)) if screen.shown.is_some() && can_pass(&error) => {
                let error = format!("{error:#}");
                if error != reported {
                    eprintln!("{error}");
                    reported = error;
                }
            }
            Err(failure) => return Err(failure),
        }
        sleep(INTERVAL).await;
    }
}

/// The document that was printed last.
struct Screen {
    format: Format,
    style: Style,
    /// Whether each table replaces the previous table. Tables are then printed at every read, so
    /// their ages stay current.
    replaces: bool,
    shown: Option<Value>,
}

impl Screen {
    fn new(terminal: &Terminal, format: Format) -> Self {
        Self {
            format,
            style: terminal.style,
            replaces: terminal.stdout && matches!(format, Format::Table | Format::Wide),
            shown: None,
        }
    }

    /// The text to print for the document, or `None` if it has not changed and replaces no table.
    fn next(&mut self, document: &impl Document) -> Result<Option<String>, anyhow::Error> {
        // Compares the documents, because they do not contain the time of the read.
        let value = serde_json::to_value(document)?;
        let is_first = self.shown.is_none();
        if !self.replaces && self.shown.as_ref() == Some(&value) {
            return Ok(None);
        }
        self.shown = Some(value);
        let text = rendered(document, self.format, self.style)?;
        let before = match (self.replaces, self.format) {
            (true, _) => ERASE,
            (false, Format::Yaml) if !is_first => "---\n",
            (false, Format::Table | Format::Wide) if !is_first => "\n",
            (false, _) => "",
        };
        Ok(Some(format!("{before}{text}")))
    }
}

#[cfg(test)]
mod tests {
    use serde::Serialize;

    use super::*;

    #[derive(Serialize)]
    struct Number {
        value: u32,
        #[serde(skip)]
        age: u32,
    }

    impl Document for Number {
        const KIND: &'static str = "Number";

        fn text(&self, _: Style) -> String {
            format!("{} {}", self.value, self.age)
        }
    }

    /// The texts that are printed for documents with these values and ages.
    fn printed(format: Format, stdout: bool) -> Vec<Option<String>> {
        let terminal = Terminal {
            stdout,
            ..Terminal::default()
        };
        let mut screen = Screen::new(&terminal, format);
        [(1, 1), (1, 2), (2, 3)]
            .map(|(value, age)| screen.next(&Number { value, age }).unwrap())
            .to_vec()
    }

    #[test]
    fn on_a_terminal_a_table_replaces_the_last_one() {
        let wanted = ["1 1", "1 2", "2 3"].map(|text| Some(format!("{ERASE}{text}\n")));
        assert_eq!(printed(Format::Table, true), wanted);
    }

    #[test]
    fn elsewhere_only_a_change_is_printed() {
        let text = |text: &str| Some(text.to_owned());
        let wanted = [text("1 1\n"), None, text("\n2 3\n")];
        assert_eq!(printed(Format::Table, false), wanted);
        let [first, second, third] = &printed(Format::Yaml, true)[..] else {
            panic!("three documents");
        };
        let has = |text: &Option<String>, begin: &str, end: &str| {
            let begin = format!("{begin}apiVersion: ");
            let text = text.as_ref().unwrap();
            assert!(text.starts_with(&begin) && text.ends_with(end), "{text}");
        };
        has(first, "", "value: 1\n");
        assert_eq!(*second, None);
        has(third, "---\n", "value: 2\n");
    }
}
