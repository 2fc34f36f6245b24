//! IP packets between the networks of both sides, as they are typed.

use clap::Args;
use muxtunnel_gateway_config::{
    Cidr, DEVICE_DEFAULT, DEVICE_NODE_DEFAULT, MTU_DEFAULT, NETWORK_QUEUES_MAX, Network, Role, Rule,
};

use crate::net::interface::{self, Interface};

/// An interface that is made before a gateway runs, and deleted after it.
#[derive(Debug)]
pub struct TemporaryInterface(Interface);

/// The interface, until this is dropped.
#[derive(Debug)]
pub struct MadeInterface {
    device: String,
}

impl TemporaryInterface {
    /// Makes it.
    ///
    /// # Errors
    /// What cannot be done, and what it needs.
    pub fn make(self) -> anyhow::Result<MadeInterface> {
        let made = MadeInterface {
            device: self.0.device.clone(),
        };
        // What was made until an error goes with `made`.
        self.0.create()?;
        Ok(made)
    }
}

impl Drop for MadeInterface {
    fn drop(&mut self) {
        if let Err(error) = interface::delete(&self.device) {
            eprintln!("muxgate: {error}");
        }
    }
}

/// The same at both ends.
#[derive(Debug, Args)]
pub(super) struct NetworkArgs {
    /// Carry IP packets: a network at the entry's side (repeatable; both ends must have the same). They come from and go
    /// to a TUN interface of this host (docs/ip.md).
    #[arg(long, value_name = "CIDR", requires = "exit_cidr")]
    entry_cidr: Vec<Cidr>,
    /// A network at the exit's side (repeatable; both ends must have the same).
    #[arg(long, value_name = "CIDR", requires = "entry_cidr")]
    exit_cidr: Vec<Cidr>,
    /// The TUN interface.
    #[arg(long, value_name = "NAME", default_value = DEVICE_DEFAULT)]
    device: String,
    /// The node by which it is opened.
    #[arg(long, value_name = "PATH", default_value = DEVICE_NODE_DEFAULT)]
    device_node: String,
    /// Make the interface for as long as the gateway runs, with this address (repeatable), and route the other side's networks
    /// to it. Needs CAP_NET_ADMIN. Without it the interface is made by `muxgate tun create`.
    #[arg(long, value_name = "CIDR", requires = "entry_cidr")]
    device_address: Vec<Cidr>,
    /// The MTU that it was given: the maximum segment size of TCP is lowered to it.
    #[arg(long, value_name = "BYTES", default_value_t = MTU_DEFAULT)]
    mtu: u16,
    /// Have the kernel cut TCP and UDP into packets of one MTU, for comparison.
    #[arg(long)]
    no_offloads: bool,
    /// Queues of the interface, each with a worker and carriers of its own. More than one needs an interface that was made
    /// with `--queues`.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=i64::from(NETWORK_QUEUES_MAX)))]
    queues: u16,
}

/// What an exit says besides.
#[derive(Debug, Default, Args)]
pub(super) struct NetworkRules {
    /// Where packets of the entry may go (repeatable; none: to all of --exit-cidr).
    #[arg(long, value_name = "CIDR[:PORT[-PORT]]", requires = "entry_cidr")]
    allow_packets: Vec<Rule>,
    /// Where they may not go, whatever is allowed (repeatable).
    #[arg(long, value_name = "CIDR[:PORT[-PORT]]", requires = "entry_cidr")]
    deny_packets: Vec<Rule>,
}

impl NetworkArgs {
    /// The interface that lasts as long as the gateway, if one was asked for.
    pub(super) fn interface(&self, role: Role) -> Option<TemporaryInterface> {
        if self.device_address.is_empty() {
            return None;
        }
        let routes = match role {
            Role::Exit => &self.entry_cidr,
            Role::Entry | Role::Rendezvous => &self.exit_cidr,
        };
        Some(TemporaryInterface(Interface {
            device: self.device.clone(),
            node: self.device_node.clone(),
            owner: rustix::process::getuid().as_raw(),
            mtu: self.mtu,
            queues: self.queues,
            addresses: self.device_address.clone(),
            routes: routes.clone(),
            forward: false,
            masquerade: false,
        }))
    }

    /// The network that was asked for.
    pub(super) fn network(self, rules: NetworkRules) -> Option<Network> {
        if self.entry_cidr.is_empty() {
            return None;
        }
        Some(Network {
            device: self.device,
            node: self.device_node,
            entry_cidrs: self.entry_cidr,
            exit_cidrs: self.exit_cidr,
            mtu: self.mtu,
            offloads: !self.no_offloads,
            queues: self.queues,
            peers: Vec::new(),
            peers_reach_each_other: false,
            allow: rules.allow_packets,
            deny: rules.deny_packets,
        })
    }
}
