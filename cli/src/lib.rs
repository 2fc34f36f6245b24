//! `muxtunnel`, the command line next to kubectl: it shows tunnels, finds faults and their fixes, and joins two
//! clusters.
//!
//! Owns the words that a person types ([`args`]), what is printed ([`output`], [`table`]) and the exit statuses
//! ([`end`]). Comes in: a kubeconfig ([`cluster`]), objects of the API server. It asks nothing but the API server,
//! and what it knows of codes and definitions is built in. Each command is a file; what it prints is made by pure
//! functions from objects ([`status`], [`check`]), so it is tested without a cluster.
//! Where to read next: `docs/cli.md`, every command with an example.

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

/// Runs one command. `program`: the name in messages and in commands that are shown.
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
