//! Arguments of `peer`.

use clap::{Args, Subcommand};
use k8s_openapi::jiff::Timestamp;
use muxtunnel_crds::Rule;

use super::documents;
use crate::duration::Duration;
use crate::output::Format;
use crate::target;

/// Subcommands of `peer`.
#[derive(Debug, Subcommand)]
pub enum PeerCommand {
    /// Permit an entry to use an exit: create or change a MuxPeer.
    ///
    /// Checks the exit and the key before anything is written.
    Add(PeerAddArgs),
    /// List peers.
    List(PeerListArgs),
    /// Make the exit refuse a peer, and end its carriers and streams. The MuxPeer remains.
    Suspend(PeerNameArgs),
    /// Make the exit accept a suspended peer again.
    Resume(PeerNameArgs),
    /// Delete a MuxPeer. The exit ends the carriers and the streams of the peer.
    Remove(PeerNameArgs),
}

/// Arguments of `peer add`.
#[derive(Debug, Args)]
pub struct PeerAddArgs {
    /// The name of the MuxPeer.
    pub name: String,
    /// The MuxExit.
    #[arg(long)]
    pub exit: String,
    /// The public key of the entry, from `status.publicKeys` of its MuxTunnel or from `muxgate
    /// keygen` (repeatable).
    #[arg(long = "key", value_name = "mte1...", required = true)]
    pub keys: Vec<String>,
    /// The time from which the exit refuses the peer: a duration such as 8h, or a time such as
    /// 2027-01-31T18:00:00Z [default: never].
    #[arg(long, value_name = "DURATION|TIME")]
    pub expires: Option<Expiry>,
    /// The time after --expires until the operator deletes the MuxPeer [default: never].
    #[arg(long, value_name = "DURATION", requires = "expires")]
    pub ttl: Option<Duration>,
    /// A target that the peer may reach, within the targets that the exit permits (repeatable)
    /// [default: all targets that the exit permits].
    #[arg(long, value_name = "HOST|*.DOMAIN|CIDR[:PORT[-PORT]]", value_parser = target::rule)]
    pub allow: Vec<Rule>,
    /// A port of the exit that the peer may serve: a name in spec.reversePorts of the exit
    /// (repeatable).
    #[arg(long = "reverse-port", value_name = "NAME")]
    pub reverse_ports: Vec<String>,
    /// Output format.
    #[arg(short, long, value_name = "FORMAT", default_value = "table", value_parser = documents())]
    pub output: Format,
}

/// When a peer expires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expiry {
    /// After this duration.
    After(Duration),
    /// At this time.
    At(Timestamp),
}

impl std::str::FromStr for Expiry {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let duration = text.parse().map(Self::After);
        duration
            .or_else(|_| text.parse().map(Self::At))
            .map_err(|_| {
                format!(
                    "{text:?} is neither a duration such as 8h nor a time such as 2027-01-31T18:00:00Z"
                )
            })
    }
}

/// Arguments of `peer list`.
#[derive(Debug, Args)]
pub struct PeerListArgs {
    /// List only the peers of this exit.
    #[arg(long)]
    pub exit: Option<String>,
    /// List the peers of all namespaces.
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub all_namespaces: bool,
    /// Print the list without the header line.
    #[arg(long)]
    pub no_headers: bool,
    /// Output format.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t)]
    pub output: Format,
}

/// Arguments of `peer suspend`, `peer resume` and `peer remove`.
#[derive(Debug, Args)]
pub struct PeerNameArgs {
    /// The MuxPeer.
    pub name: String,
    /// Output format.
    #[arg(short, long, value_name = "FORMAT", default_value = "table", value_parser = documents())]
    pub output: Format,
}
