//! muxgate's `main`: command line in, exit status out (0 well, 1 failed, 2 configuration).

use std::process::ExitCode;

use clap::Parser;
use muxgate::cli::Cli;
use muxgate::log;
use muxgate::process::{self, Failure};

fn main() -> ExitCode {
    let source = Cli::parse().source();
    let _log = match log::start() {
        Ok(guard) => guard,
        Err(error) => {
            eprintln!("muxgate: the log has no thread: {error}");
            return ExitCode::FAILURE;
        }
    };
    match process::run(&source) {
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
