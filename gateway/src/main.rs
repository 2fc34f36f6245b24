//! muxgate's `main`: runs the command line and returns the exit status
//! ([`muxgate::cli::EXIT_STATUSES`]).

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use muxgate::base::log;
use muxgate::cli::{Cli, FAILED, SUCCEEDED, Task, TemporaryInterface, UNUSABLE};
use muxgate::process::{self, Failure};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let (interface, log_format) = (cli.interface(), cli.log_format());
    let source = match cli.task() {
        Ok(Task::Run(source)) => source,
        Ok(Task::Print(command)) => return ended(command().and_then(print)),
        Err(problem) => {
            eprintln!("muxgate: {problem}");
            return ExitCode::from(UNUSABLE);
        }
    };
    let _log = match log::start(log_format) {
        Ok(guard) => guard,
        Err(error) => {
            eprintln!("muxgate: cannot start the log thread: {error}");
            return ExitCode::from(FAILED);
        }
    };
    let _interface = match interface.map(TemporaryInterface::make).transpose() {
        Ok(made) => made,
        Err(error) => {
            eprintln!("muxgate: {error:#}");
            return ExitCode::from(FAILED);
        }
    };
    ended(process::run(&source))
}

/// The exit status. Prints a failure to standard error.
fn ended(result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::from(SUCCEEDED),
        Err(Failure::Config(error)) => {
            eprintln!("muxgate: {error:#}");
            ExitCode::from(UNUSABLE)
        }
        Err(Failure::Runtime(error)) => {
            eprintln!("muxgate: {error:#}");
            ExitCode::from(FAILED)
        }
    }
}

/// Prints the output to standard output. The reader of a pipe may have exited.
fn print(text: String) -> Result<(), Failure> {
    writeln!(std::io::stdout(), "{}", text.trim_end())
        .map_err(|error| Failure::Runtime(error.into()))
}
