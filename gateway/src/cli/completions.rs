//! `muxgate completions`: prints a script that completes muxgate's command line in a shell.

use clap::{Args, CommandFactory, ValueEnum};
use clap_complete::Shell;

use super::Cli;

/// Arguments of `muxgate completions`.
#[derive(Debug, Args)]
pub struct Completions {
    /// The shell.
    #[arg(value_enum)]
    shell: ShellArg,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ShellArg {
    Bash,
    Zsh,
    Fish,
}

impl Completions {
    /// Returns the script.
    ///
    /// # Errors
    /// Never in practice: the call fails only if the script is not UTF-8.
    pub fn script(&self) -> anyhow::Result<String> {
        let shell = match self.shell {
            ShellArg::Bash => Shell::Bash,
            ShellArg::Zsh => Shell::Zsh,
            ShellArg::Fish => Shell::Fish,
        };
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut Cli::command(), "muxgate", &mut script);
        Ok(String::from_utf8(script)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_script_has_every_subcommand_and_every_option() {
        for shell in [ShellArg::Bash, ShellArg::Zsh, ShellArg::Fish] {
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
