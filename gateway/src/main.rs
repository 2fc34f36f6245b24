//! muxgate's `main`: command line in, exit status out (0 well, 1 failed, 2 configuration).

use std::process::ExitCode;

use clap::Parser;
use muxgate::cli::Cli;
use muxgate::process::{self, Failure};
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    match process::run(&Cli::parse().source()) {
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
