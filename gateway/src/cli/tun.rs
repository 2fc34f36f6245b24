//! `muxgate tun`: creates the interface of a gateway that carries IP packets. The command requires
//! CAP_NET_ADMIN. An administrator or the init container of a gateway's pod runs it.

use std::net::IpAddr;

use clap::{Args, Subcommand, ValueEnum};
use muxtunnel_gateway_config::{
    Cidr, DEVICE_BYTES_MAX, DEVICE_DEFAULT, DEVICE_NODE_DEFAULT, MTU_DEFAULT, MTU_MIN,
    NETWORK_QUEUES_MAX,
};

use super::help;
use crate::net::interface::{self, Forwarding, Interface};

/// Subcommands of `muxgate tun`.
#[derive(Debug, Subcommand)]
pub(super) enum Tun {
    /// Creates the interface, sets its addresses and routes, and brings it up. If the interface
    /// exists, changes the settings that differ. The interface remains until it is deleted.
    #[command(after_help = help::TUN_CREATE)]
    Create(Box<Create>),
    /// Deletes the interface, with its addresses and routes.
    #[command(after_help = help::TUN_DELETE)]
    Delete(Delete),
}

/// The requested state of the interface.
#[derive(Debug, Args)]
pub(super) struct Create {
    /// The name of the interface.
    #[arg(long, value_name = "NAME", default_value = DEVICE_DEFAULT, value_parser = parse_device)]
    device: String,
    /// Device file of the TUN driver; created if it is missing (character device 10:200).
    #[arg(long, value_name = "PATH", default_value = DEVICE_NODE_DEFAULT)]
    device_node: String,
    /// The user whose gateway opens the interface without any capability [default: the user who
    /// runs the command].
    #[arg(long, value_name = "UID")]
    owner: Option<u32>,
    /// An address of this host on the interface (repeatable).
    #[arg(long, value_name = "CIDR")]
    address: Vec<Cidr>,
    /// A network of the peer, which is routed to the interface (repeatable).
    #[arg(long, value_name = "CIDR")]
    route: Vec<Cidr>,
    /// The address of the other gateway (repeatable). No route may contain this address, because
    /// the interface would then carry the carrier's own packets.
    #[arg(long, value_name = "IP")]
    peer: Vec<IpAddr>,
    /// The MTU of the interface, equal to the gateway's --mtu.
    #[arg(long, value_name = "BYTES", default_value_t = MTU_DEFAULT, value_parser = clap::value_parser!(u16).range(i64::from(MTU_MIN)..))]
    mtu: u16,
    /// The number of queues, equal to the gateway's --queues. A gateway with one queue needs an
    /// interface that was created for one queue.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=i64::from(NETWORK_QUEUES_MAX)))]
    queues: u16,
    /// Forward packets between the interface and the other interfaces of this host. Sets the sysctl
    /// `forwarding` of each present interface for IPv4, and net.ipv6.conf.all.forwarding for IPv6.
    /// Without this flag, an nftables table drops such packets.
    #[arg(long)]
    forward: bool,
    /// Forward only connections in this direction, and translate their source addresses to an
    /// address of the interface by which they leave this host. The command creates an nftables
    /// table. Requires `--forward`.
    #[arg(long, value_name = "DIRECTION", requires = "forward")]
    masquerade: Option<Direction>,
}

/// The direction of connections that this host forwards and translates.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Direction {
    /// From other hosts into the interface: at an entry.
    In,
    /// Out of the interface to other hosts: at an exit.
    Out,
}

/// The interface to delete.
#[derive(Debug, Args)]
pub(super) struct Delete {
    /// The name of the interface.
    #[arg(long, value_name = "NAME", default_value = DEVICE_DEFAULT, value_parser = parse_device)]
    device: String,
}

impl Tun {
    /// Runs the subcommand; returns a description of the result.
    ///
    /// # Errors
    /// The operation that failed, and the privilege or setting that it requires.
    pub(super) fn run(self) -> anyhow::Result<String> {
        match self {
            Self::Create(create) => create.run(),
            Self::Delete(Delete { device }) => Ok(match interface::delete(&device)? {
                true => format!("{device} is deleted"),
                false => format!("{device} does not exist"),
            }),
        }
    }
}

impl Create {
    fn run(self) -> anyhow::Result<String> {
        for peer in &self.peer {
            if let Some(route) = interface::carrier_loop(&self.route, *peer) {
                anyhow::bail!(
                    "--route {route} contains the carrier's peer {peer}, so the interface would carry the carrier's own packets: use smaller networks"
                );
            }
        }
        let owner = self
            .owner
            .unwrap_or_else(|| rustix::process::getuid().as_raw());
        let interface = Interface {
            device: self.device,
            node: self.device_node,
            owner,
            mtu: self.mtu,
            queues: self.queues,
            addresses: self.address,
            routes: self.route,
            forwarding: match (self.forward, self.masquerade) {
                (false, _) => Forwarding::Off,
                (true, None) => Forwarding::Route,
                (true, Some(Direction::In)) => Forwarding::SnatIn,
                (true, Some(Direction::Out)) => Forwarding::SnatOut,
            },
        };
        interface.create()?;
        Ok(format!(
            "{} is up, for the gateway of user {owner}",
            interface.device
        ))
    }
}

/// Parses the name of an interface. Accepts only characters that need no quoting in a shell, and no
/// `%`, because the kernel replaces `%d` by a number.
fn parse_device(text: &str) -> Result<String, String> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let is_name = (1..=DEVICE_BYTES_MAX).contains(&text.len())
        && text.bytes().all(allowed)
        && !text.starts_with(['-', '.']);
    if is_name {
        Ok(text.to_owned())
    } else {
        Err(format!(
            "expected 1 to {DEVICE_BYTES_MAX} letters, digits, '-', '_' or '.'"
        ))
    }
}
