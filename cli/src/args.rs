//! The command line: what can be typed, and the examples that `--help` shows.

mod examples;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use muxtunnel_crds::Duration;

use crate::output::{ColorChoice, Format};
use examples::EXAMPLES;

/// The name of the program.
pub const PROGRAM: &str = "muxtunnel";
/// The name of the same program as a plugin of kubectl.
pub const PLUGIN: &str = "kubectl muxtunnel";
/// A file whose name begins so is called by kubectl.
const PLUGIN_PREFIX: &str = "kubectl-";

/// Show MuxTunnels, find their faults, and join the sides of a tunnel across clusters.
///
/// Data goes to standard output, progress to standard error. Exit status: 0 good, 1 the tool or the API server
/// failed, 2 usage, 3 findings, 4 timed out.
#[derive(Debug, Parser)]
#[command(name = PROGRAM, version, subcommand_required = true, arg_required_else_help = true)]
pub struct Cli {
    /// The cluster that is asked.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Colours in tables. `auto`: on a terminal, unless NO_COLOR is set.
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value_t)]
    pub color: ColorChoice,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The cluster that is asked, as kubectl's own flags name it.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Cluster")]
pub struct ClusterArgs {
    /// Namespace; the context's where not given.
    #[arg(short, long, global = true)]
    pub namespace: Option<String>,
    /// Context of the kubeconfig; the current one where not given.
    #[arg(long, global = true)]
    pub context: Option<String>,
    /// The kubeconfig; KUBECONFIG or ~/.kube/config where not given.
    #[arg(long, global = true, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show tunnels: one with all that is known of it, or a line for each.
    Status(StatusArgs),
    /// Check the cluster, the installation, nodes, namespaces and tunnels for faults.
    ///
    /// Each finding has a code (`explain` says more of it), its cause, and a command that mends it. What could not
    /// be looked at is shown as skipped, with the reason.
    Check(CheckArgs),
    /// Say what a code means, without a cluster.
    Explain(ExplainArgs),
    /// Join the entry of a tunnel in one cluster to its exit in another.
    #[command(subcommand)]
    Token(TokenCommand),
    /// Print what a shell needs to complete this command line.
    Completions(CompletionsArgs),
}

/// The form of what is printed.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct FormatArgs {
    /// Form of what is printed.
    #[arg(
        short = 'o',
        long = "output",
        value_name = "FORMAT",
        default_value = "table",
        value_parser = document_format()
    )]
    pub format: Format,
}

/// The forms of a command that prints no objects: none of them has further columns or a name.
fn document_format() -> impl TypedValueParser<Value = Format> {
    let formats = [Format::Table, Format::Json, Format::Yaml];
    let values = formats.iter().filter_map(ValueEnum::to_possible_value);
    PossibleValuesParser::new(values).try_map(|typed| Format::from_str(&typed, false))
}

/// `status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// The tunnel; all of the namespace where not given.
    pub name: Option<String>,
    /// Tunnels of all namespaces.
    #[arg(short = 'A', long, conflicts_with_all = ["name", "namespace"])]
    pub all_namespaces: bool,
    /// Wait until the tunnel is so.
    #[arg(long, value_enum, num_args = 0..=1, require_equals = true, default_value_t, default_missing_value = "ready")]
    pub wait: WaitFor,
    /// Wait no longer than this.
    #[arg(long, default_value = "60s")]
    pub timeout: Duration,
    /// The tunnel's other side is the MuxTunnel NAME, or NAMESPACE/NAME. Of the same name where not given.
    #[arg(long, value_name = "[NAMESPACE/]NAME", requires = "name")]
    pub peer: Option<String>,
    /// The tunnel's other side is in the cluster of this context.
    #[arg(long, value_name = "CONTEXT", requires = "name")]
    pub peer_context: Option<String>,
    /// Print again at each change, until you end it. On a terminal, a table replaces the last one.
    #[arg(short = 'w', long, conflicts_with = "wait")]
    pub watch: bool,
    /// Print the list without its line of headers.
    #[arg(long, conflicts_with = "name")]
    pub no_headers: bool,
    /// Form of what is printed.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t)]
    pub output: Format,
}

