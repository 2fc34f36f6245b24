//! `muxtunnel`, the command line next to kubectl: it shows tunnels, finds faults and their fixes,
//! and joins two clusters.
//!
//! The crate has the command line ([`args`]), the output ([`output`], [`table`]) and the exit
//! statuses ([`end`]). Its inputs are a kubeconfig ([`cluster`]) and objects of the API server. The
//! program sends requests only to the API server. Codes and definitions are built in. Each command
//! is a file. Pure functions turn objects into output ([`status`], [`check`]), so tests need no
//! cluster. `docs/cli.md` has an example of every command.

pub mod args;
pub mod check;
pub mod cluster;
mod completions;
pub mod end;
mod explain;
mod object;
pub mod output;
pub mod status;
mod table;
pub mod time;
mod token;

use args::{Cli, Command, TokenCommand};
use end::{Ended, Failure};
use output::Terminal;

/// Runs one command. `program`: the program's name in messages and in printed commands.
///
/// # Errors
/// [`Failure`], whose kind decides the exit status.
pub async fn run(cli: Cli, program: &str, terminal: &Terminal) -> Result<Ended, Failure> {
    let cluster = &cli.cluster;
    match &cli.command {
        Command::Status(args) => status::run(args, cluster, terminal).await,
        Command::Check(args) => check::run(args, cluster, terminal).await,
        Command::Explain(args) => explain::run(args, terminal),
        Command::Token(TokenCommand::Issue(args)) => {
            token::issue::run(args, cluster, program, terminal).await
        }
        Command::Token(TokenCommand::Redeem(args)) => {
            token::redeem::run(args, cluster, terminal).await
        }
        Command::Token(TokenCommand::Revoke(args)) => {
            token::revoke::run(args, cluster, program, terminal).await
        }
        Command::Completions(args) => completions::run(args, program),
    }
}
