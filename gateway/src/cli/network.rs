//! Flags for IP packets between the networks of both sides.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;
use muxtunnel_gateway_config::{
    Cidr, DEVICE_DEFAULT, DEVICE_NODE_DEFAULT, MTU_DEFAULT, NETWORK_QUEUES_MAX, Network,
    NetworkDns, Role, Rule,
};

use crate::net::interface::{self, Forwarding, Interface};

/// An interface that exists only while a gateway runs.
#[derive(Debug)]
pub struct TemporaryInterface(Interface);

/// A created interface. Dropping the value deletes the interface.
#[derive(Debug)]
pub struct MadeInterface {
    device: String,
}

impl TemporaryInterface {
    /// Creates the interface.
    ///
    /// # Errors
    /// The step that failed, and the capability or the fix that this step needs.
    pub fn make(self) -> anyhow::Result<MadeInterface> {
        let made = MadeInterface {
            device: self.0.device.clone(),
        };
        // After an error, dropping `made` deletes a partly configured interface.
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

/// Flags of both roles.
#[derive(Debug, Args)]
pub(super) struct NetworkArgs {
    /// A network on the entry's side (repeatable). The gateways carry IP packets between the
    /// networks of both sides, through a TUN interface on each host (docs/ip.md). Give the entry
    /// and the exit the same --entry-cidr flags.
    #[arg(long, value_name = "CIDR", requires = "exit_cidr")]
    entry_cidr: Vec<Cidr>,
    /// A network on the exit's side (repeatable). Give the entry and the exit the same --exit-cidr
    /// flags.
    #[arg(long, value_name = "CIDR", requires = "entry_cidr")]
    exit_cidr: Vec<Cidr>,
    /// Name of the TUN interface.
    #[arg(long, value_name = "NAME", default_value = DEVICE_DEFAULT)]
    device: String,
    /// Device node of the TUN driver.
    #[arg(long, value_name = "PATH", default_value = DEVICE_NODE_DEFAULT)]
    device_node: String,
    /// Create the interface for as long as the gateway runs, with this address (repeatable), and
    /// route the networks of the peer's side to the interface. `auto` uses the addresses that the
    /// exit assigns from --address-pool (entry only). Needs CAP_NET_ADMIN. Without this flag, you must create the
    /// interface with `muxgate tun create` before the gateway starts.
    #[arg(long, value_name = "CIDR|auto", requires = "entry_cidr", value_parser = parse_device_address)]
    device_address: Vec<DeviceAddress>,
    /// A pool of addresses for entries, which must be within --entry-cidr (repeatable). An exit
    /// assigns each entry an address of each pool, at most one network of IPv4 and one of IPv6. An
    /// entry accepts only assigned addresses of its own pools.
    #[arg(long, value_name = "CIDR", requires = "entry_cidr")]
    address_pool: Vec<Cidr>,
    /// The file into which the gateway writes the DNS servers that the exit assigns, in the format
    /// of resolv.conf(5) (entry only).
    #[arg(long, value_name = "FILE", requires = "entry_cidr")]
    dns_file: Option<PathBuf>,
    /// MTU of the interface. The gateway lowers the maximum segment size of TCP connections to fit
    /// this MTU.
    #[arg(long, value_name = "BYTES", default_value_t = MTU_DEFAULT)]
    mtu: u16,
    /// Let the kernel split TCP and UDP data into packets of one MTU. Use this flag only to compare
    /// the performance.
    #[arg(long)]
    no_offloads: bool,
    /// Queues of the interface, each with its own worker and carriers. If you create the interface
    /// with `muxgate tun create`, use the same number of queues there.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=i64::from(NETWORK_QUEUES_MAX)))]
    queues: u16,
}

/// Flags of an exit only.
#[derive(Debug, Default, Args)]
pub(super) struct NetworkRules {
    /// Allow packets of entries to this destination (repeatable). Default: all networks of
    /// --exit-cidr, and with --peers-reach-each-other also those of --entry-cidr.
    #[arg(long, value_name = "CIDR[:PORT[-PORT]]", requires = "entry_cidr")]
    allow_packets: Vec<Rule>,
    /// Deny packets of entries to this destination, even if --allow-packets allows it (repeatable).
    #[arg(long, value_name = "CIDR[:PORT[-PORT]]", requires = "entry_cidr")]
    deny_packets: Vec<Rule>,
    /// Let entries reach one another (docs/ip.md).
    #[arg(long, requires = "entry_cidr")]
    peers_reach_each_other: bool,
    /// Assign the DNS servers and the search domains of this host to entries. A DNS server outside
    /// --exit-cidr is not assigned.
    #[arg(long, requires = "entry_cidr")]
    dns: bool,
    /// Assign this DNS server to entries, instead of this host's DNS servers (repeatable).
    #[arg(long, value_name = "IP", requires = "entry_cidr")]
    dns_server: Vec<IpAddr>,
    /// Assign this search domain to entries, instead of this host's search domains (repeatable).
    /// Without --dns-server, this flag also assigns the DNS servers of this host.
    #[arg(long, value_name = "NAME", requires = "entry_cidr")]
    dns_domain: Vec<String>,
}

impl NetworkRules {
    fn dns(&self) -> Option<NetworkDns> {
        let is_requested = self.dns || !self.dns_server.is_empty() || !self.dns_domain.is_empty();
        is_requested.then(|| NetworkDns {
            servers: self.dns_server.clone(),
            domains: self.dns_domain.clone(),
        })
    }
}

/// An address of the interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DeviceAddress {
    /// The addresses that the exit assigns.
    Auto,
    This(Cidr),
}

fn parse_device_address(text: &str) -> Result<DeviceAddress, String> {
    match text {
        "auto" => Ok(DeviceAddress::Auto),
        _ => text.parse().map(DeviceAddress::This),
    }
}

impl NetworkArgs {
    /// The temporary interface that `--device-address` requests, if any.
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
            addresses: self.addresses(),
            routes: routes.clone(),
            forwarding: Forwarding::Unmanaged,
        }))
    }

    /// The addresses that the gateway sets on the interface at its start. `auto` sets none: the
    /// exit assigns them later.
    fn addresses(&self) -> Vec<Cidr> {
        let addresses = self.device_address.iter();
        let known = addresses.filter_map(|address| match address {
            DeviceAddress::This(cidr) => Some(*cidr),
            DeviceAddress::Auto => None,
        });
        known.collect()
    }

    /// The requested network.
    ///
    /// # Errors
    /// `--device-address auto` with another address, or without a pool.
    pub(super) fn network(self, rules: NetworkRules) -> Result<Option<Network>, String> {
        if self.entry_cidr.is_empty() {
            return Ok(None);
        }
        let set_addresses = self.device_address.contains(&DeviceAddress::Auto);
        if set_addresses && self.device_address.len() > 1 {
            return Err("--device-address auto cannot be combined with another address".to_owned());
        }
        if set_addresses && self.address_pool.is_empty() {
            return Err("--device-address auto needs --address-pool: name the networks from which the exit may assign addresses".to_owned());
        }
        let dns = rules.dns();
        Ok(Some(Network {
            device: self.device,
            node: self.device_node,
            entry_cidrs: self.entry_cidr,
            exit_cidrs: self.exit_cidr,
            mtu: self.mtu,
            offloads: !self.no_offloads,
            queues: self.queues,
            peers: Vec::new(),
            pool: self.address_pool,
            dns,
            set_addresses,
            dns_file: self.dns_file,
            peers_reach_each_other: rules.peers_reach_each_other,
            allow: rules.allow_packets,
            deny: rules.deny_packets,
        }))
    }
}
