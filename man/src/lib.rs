//! The manual pages of all programs, section 1, made from their command lines.
//!
//! Input: the [`clap::Command`] and the exit statuses of each program. Output: pages as roff, one
//! for the program and one for each subcommand. `make man` writes the pages ([`write()`]); no page
//! is committed. The crate has no list of options.

use std::fs;
use std::path::Path;

use anyhow::Context;
use clap::{Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

/// Exit statuses with their meanings.
pub type ExitStatuses = &'static [(u8, &'static str)];

/// A program with its exit statuses.
#[derive(Debug)]
pub struct Program {
    /// The command line of the program.
    pub command: Command,
    /// The exit statuses of the program.
    pub exit_statuses: ExitStatuses,
}

/// A manual page.
#[derive(Debug)]
pub struct Page {
    /// Name of the file, such as `muxgate-entry.1`.
    pub file: String,
    /// The page as roff.
    pub text: Vec<u8>,
}

/// All programs with a manual page.
#[must_use]
pub fn programs() -> Vec<Program> {
    let program = |command, exit_statuses| Program {
        command,
        exit_statuses,
    };
    vec![
        program(
            muxtunnel_cli::args::command(muxtunnel_cli::args::PROGRAM),
            muxtunnel_cli::end::EXIT_STATUSES,
        ),
        program(muxgate::cli::Cli::command(), muxgate::cli::EXIT_STATUSES),
        program(
            muxtunnel_netem::cli::Cli::command(),
            muxtunnel_netem::cli::EXIT_STATUSES,
        ),
        program(muxbench::cli::Cli::command(), muxbench::cli::EXIT_STATUSES),
        program(
            muxtunnel_operator::cli::Cli::command(),
            muxtunnel_operator::cli::EXIT_STATUSES,
        ),
    ]
}

impl Program {
    /// The page of the program, then the pages of its subcommands.
    ///
    /// # Errors
    /// Does not fail: the pages are written into memory.
    pub fn pages(&self) -> std::io::Result<Vec<Page>> {
        // The subcommand `help` gets no page.
        let mut command = self.command.clone().disable_help_subcommand(true);
        command.build();
        let mut pages = Vec::new();
        add_pages(&command, &mut pages)?;
        if let Some(page) = pages.first_mut() {
            page.text
                .extend(self.exit_status_section().to_roff().into_bytes());
        }
        Ok(pages)
    }

    fn exit_status_section(&self) -> Roff {
        let mut roff = Roff::new();
        roff.control("SH", ["EXIT STATUS"]);
        for (status, meaning) in self.exit_statuses {
            roff.control("TP", []);
            roff.text([bold(status.to_string())]);
            roff.text([roman(*meaning)]);
        }
        roff
    }
}

fn add_pages(command: &Command, pages: &mut Vec<Page>) -> std::io::Result<()> {
    let man = Man::new(command.clone());
    let mut text = Vec::new();
    man.render(&mut text)?;
    let file = man.get_filename();
    pages.push(Page { file, text });
    let shown = command.get_subcommands().filter(|sub| !sub.is_hide_set());
    for subcommand in shown {
        add_pages(subcommand, pages)?;
    }
    Ok(())
}

/// Writes the pages of all programs into `folder`. Returns their number.
///
/// # Errors
/// If the folder or a file in the folder cannot be written.
pub fn write(folder: &Path) -> anyhow::Result<usize> {
    let shown = folder.display();
    fs::create_dir_all(folder).with_context(|| format!("cannot create the folder {shown}"))?;
    let mut written = 0;
    for program in programs() {
        for Page { file, text } in program.pages()? {
            fs::write(folder.join(&file), text)
                .with_context(|| format!("cannot write {shown}/{file}"))?;
            written += 1;
        }
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text of a page without the escapes of roff.
    fn text(page: &Page) -> String {
        let text = String::from_utf8(page.text.clone()).unwrap();
        let plain = ["\\fB", "\\fI", "\\fR", "\\&"];
        let text = plain
            .into_iter()
            .fold(text, |text, escape| text.replace(escape, ""));
        text.replace("\\-", "-")
    }

    fn assert_pages_of(command: &Command, path: &str, pages: &[Page]) {
        let file = format!("{}.1", path.replace(' ', "-"));
        let page = pages.iter().find(|page| page.file == file);
        let page = text(page.unwrap_or_else(|| panic!("no page {file}")));
        for option in command.get_arguments().filter_map(clap::Arg::get_long) {
            assert!(
                page.contains(&format!("--{option}")),
                "{file} lacks --{option}"
            );
        }
        for subcommand in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
            let name = subcommand.get_name();
            let own = format!("{path} {name}");
            assert!(page.contains(&own.replace(' ', "-")), "{file} lacks {name}");
            assert_pages_of(subcommand, &own, pages);
        }
    }

    #[test]
    fn each_program_and_each_subcommand_has_a_page_with_all_options() {
        let names: Vec<_> = programs()
            .iter()
            .map(|program| program.command.get_name().to_owned())
            .collect();
        let expected = [
            "muxtunnel",
            "muxgate",
            "muxwan",
            "muxbench",
            "muxtunnel-operator",
        ];
        assert_eq!(names, expected);
        for program in programs() {
            let name = program.command.get_name().to_owned();
            assert_pages_of(&program.command, &name, &program.pages().unwrap());
        }
    }

    #[test]
    fn the_page_of_a_program_has_its_exit_statuses() {
        for program in programs() {
            let page = text(&program.pages().unwrap()[0]);
            let (_, section) = page.split_once(".SH \"EXIT STATUS\"").unwrap();
            assert!(program.exit_statuses.len() >= 3);
            for (status, meaning) in program.exit_statuses {
                assert!(
                    section.contains(&format!("{status}\n{meaning}\n")),
                    "{section}"
                );
            }
        }
    }

    #[test]
    fn pages_are_written_as_files() {
        let folder = tempfile::tempdir().unwrap();
        let pages = folder.path().join("man1");
        let written = write(&pages).unwrap();
        assert_eq!(fs::read_dir(&pages).unwrap().count(), written);
        assert!(pages.join("muxgate-tun-create.1").is_file());
    }
}
