//! Checks that the command line accepts all commands in `--help` and the documentation.

use std::collections::BTreeSet;

use clap::{CommandFactory, Parser};
use muxtunnel_gateway_config::{KEY_BYTES, Role, key_text};

use super::{Cli, Task};
use crate::process::Source;

/// The command lines of `text`, each as its words. A command line is indented, or is in backticks
/// in a table.
fn commands(text: &str) -> Vec<Vec<String>> {
    let joined = text.replace("\\\n", " ");
    let indented = joined
        .lines()
        .filter(|line| line.starts_with("    muxgate "));
    let ticked = joined
        .lines()
        .filter(|line| line.starts_with('|'))
        .flat_map(|line| line.split('`'))
        .filter(|piece| piece.starts_with("muxgate "));
    indented
        .chain(ticked)
        .flat_map(|line| line.split("&&"))
        .filter(|line| !line.contains("..."))
        .map(|line| {
            let words = shlex::split(line).unwrap();
            let words = words.into_iter().take_while(|word| word != ">");
            let word = |word: String| {
                let word = word.replace("ENTRY_KEY", &key_text(Role::Entry, &[7; KEY_BYTES]));
                let meet = key_text(Role::Rendezvous, &[7; KEY_BYTES]);
                let word = word.replace("RENDEZVOUS_KEY", &meet);
                word.replace("EXIT_KEY", &key_text(Role::Exit, &[8; KEY_BYTES]))
            };
            words.map(word).collect()
        })
        .collect()
}

/// Checks that each command is accepted; returns the subcommands and options that occurred.
fn check(text: &str) -> BTreeSet<String> {
    let mut typed = BTreeSet::new();
    for words in commands(text) {
        let line = words.join(" ");
        let cli = Cli::try_parse_from(&words).unwrap_or_else(|error| panic!("{line}: {error}"));
        let task = cli.task().unwrap_or_else(|error| panic!("{line}: {error}"));
        if let Task::Run(Source::Flags(config)) = task {
            let checked = config.check();
            checked.unwrap_or_else(|error| panic!("{line}: {error}"));
        }
        typed.insert(words[1].clone());
        typed.extend(words.into_iter().filter(|word| word.starts_with("--")));
    }
    typed
}

/// All text that `--help` of a command and of its subcommands shows at the end.
fn after_help(command: &clap::Command) -> String {
    let own = command.get_after_help().map(ToString::to_string);
    let below = command.get_subcommands().map(after_help);
    own.into_iter().chain(below).collect::<Vec<_>>().join("\n")
}

#[test]
fn help_has_an_example_of_each_mode_that_can_be_typed() {
    let command = Cli::command();
    for subcommand in command.get_subcommands() {
        let (name, typed) = (subcommand.get_name(), check(&after_help(subcommand)));
        assert!(typed.contains(name), "{name}: {typed:?}");
    }
    let typed = check(&after_help(&command));
    for option in [
        "--forward",
        "--reverse",
        "--socks5",
        "--http-proxy",
        "--auto",
        "--transparent",
        "--rendezvous",
        "--connect-command",
        "--proxy",
        "--protocol",
        "--tls",
    ] {
        assert!(typed.contains(option), "{option}");
    }
}

#[test]
fn the_commands_of_the_pages_can_be_typed() {
    let pages = [
        include_str!("../../../README.md"),
        include_str!("../../../docs/gateway.md"),
        include_str!("../../../docs/migration.md"),
    ];
    for page in pages {
        assert!(check(page).contains("--connect"));
    }
}
