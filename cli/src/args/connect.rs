//! Arguments of `connect`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgGroup, Args};

use crate::duration::Duration;
use crate::target::{self, Address, Forward, Reverse};

/// Arguments of `connect`.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("ways").required(true).multiple(true).args(["forward", "dynamic", "reverse"])))]
pub struct ConnectArgs {
    /// The MuxExit.
    pub exit: String,
    /// Listen on PORT of this host (of 127.0.0.1, or of BIND), and forward to HOST:PORT as seen from
    /// the exit (repeatable).
    #[arg(short = 'L', long, value_name = "[BIND:]PORT:HOST:PORT", value_parser = target::forward)]
    pub forward: Vec<Forward>,
    /// Listen on PORT of this host for clients of SOCKS and HTTP proxies (repeatable).
    #[arg(short = 'D', long, value_name = "[BIND:]PORT")]
    pub dynamic: Vec<String>,
    /// Let the exit listen on PORT, and forward to HOST:PORT as seen from this host (repeatable).
    /// The exit needs this port in spec.reversePorts.
    #[arg(short = 'R', long, value_name = "PORT:HOST:PORT", value_parser = target::reverse)]
    pub reverse: Vec<Reverse>,
    /// Time after which the connection ends, and the exit refuses this host.
    #[arg(long = "for", value_name = "DURATION", default_value = "8h")]
    pub duration: Duration,
    /// The address at which this host dials the exit [default: the address in the exit's status].
    /// PORT is 443 by default.
    #[arg(long, value_name = "HOST[:PORT]", value_parser = target::address)]
    pub address: Option<Address>,
    /// Name of the MuxPeer [default: muxtunnel-connect-USER-HOST].
    #[arg(long)]
    pub name: Option<String>,
    /// The program `muxgate`.
    #[arg(long, value_name = "FILE", default_value = "muxgate")]
    pub muxgate: PathBuf,
    /// If you may not create MuxPeers: print the manifest, and do not wait until an administrator
    /// has applied it.
    #[arg(long)]
    pub no_wait: bool,
    /// Time-out until the exit's gateways accept this host.
    #[arg(long, default_value = "60s")]
    pub timeout: Duration,
}

/// Arguments of the child of `connect`.
#[derive(Debug, Args)]
pub struct GateArgs {
    /// The process of `connect`.
    #[arg(long)]
    pub parent: i32,
    /// The program `muxgate`.
    pub program: PathBuf,
    /// The arguments of the program.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub arguments: Vec<OsString>,
}
