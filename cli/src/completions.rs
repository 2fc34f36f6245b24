//! `completions`: scripts with which shells complete the command line.

use anyhow::Context;

use crate::args::{self, CompletionsArgs};
use crate::end::{Ended, Failure};
use crate::output;

/// Prints the script of a shell.
pub(crate) fn run(args: &CompletionsArgs, program: &str) -> Result<Ended, Failure> {
    output::write(&script(args, program)?)?;
    Ok(Ended::Good)
}

fn script(args: &CompletionsArgs, program: &str) -> anyhow::Result<String> {
    // A shell completes a plugin by its file name, so the script uses the file name.
    let name = if program == args::PLUGIN {
        "kubectl-muxtunnel"
    } else {
        program
    };
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut args::command(program), name, &mut script);
    String::from_utf8(script).context("the script is not UTF-8")
}

#[cfg(test)]
mod tests {
    use clap_complete::Shell;

    use super::*;

    #[test]
    fn each_script_has_every_subcommand_and_is_of_the_name_that_was_called() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            for (program, file) in [
                (args::PROGRAM, "muxtunnel"),
                (args::PLUGIN, "kubectl-muxtunnel"),
            ] {
                let script = script(&CompletionsArgs { shell }, program).unwrap();
                for command in args::command(program).get_subcommands() {
                    let name = command.get_name();
                    assert!(script.contains(name), "{shell:?} lacks {name}");
                }
                assert!(script.contains(file), "{shell:?} is not of {file}");
            }
        }
    }
}
