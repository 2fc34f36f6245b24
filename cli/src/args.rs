//! The command line: commands, flags, and the examples that `--help` shows.

mod connect;
mod examples;
mod link;
mod peer;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::duration::Duration;
pub use crate::object::Kind;
use crate::output::{ColorChoice, Format};
pub use connect::{ConnectArgs, GateArgs};
use examples::EXAMPLES;
pub use link::{Exposure, LinkArgs};
pub use peer::{Expiry, PeerAddArgs, PeerCommand, PeerListArgs, PeerNameArgs};

/// The name of the program.
pub const PROGRAM: &str = "muxtunnel";
/// The name of the same program as a plugin of kubectl.
pub const PLUGIN: &str = "kubectl muxtunnel";
/// kubectl calls programs whose file name begins with this prefix.
const PLUGIN_PREFIX: &str = "kubectl-";

/// Show tunnels and exits, find their faults, and join entries to exits across clusters.
///
/// Data goes to standard output, progress to standard error. Exit status: 0 success, 1 the tool or
/// the API server failed, 2 invalid usage, 3 findings, 4 timed out.
#[derive(Debug, Parser)]
#[command(name = PROGRAM, version, subcommand_required = true, arg_required_else_help = true)]
pub struct Cli {
    /// The cluster to query.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// When tables have colours. `auto`: on a terminal, unless NO_COLOR is set.
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value_t)]
    pub color: ColorChoice,
    /// The command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// The cluster to query, with kubectl's own flags.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Cluster")]
pub struct ClusterArgs {
    /// Namespace [default: the namespace of the context].
    #[arg(short, long, global = true)]
    pub namespace: Option<String>,
    /// Context of the kubeconfig [default: the current context].
    #[arg(long, global = true)]
    pub context: Option<String>,
    /// The kubeconfig [default: KUBECONFIG, otherwise ~/.kube/config].
    #[arg(long, global = true, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show one tunnel, exit or rendezvous in detail, or a list of them.
    Status(StatusArgs),
    /// Check the cluster, the installation, nodes, namespaces, tunnels and exits for faults.
    ///
    /// Each finding has a code (see `explain`), its cause, and a command that fixes it. A check
    /// that could not run is shown as skipped, with the reason.
    Check(CheckArgs),
    /// Explain a code, without a cluster.
    Explain(ExplainArgs),
    /// Make a Service of one cluster reachable in another cluster.
    ///
    /// Creates the MuxExit in the cluster of the Service, the MuxTunnel in the cluster of the clients,
    /// and the MuxPeer that permits the MuxTunnel's entry to use the exit. Run again, the command changes nothing.
    Link(LinkArgs),
    /// Connect this host to an exit, like ssh -L, -D and -R.
    ///
    /// Creates a MuxPeer that expires, runs `muxgate`, and deletes the MuxPeer at the end.
    Connect(ConnectArgs),
    /// Manage the peers of exits: the entries that may use an exit.
    #[command(subcommand)]
    Peer(PeerCommand),
    /// Become `muxgate`, for `connect`.
    #[command(hide = true)]
    Gate(GateArgs),
    /// Print the completion script for a shell.
    Completions(CompletionsArgs),
}

/// The formats of commands that print no objects: all except `wide` and `name`.
fn documents() -> impl TypedValueParser<Value = Format> {
    let formats = [Format::Table, Format::Json, Format::Yaml];
    let values = formats.iter().filter_map(ValueEnum::to_possible_value);
    PossibleValuesParser::new(values).try_map(|typed| Format::from_str(&typed, false))
}

/// Arguments of `status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// The object: the NAME of a MuxTunnel, or KIND/NAME, such as exit/web or rendezvous/web
    /// [default: all objects of the namespace].
    #[arg(value_name = "[KIND/]NAME")]
    pub object: Option<ObjectName>,
    /// Show the objects of all namespaces.
    #[arg(short = 'A', long, conflicts_with_all = ["object", "namespace"])]
    pub all_namespaces: bool,
    /// Wait until this condition of the object is true, and until this host can connect to the entry
    /// of a MuxTunnel.
    #[arg(long, value_enum, num_args = 0..=1, require_equals = true, default_value_t, default_missing_value = "ready")]
    pub wait: WaitFor,
    /// Time-out of --wait.
    #[arg(long, default_value = "60s")]
    pub timeout: Duration,
    /// Show the MuxExit of the MuxTunnel too, as NAME or NAMESPACE/NAME [default: the tunnel's name].
    #[arg(long, value_name = "[NAMESPACE/]NAME", requires = "object")]
    pub exit: Option<String>,
    /// Context of the cluster with the MuxExit.
    #[arg(long, value_name = "CONTEXT", requires = "object")]
    pub exit_context: Option<String>,
    /// Print the state again at each change, until you press Ctrl-C. On a terminal, each table
    /// replaces the previous table.
    #[arg(short = 'w', long, conflicts_with = "wait")]
    pub watch: bool,
    /// Print the list without the header line.
    #[arg(long, conflicts_with = "object")]
    pub no_headers: bool,
    /// Output format.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t)]
    pub output: Format,
}

