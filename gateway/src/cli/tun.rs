//! `muxgate tun`: makes the interface of a gateway that carries IP packets. It needs CAP_NET_ADMIN: an administrator runs it,
//! or the init container of a gateway's pod.

use std::net::IpAddr;

use clap::{Args, Subcommand};
use muxtunnel_gateway_config::{
    Cidr, DEVICE_BYTES_MAX, DEVICE_DEFAULT, DEVICE_NODE_DEFAULT, MTU_DEFAULT, MTU_MIN,
};

use super::help;
use crate::net::interface::{self, Interface};

/// What is to become of it.
#[derive(Debug, Subcommand)]
pub enum Tun {
    /// Creates the interface, sets its addresses and routes, and brings it up. Changes what differs if it exists. It stays until
    /// it is deleted.
    #[command(after_help = help::TUN_CREATE)]
    Create(Box<Create>),
    /// Deletes the interface, with its addresses and routes.
    #[command(after_help = help::TUN_DELETE)]
    Delete(Delete),
}

/// The interface as it is to be.
#[derive(Debug, Args)]
pub struct Create {
    /// Its name.
    #[arg(long, value_name = "NAME", default_value = DEVICE_DEFAULT, value_parser = parse_device)]
    device: String,
    /// Device file of the TUN driver; created if it is missing (character device 10:200).
    #[arg(long, value_name = "PATH", default_value = DEVICE_NODE_DEFAULT)]
    device_node: String,
    /// The user whose gateway opens it, without any capability [default: who runs this].
    #[arg(long, value_name = "UID")]
    owner: Option<u32>,
    /// An address of this host there (repeatable).
    #[arg(long, value_name = "CIDR")]
    address: Vec<Cidr>,
    /// A network of the other side, which is routed there (repeatable).
    #[arg(long, value_name = "CIDR")]
    route: Vec<Cidr>,
    /// The address of the other gateway (repeatable). No route may contain it, because the carrier would run inside itself.
    #[arg(long, value_name = "IP")]
    peer: Vec<IpAddr>,
    /// Its MTU, as the gateway's --mtu.
    #[arg(long, value_name = "BYTES", default_value_t = MTU_DEFAULT, value_parser = clap::value_parser!(u16).range(i64::from(MTU_MIN)..))]
    mtu: u16,
    /// Have this host pass packets on between its networks (net.ipv4.ip_forward, net.ipv6.conf.all.forwarding).
    #[arg(long)]
    forward: bool,
    /// Translate the sources of packets that this host passes on into and out of the interface to its own addresses (an
    /// nftables table, needs `--forward`).
    #[arg(long, requires = "forward")]
    masquerade: bool,
}

/// The interface that is to go.
#[derive(Debug, Args)]
pub struct Delete {
    /// Its name.
    #[arg(long, value_name = "NAME", default_value = DEVICE_DEFAULT, value_parser = parse_device)]
    device: String,
}

impl Tun {
    /// Does it; returns what is there now.
    ///
    /// # Errors
    /// What cannot be done, and what it needs.
    pub fn run(self) -> anyhow::Result<String> {
        match self {
            Self::Create(create) => create.run(),
            Self::Delete(Delete { device }) => Ok(match interface::delete(&device)? {
                true => format!("{device} is deleted"),
                false => format!("there is no {device}"),
            }),
        }
    }
}

impl Create {
    fn run(self) -> anyhow::Result<String> {
        for peer in &self.peer {
            if let Some(route) = interface::carrier_loop(&self.route, *peer) {
                anyhow::bail!(
                    "--route {route} has the carrier's peer {peer} in it: the carrier would run inside itself"
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
            addresses: self.address,
            routes: self.route,
            forward: self.forward,
            masquerade: self.masquerade,
        };
        interface.create()?;
        Ok(format!(
            "{} is up, for the gateway of user {owner}",
            interface.device
        ))
    }
}

/// A name that the kernel takes as it is (`%d` would be replaced), of characters that need no quoting.
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
