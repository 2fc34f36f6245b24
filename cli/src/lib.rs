//! `muxtunnel`, the command line next to kubectl: it shows tunnels, finds faults and their fixes,
//! manages peers of exits, links clusters, and connects a host to an exit.
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
mod connect;
pub mod duration;
pub mod end;
mod explain;
mod link;
mod object;
pub mod output;
mod peer;
mod poll;
pub mod status;
mod table;
pub mod target;
pub mod time;

use args::{Cli, Command};
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
        Command::Link(args) => link::run(args, cluster, program, terminal).await,
        Command::Connect(args) => connect::run(args, cluster).await,
        Command::Gate(args) => Err(Failure::Failed(connect::become_gate(args))),
        Command::Peer(command) => peer::run(command, cluster, terminal).await,
        Command::Completions(args) => completions::run(args, program),
    }
}
