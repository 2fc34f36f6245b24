//! `muxgate completions`: prints a script that completes muxgate's command line in a shell.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::Cli;

/// Arguments of `muxgate completions`.
#[derive(Debug, Args)]
pub(super) struct Completions {
    /// The shell.
    #[arg(value_parser = shells())]
    shell: Shell,
}

fn shells() -> impl TypedValueParser<Value = Shell> {
    let names = PossibleValuesParser::new(["bash", "zsh", "fish"]);
    names.try_map(|name| name.parse::<Shell>())
}

impl Completions {
    /// Returns the script.
    ///
    /// # Errors
    /// Never in practice: the call fails only if the script is not UTF-8.
    pub(super) fn script(&self) -> anyhow::Result<String> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "muxgate", &mut script);
        Ok(String::from_utf8(script)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_script_has_every_subcommand_and_every_option() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = Completions { shell }.script().unwrap();
            for command in Cli::command().get_subcommands() {
                let name = command.get_name();
                assert!(script.contains(name), "{shell:?} lacks {name}");
                for option in command.get_arguments().filter_map(|one| one.get_long()) {
                    // fish uses `-l option`.
                    let has = script.contains(&format!("--{option}"))
                        || script.contains(&format!("-l {option}"));
                    assert!(has, "{shell:?} lacks --{option} of {name}");
                }
            }
        }
    }
}