/// What `--wait` waits for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum WaitFor {
    /// All is as asked.
    Ready,
    /// A connection would reach a target.
    Available,
    /// Nothing.
    #[default]
    None,
}

/// `check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Look at what is needed before the chart is installed.
    #[arg(long)]
    pub pre: bool,
    /// Look at this category alone; repeatable.
    #[arg(long, value_enum, value_name = "CATEGORY")]
    pub only: Vec<Category>,
    /// Try out on each node, in short-lived pods, which sysctls, WAN emulation and devices work there. The pods are
    /// made in the namespace.
    #[arg(long)]
    pub probe: bool,
    /// With --probe: the image of gateways. That of the installed operator where not given.
    #[arg(long, value_name = "IMAGE", requires = "probe")]
    pub gateway_image: Option<String>,
    /// With --probe: the image of WAN emulation. That of the installed operator where not given.
    #[arg(long, value_name = "IMAGE", requires = "probe")]
    pub netem_image: Option<String>,
    /// The operator's namespace; looked for in all where not given.
    #[arg(long, value_name = "NAMESPACE")]
    pub operator_namespace: Option<String>,
    /// Namespaces and tunnels of the whole cluster.
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub all_namespaces: bool,
    #[command(flatten)]
    #[allow(missing_docs, reason = "clap takes a comment here for the command's")]
    pub format: FormatArgs,
}

/// What can be looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Category {
    /// The API server, its version, and your rights.
    Cluster,
    /// The definitions, the operator and its leader.
    Installation,
    /// What nodes let gateways have.
    Node,
    /// Whether the Pod Security level lets the gateways run.
    Namespace,
    /// Whether tunnels are as they were asked to be.
    Tunnels,
}

/// `explain`.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// The code, such as MT0308 or SysctlForbidden; all where not given.
    pub code: Option<String>,
    /// Print the list without its line of headers.
    #[arg(long, conflicts_with = "code")]
    pub no_headers: bool,
    #[command(flatten)]
    #[allow(missing_docs, reason = "clap takes a comment here for the command's")]
    pub format: FormatArgs,
}

/// `token`.
#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// In the exit's cluster: write the join bundle of a MuxTunnel of side Exit, a Secret ready to be applied.
    ///
    /// Every holder of the bundle can join the tunnel until the bundle expires or you revoke it.
    Issue(IssueArgs),
    /// In the entry's cluster: check a join bundle and apply it as a Secret.
    Redeem(RedeemArgs),
    /// In the exit's cluster: have the exit no longer take anything that joined by a bundle issued so far.
    Revoke(RevokeArgs),
}

/// `token issue`.
#[derive(Debug, Args)]
pub struct IssueArgs {
    /// The MuxTunnel of side Exit.
    pub name: String,
    /// A new file, that only you may read; standard output where not given.
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// `token redeem`.
#[derive(Debug, Args)]
pub struct RedeemArgs {
    /// What `token issue` wrote; - is standard input.
    pub file: PathBuf,
    /// The name that the Secret gets.
    #[arg(long)]
    pub name: String,
    #[command(flatten)]
    #[allow(missing_docs, reason = "clap takes a comment here for the command's")]
    pub format: FormatArgs,
}

/// `token revoke`.
#[derive(Debug, Args)]
pub struct RevokeArgs {
    /// The MuxTunnel of side Exit.
    pub name: String,
    /// Do not ask.
    #[arg(long)]
    pub yes: bool,
    /// Wait until the operator has published a bundle of the new generation.
    #[arg(long)]
    pub wait: bool,
    /// Wait no longer than this.
    #[arg(long, default_value = "60s")]
    pub timeout: Duration,
    #[command(flatten)]
    #[allow(missing_docs, reason = "clap takes a comment here for the command's")]
    pub format: FormatArgs,
}

/// `completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell.
    #[arg(value_enum)]
    pub shell: Shell,
}

/// The name in messages: [`PLUGIN`] where kubectl calls us, by what it called.
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

/// Reads what was typed.
///
/// # Errors
/// clap's, which is help, the version, or what is wrong.
pub fn parse(program: &str, typed: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let matches = command(program).try_get_matches_from(typed)?;
    Cli::from_arg_matches(&matches)
}

#[cfg(test)]
mod tests;