/// An object with gateways.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectName {
    /// The kind.
    pub kind: Kind,
    /// The name.
    pub name: String,
}

impl FromStr for ObjectName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, name) = match text.split_once('/') {
            Some((kind, name)) => (Kind::named(kind), name),
            None => (Some(Kind::Tunnel), text),
        };
        match kind.filter(|_| !name.is_empty() && !name.contains('/')) {
            Some(kind) => Ok(Self {
                kind,
                name: name.to_owned(),
            }),
            None => Err("expected NAME, tunnel/NAME, exit/NAME or rendezvous/NAME".to_owned()),
        }
    }
}

/// The conditions that `--wait` accepts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum WaitFor {
    /// All gateways have the current spec.
    Ready,
    /// A gateway takes connections, and no forward loses all of them.
    Available,
    /// Do not wait.
    #[default]
    None,
}

/// Arguments of `check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Check the requirements of an installation, before the chart is installed.
    #[arg(long)]
    pub pre: bool,
    /// Check only this category; repeatable.
    #[arg(long, value_enum, value_name = "CATEGORY")]
    pub only: Vec<Category>,
    /// On at most 32 nodes, test which sysctls and devices work, and whether WAN emulation works.
    /// The test creates short-lived pods in the namespace.
    #[arg(long)]
    pub probe: bool,
    /// With --probe: the image of gateways [default: the image that the installed operator uses].
    #[arg(long, value_name = "IMAGE", requires = "probe")]
    pub gateway_image: Option<String>,
    /// With --probe: the image of WAN emulation [default: the image that the installed operator
    /// uses].
    #[arg(long, value_name = "IMAGE", requires = "probe")]
    pub netem_image: Option<String>,
    /// The operator's namespace [default: found by a search of all namespaces].
    #[arg(long, value_name = "NAMESPACE")]
    pub operator_namespace: Option<String>,
    /// Check the namespaces, tunnels, exits and peers of the whole cluster.
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub all_namespaces: bool,
    /// Output format.
    #[arg(short, long, value_name = "FORMAT", default_value = "table", value_parser = documents())]
    pub output: Format,
}

/// The categories of checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Category {
    /// The API server, its version, and your rights.
    Cluster,
    /// The custom resource definitions, the operator and its leader.
    Installation,
    /// The kernel features and sysctls that gateways need on nodes.
    Node,
    /// Whether the Pod Security level of a namespace admits the gateways.
    Namespace,
    /// The conditions of tunnels, exits, rendezvous and peers.
    Tunnels,
}

/// Arguments of `explain`.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// The code, such as MT0308 or SysctlForbidden [default: all codes].
    pub code: Option<String>,
    /// Print the list without the header line.
    #[arg(long, conflicts_with = "code")]
    pub no_headers: bool,
    /// Output format.
    #[arg(short, long, value_name = "FORMAT", default_value = "table", value_parser = documents())]
    pub output: Format,
}

/// Arguments of `completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell.
    #[arg(value_enum)]
    pub shell: Shell,
}

/// The program's name in messages: [`PLUGIN`] if the file name shows that kubectl called it.
#[must_use]
pub fn program(called: Option<&OsStr>) -> &'static str {
    let name = called.map(Path::new).and_then(Path::file_name);
    let is_plugin = name.is_some_and(|name| name.to_string_lossy().starts_with(PLUGIN_PREFIX));
    if is_plugin { PLUGIN } else { PROGRAM }
}

/// The whole command line, each command with its examples, under the name `program`.
#[must_use]
pub fn command(program: &str) -> clap::Command {
    let mut command = Cli::command().bin_name(program).display_name(program);
    for (path, text) in EXAMPLES {
        let text = text.replace("    muxtunnel ", &format!("    {program} "));
        let text = text.replace("| muxtunnel ", &format!("| {program} "));
        command = with_examples(command, path, text);
    }
    command
}

fn with_examples(command: clap::Command, path: &[&str], text: String) -> clap::Command {
    match path {
        [] => command.after_help(text),
        [first, rest @ ..] => {
            command.mut_subcommand(first, |inner| with_examples(inner, rest, text))
        }
    }
}

/// Parses the arguments.
///
/// # Errors
/// clap's error: the help, the version, or a usage error.
pub fn parse(program: &str, typed: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let matches = command(program).try_get_matches_from(typed)?;
    Cli::from_arg_matches(&matches)
}

#[cfg(test)]
mod tests;
