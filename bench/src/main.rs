//! muxbench: parses the command line and runs as the runner, an agent, a load or its target. The
//! exit statuses are in [`muxbench::cli`].

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;
use muxbench::agent::Agent;
use muxbench::cli::{AgentArgs, Cli, Command, FAILED, LoadArgs, MEASURED, RunArgs, TargetArgs};
use muxbench::load::Load;
use muxbench::runner::{Log, Runner};
use muxbench::serve::{asked_to_end, listen};
use muxbench::target;
use muxbench::token::{Admission, Token};
use muxtunnel_bench_api::result::LOG_WORD;
use tokio::sync::oneshot;

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Run(args) => run(&args),
        Command::Agent(args) => agent(&args).map(|()| ExitCode::from(MEASURED)),
        Command::Load(args) => load(&args).map(|()| ExitCode::from(MEASURED)),
        Command::Target(args) => serve_target(&args).map(|()| ExitCode::from(MEASURED)),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("muxbench: {error:#}");
            ExitCode::from(FAILED)
        }
    }
}

/// Ends the program with status 2, like clap for invalid flags.
fn usage(message: &str) -> ! {
    clap::Error::raw(ErrorKind::ValueValidation, format!("{message}\n")).exit()
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
}

fn run(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let matrix = args.matrix().unwrap_or_else(|message| usage(&message));
    let token = Token::read(&args.token_file).unwrap_or_else(|error| usage(&format!("{error:#}")));
    runtime()?.block_on(async {
        let runner = Runner {
            matrix,
            http: listen(&args.listen).await?,
            operator: Admission::HashFile(args.operator_hash_file.clone()),
            token,
            environment_deadline: args.environment_deadline,
            linger: args.linger,
            termination_log: args.termination_log.clone(),
            log: Log::new(Box::new(std::io::stdout())),
        };
        tokio::select! {
            summary = runner.run() => {
                let summary = summary?;
                let all_good = summary.ok == summary.cells;
                Ok(if all_good { ExitCode::from(MEASURED) } else { ExitCode::from(FAILED) })
            }
            asked = asked_to_end() => {
                asked?;
                anyhow::bail!("ended by a signal before all cells were measured")
            }
        }
    })
}

fn agent(args: &AgentArgs) -> anyhow::Result<()> {
    let token = Token::read(&args.token_file).unwrap_or_else(|error| usage(&format!("{error:#}")));
    runtime()?.block_on(async {
        let agent = Agent {
            http: listen(&args.listen).await?,
            echo: listen(&args.echo_listen).await?,
            token,
            iperf: args.iperf.clone(),
        };
        tokio::select! {
            ended = agent.serve() => ended,
            asked = asked_to_end() => asked,
        }
    })
}

fn load(args: &LoadArgs) -> anyhow::Result<()> {
    runtime()?.block_on(async {
        let load = Load::new(args).await?;
        load.steady().await?;
        println!("steady");
        // A signal ends the load early. Connections that have begun are still counted.
        let (told, stop) = oneshot::channel();
        let stop = async {
            let _ = stop.await;
        };
        let signal = async {
            asked_to_end().await?;
            let _ = told.send(());
            std::future::pending::<anyhow::Result<()>>().await
        };
        tokio::select! {
            report = load.run(stop) => println!("{LOG_WORD}{}", serde_json::to_string(&report)?),
            failed = signal => failed?,
        }
        Ok(())
    })
}

fn serve_target(args: &TargetArgs) -> anyhow::Result<()> {
    runtime()?.block_on(async {
        let listener = listen(&args.listen).await?;
        tokio::select! {
            ended = target::serve(listener) => ended,
            asked = asked_to_end() => asked,
        }
    })
}
