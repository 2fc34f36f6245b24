//! muxtunnel's `main`: command line in, exit status out (see [`muxtunnel_cli::end`]).

use std::process::ExitCode;

use muxtunnel_cli::args;
use muxtunnel_cli::end::{self, Failure};
use muxtunnel_cli::output::Terminal;

fn main() -> ExitCode {
    let program = args::program(std::env::args_os().next().as_deref());
    let cli = match args::parse(program, std::env::args_os()) {
        Ok(cli) => cli,
        // clap's own: help and version on standard output with 0, the rest on standard error with 2.
        Err(error) => error.exit(),
    };
    let terminal = Terminal::of_process(cli.color);
    // One thread is enough for one person's questions.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let ended = match runtime {
        Ok(runtime) => runtime.block_on(muxtunnel_cli::run(cli, program, &terminal)),
        Err(error) => Err(Failure::Failed(error.into())),
    };
    end::status(program, ended)
}
