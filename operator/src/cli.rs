//! The command line of the operator, and its exit statuses.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// Exit statuses with their meanings, for the manual. `main` returns a `Result`, so the status of
/// an error is 1. clap exits with 2.
pub const EXIT_STATUSES: &[(u8, &str)] = &[
    (0, "ended by SIGTERM or SIGINT"),
    (1, "the operator failed; standard error has the cause"),
    (2, "the flags cannot be used"),
];

/// The command line.
#[derive(Debug, Parser)]
#[command(
    name = "muxtunnel-operator",
    version,
    about = "Runs MuxTunnels and MuxBenchmarks"
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the controllers until SIGTERM.
    Run(RunArgs),
}

/// `muxtunnel-operator run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Name of the operator in MuxClasses. The operator serves the objects of classes with this
    /// controllerName.
    #[arg(
        long,
        env = "CONTROLLER_NAME",
        default_value = "muxtunnel.dev/operator"
    )]
    pub controller_name: String,
    /// Image of the gateways, for classes that name none.
    #[arg(long, env = "GATEWAY_IMAGE")]
    pub gateway_image: String,
    /// Image of WAN emulation, for classes that name none.
    #[arg(long, env = "WAN_IMAGE")]
    pub wan_image: String,
    /// Image of benchmarks, for classes that name none.
    #[arg(long, env = "BENCH_IMAGE")]
    pub bench_image: String,
    /// Refresh the volumes of gateways as soon as their configuration changes, by an annotation that
    /// the operator patches through pods/status. Without this flag, a change takes up to 90 s.
    #[arg(long, env = "REFRESH_VOLUMES", default_value_t = false,
          action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub refresh_volumes: bool,
    /// Namespace to watch; repeatable. Default: all.
    #[arg(
        long = "watch-namespace",
        env = "WATCH_NAMESPACES",
        value_delimiter = ','
    )]
    pub watch_namespaces: Vec<String>,
    /// Create NetworkPolicies for gateways.
    #[arg(long, env = "NETWORK_POLICY", default_value_t = false,
          action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub network_policy: bool,
    /// Label KEY=VALUE of the operator's pods; repeatable. NetworkPolicies permit connections from
    /// pods with these labels to the gateways' admin port.
    #[arg(long = "pod-label", value_parser = label)]
    pub pod_labels: Vec<(String, String)>,
    /// Label KEY=VALUE of the namespaces whose pods may read the gateways' metrics; repeatable. A
    /// namespace needs all these labels. Default: no namespace.
    #[arg(long = "metrics-namespace-label", value_parser = label)]
    pub metrics_namespace_labels: Vec<(String, String)>,
    /// The operator's own namespace.
    #[arg(long, env = "POD_NAMESPACE")]
    pub namespace: String,
    /// Address of /healthz, /readyz and /metrics. The host :: means all IPv6 and IPv4 addresses, or
    /// only IPv4 if the kernel has no IPv6.
    #[arg(long, env = "HEALTH_LISTEN", default_value = "[::]:8080")]
    pub health_listen: SocketAddr,
    /// Manifest of a MuxClass that the operator applies. Default: none.
    #[arg(long, env = "CLASS_FILE")]
    pub class_file: Option<PathBuf>,
    /// Name of the Lease in --namespace for the leader election.
    #[arg(long, env = "LEASE_NAME", default_value = "muxtunnel-operator")]
    pub lease_name: String,
}

fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manual_has_all_exit_statuses() {
        muxtunnel_testkit::exit_statuses::assert_documented("muxtunnel-operator", EXIT_STATUSES);
    }
}
