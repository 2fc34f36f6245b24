//! Flags of gateways that meet at a rendezvous.

use clap::Args;
use muxtunnel_gateway_config::{Connect, Leaf};

/// Flags of a leaf gateway, which meets its peer at a rendezvous.
#[derive(Debug, Args)]
pub(super) struct LeafArgs {
    /// Meet the peer at this rendezvous.
    #[arg(
        long,
        value_name = "HOST:PORT",
        requires = "name",
        requires = "secret_file"
    )]
    rendezvous: Option<String>,
    /// The name of the exit at the rendezvous.
    #[arg(long, requires = "rendezvous")]
    name: Option<String>,
    /// The file with the secret of the name for this role: at least 16 bytes.
    #[arg(long, value_name = "FILE", requires = "rendezvous")]
    secret_file: Option<String>,
}

impl LeafArgs {
    /// The rendezvous in `connect`.
    pub(super) fn meeting(&self) -> Option<Connect> {
        self.rendezvous.clone().map(|address| Connect {
            name: "exit".to_owned(),
            address: Some(address),
            ..Connect::default()
        })
    }

    pub(super) fn leaf(&self) -> Option<Leaf> {
        let (name, secret_file) = (self.name.clone()?, self.secret_file.clone()?);
        Some(Leaf { name, secret_file })
    }
}
