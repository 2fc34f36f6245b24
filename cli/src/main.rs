//! muxtunnel's `main`: command line in, exit status out (see [`muxtunnel_cli::end`]).

use std::process::ExitCode;

use muxtunnel_cli::args;
use muxtunnel_cli::end::{self, Failure};
use muxtunnel_cli::output::Terminal;

fn main() -> ExitCode {
    let program = args::program(std::env::args_os().next().as_deref());
    let cli = match args::parse(program, std::env::args_os()) {
        Ok(cli) => cli,
        // clap prints help and version to standard output with status 0, and errors to standard
        // error with status 2.
        Err(error) => error.exit(),
    };
    let terminal = Terminal::of_process(cli.color);
    // One thread is enough for a few requests.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let ended = match runtime {
        Ok(runtime) => runtime.block_on(muxtunnel_cli::run(cli, program, &terminal)),
        Err(error) => Err(Failure::Failed(error.into())),
    };
    end::status(program, ended)
}
