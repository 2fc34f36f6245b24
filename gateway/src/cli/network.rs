//! IP packets between the networks of both sides, as they are typed.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;
use muxtunnel_gateway_config::{
    Cidr, CidrError, DEVICE_DEFAULT, DEVICE_NODE_DEFAULT, MTU_DEFAULT, Network, NetworkDns, Role,
    Rule,
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
    /// to it. `auto`: with the addresses that the exit assigns (entry). Needs CAP_NET_ADMIN. Without it the interface is made by
    /// `muxgate tun create`.
    #[arg(long, value_name = "CIDR|auto", requires = "entry_cidr", value_parser = parse_device_address)]
    device_address: Vec<DeviceAddress>,
    /// Write the resolvers that the exit names to this file, in the form of resolv.conf(5) (entry).
    #[arg(long, value_name = "FILE", requires = "entry_cidr")]
    dns_file: Option<PathBuf>,
    /// The MTU that it was given: the maximum segment size of TCP is lowered to it.
    #[arg(long, value_name = "BYTES", default_value_t = MTU_DEFAULT)]
    mtu: u16,
    /// Have the kernel cut TCP and UDP into packets of one MTU, for comparison.
    #[arg(long)]
    no_offloads: bool,
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
    /// A network within --entry-cidr of which each entry has an address, one of IPv4 and one of IPv6 at most.
    #[arg(long, value_name = "CIDR", requires = "entry_cidr")]
    address_pool: Vec<Cidr>,
    /// Tell entries the resolvers of this host that are within --exit-cidr.
    #[arg(long, requires = "entry_cidr")]
    dns: bool,
    /// Or this resolver (repeatable).
    #[arg(long, value_name = "IP", requires = "entry_cidr")]
    dns_server: Vec<IpAddr>,
    /// And this domain, in which names are looked up (repeatable).
    #[arg(long, value_name = "NAME", requires = "entry_cidr")]
    dns_domain: Vec<String>,
}

impl NetworkRules {
    fn dns(&self) -> Option<NetworkDns> {
        let is_asked_for = self.dns || !self.dns_server.is_empty() || !self.dns_domain.is_empty();
        is_asked_for.then(|| NetworkDns {
            servers: self.dns_server.clone(),
            domains: self.dns_domain.clone(),
        })
    }
}

/// An address of the interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DeviceAddress {
    /// Those that the exit assigns.
    Auto,
    This(Cidr),
}

fn parse_device_address(text: &str) -> Result<DeviceAddress, String> {
    match text {
        "auto" => Ok(DeviceAddress::Auto),
        _ => {
            let cidr = text.parse().map(DeviceAddress::This);
            cidr.map_err(|error: CidrError| error.to_string())
        }
    }
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
            addresses: self.addresses(),
            routes: routes.clone(),
            forward: false,
            masquerade: false,
        }))
    }

    /// Those that are known before an exit assigns others.
    fn addresses(&self) -> Vec<Cidr> {
        let addresses = self.device_address.iter();
        let known = addresses.filter_map(|address| match address {
            DeviceAddress::This(cidr) => Some(*cidr),
            DeviceAddress::Auto => None,
        });
        known.collect()
    }

    /// The network that was asked for.
    ///
    /// # Errors
    /// Addresses that do not go together.
    pub(super) fn network(self, rules: NetworkRules) -> Result<Option<Network>, String> {
        if self.entry_cidr.is_empty() {
            return Ok(None);
        }
        let set_addresses = self.device_address.contains(&DeviceAddress::Auto);
        if set_addresses && self.device_address.len() > 1 {
            return Err("--device-address auto goes with no other address".to_owned());
        }
        let dns = rules.dns();
        Ok(Some(Network {
            device: self.device,
            node: self.device_node,
            entry_cidrs: self.entry_cidr,
            exit_cidrs: self.exit_cidr,
            mtu: self.mtu,
            offloads: !self.no_offloads,
            peers: Vec::new(),
            pool: rules.address_pool,
            dns,
            set_addresses,
            dns_file: self.dns_file,
            peers_reach_each_other: false,
            allow: rules.allow_packets,
            deny: rules.deny_packets,
        }))
    }
}
