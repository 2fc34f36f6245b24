//! muxgate's `main`: command line in, exit status out (0 well, 1 failed, 2 configuration).

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use muxgate::base::log;
use muxgate::cli::{Cli, Task, TemporaryInterface, udp_buffers};
use muxgate::process::{self, Failure};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let (interface, log_format) = (cli.interface(), cli.log_format());
    let source = match cli.task() {
        Ok(Task::Run(source)) => source,
        Ok(Task::Check(check)) => return ended(check.run().and_then(print_all)),
        Ok(Task::Keygen(keygen)) => return print(keygen.run()),
        Ok(Task::Completions(completions)) => return print(completions.script()),
        Ok(Task::Tun(tun)) => return print(tun.run()),
        Ok(Task::UdpBuffers) => return print(udp_buffers()),
        Err(problem) => {
            eprintln!("muxgate: {problem}");
            return ExitCode::from(2);
        }
    };
    let _log = match log::start(log_format) {
        Ok(guard) => guard,
        Err(error) => {
            eprintln!("muxgate: the log has no thread: {error}");
            return ExitCode::FAILURE;
        }
    };
    let _interface = match interface.map(TemporaryInterface::make).transpose() {
        Ok(made) => made,
        Err(error) => {
            eprintln!("muxgate: {error:#}");
            return ExitCode::FAILURE;
        }
    };
    ended(process::run(&source))
}

/// The exit status; a failure is reported on standard error.
fn ended(result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Config(error)) => {
            eprintln!("muxgate: {error:#}");
            ExitCode::from(2)
        }
        Err(Failure::Runtime(error)) => {
            eprintln!("muxgate: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Prints what was asked for to standard output; the reader of a pipe may have gone.
fn print(made: anyhow::Result<String>) -> ExitCode {
    ended(made.map_err(Failure::Runtime).and_then(print_all))
}

fn print_all(text: String) -> Result<(), Failure> {
    writeln!(std::io::stdout(), "{}", text.trim_end())
        .map_err(|error| Failure::Runtime(error.into()))
}
