//! IP packets between the networks of both sides.

mod assigned;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_with_macros::skip_serializing_none;

pub use assigned::check_network_dns;

use crate::policy::PEER_BYTES_MAX;
use crate::text::is_number;
use crate::{Cidr, Config, ConfigError, HostPattern, RULES_MAX, Role, Rule, Security, is_yes, yes};

/// Maximum number of networks of each side, and of each peer.
pub const NETWORK_CIDRS_MAX: usize = 64;
/// Maximum number of peers in [`Network::peers`].
pub const NETWORK_PEERS_MAX: usize = 1024;
/// Maximum of [`Network::queues`].
pub const NETWORK_QUEUES_MAX: u16 = 4;
/// Maximum number of servers in [`NetworkDns::servers`], as in the C library's resolver (MAXNS,
/// resolv.h).
pub const NETWORK_DNS_SERVERS_MAX: usize = 3;
/// Maximum number of domains in [`NetworkDns::domains`] (MAXDNSRCH, resolv.h).
pub const NETWORK_DNS_DOMAINS_MAX: usize = 6;
/// Default name of the interface.
pub const DEVICE_DEFAULT: &str = "mux0";
/// Default path of the TUN driver's device node.
pub const DEVICE_NODE_DEFAULT: &str = "/dev/net/tun";
/// Maximum length of an interface's name in bytes (IFNAMSIZ without the NUL byte).
pub const DEVICE_BYTES_MAX: usize = 15;
/// Default MTU of the interface in bytes: the MTU of Ethernet and usually of pods.
pub const MTU_DEFAULT: u16 = 1500;
/// Default MTU of the interface with QUIC, in bytes. A datagram with a packet of this size fits a
/// path with an MTU of 1500.
pub const QUIC_MTU_DEFAULT: u16 = 1400;
/// Minimum MTU in bytes: the minimum MTU of IPv6 (RFC 8200, section 5).
pub const MTU_MIN: u16 = 1280;

/// A TUN interface of this host that exchanges IP packets with the other side. Both sides have the
/// same networks.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Network {
    /// Name of the interface, 1..=[`DEVICE_BYTES_MAX`] bytes.
    #[serde(default = "device_default")]
    pub device: String,
    /// Path of the TUN driver's device node.
    #[serde(default = "node_default", skip_serializing_if = "is_node_default")]
    pub node: String,
    /// Networks on the entry's side, 1..=[`NETWORK_CIDRS_MAX`]. An address belongs to the side
    /// whose networks have the longest prefix that contains the address.
    #[serde(rename = "entryCIDRs")]
    pub entry_cidrs: Vec<Cidr>,
    /// Networks on the exit's side, 1..=[`NETWORK_CIDRS_MAX`].
    #[serde(rename = "exitCIDRs")]
    pub exit_cidrs: Vec<Cidr>,
    /// MTU of the interface in bytes, [`MTU_MIN`]..=65,535. The gateway lowers the maximum segment
    /// size of TCP connections so that their packets fit this MTU.
    #[serde(default = "mtu_default")]
    pub mtu: u16,
    /// Whether the gateway and the kernel exchange TCP segments and UDP datagrams as super-packets
    /// of up to 64 KiB, instead of packets of at most one MTU.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub offloads: bool,
    /// Queues of the interface, each with its own worker, 1..=[`NETWORK_QUEUES_MAX`]. All packets
    /// of a flow use one queue, so they are not reordered. More than one queue needs an interface
    /// that was created for several queues.
    #[serde(default = "one", skip_serializing_if = "is_number::<_, 1>")]
    pub queues: u16,
    /// Exit: the networks of each entry, at most [`NETWORK_PEERS_MAX`]. If this field and `pool`
    /// are empty, one entry at a time has all of `entryCIDRs`. A running gateway reloads the list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<NetworkPeer>,
    /// Networks within `entryCIDRs`. Exit: each entry gets an address from each of these networks,
    /// at most one of IPv4 and one of IPv6. Entry: the networks from which the entry accepts
    /// assigned addresses, at most [`NETWORK_CIDRS_MAX`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pool: Vec<Cidr>,
    /// Exit: the DNS settings that the exit assigns to its entries.
    pub dns: Option<NetworkDns>,
    /// Entry: whether the gateway sets the addresses of the interface: it adds the addresses that
    /// the exit assigns, and removes all others except those of scope link. The gateway then needs
    /// CAP_NET_ADMIN.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub set_addresses: bool,
    /// Entry: the file into which the gateway writes the DNS servers that the exit assigns, in the
    /// format of resolv.conf(5).
    pub dns_file: Option<PathBuf>,
    /// Exit: whether entries may send packets to one another.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub peers_reach_each_other: bool,
    /// Exit: permitted destinations of packets from entries, by address and port, at most
    /// [`RULES_MAX`]. If empty, `exitCIDRs` are permitted, and with `peersReachEachOther` also
    /// `entryCIDRs`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<Rule>,
    /// Exit: forbidden destinations of packets from entries, at most [`RULES_MAX`]. These rules
    /// take precedence over `allow`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<Rule>,
}

/// The networks of one entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NetworkPeer {
    /// Identity that the entry's carriers prove: a name in its certificate, or its public key.
    pub identity: String,
    /// Networks within `entryCIDRs`, 1..=[`NETWORK_CIDRS_MAX`].
    #[serde(rename = "CIDRs")]
    pub cidrs: Vec<Cidr>,
}

/// DNS servers of the exit's end.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schemars",
    derive(schemars::JsonSchema),
    schemars(transform = crate::schema::open)
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NetworkDns {
    /// Addresses of the DNS servers, within the networks of the exit. Default: the servers of the
    /// exit's pod that are within these networks, usually the cluster's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schemars", schemars(length(max = 3), inner(length(min = 2, max = 45)), extend("x-kubernetes-list-type" = "set")))]
    pub servers: Vec<IpAddr>,
    /// Search domains. Default: the search domains of the exit's pod, or none if `servers` is set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schemars", schemars(length(max = 6), inner(length(min = 1, max = 253), regex(pattern = "^[a-zA-Z0-9_][-_.a-zA-Z0-9]*$")), extend("x-kubernetes-list-type" = "atomic")))]
    pub domains: Vec<String>,
}

fn device_default() -> String {
    DEVICE_DEFAULT.to_owned()
}

fn node_default() -> String {
    DEVICE_NODE_DEFAULT.to_owned()
}

fn is_node_default(node: &str) -> bool {
    node == DEVICE_NODE_DEFAULT
}

const fn mtu_default() -> u16 {
    MTU_DEFAULT
}

const fn one() -> u16 {
    1
}

/// The network of `running` with the networks of the peers in `new`. Without `new`, it has no peers:
/// this part needs a restart.
pub(crate) fn with_peers_of(running: Option<&Network>, new: Option<&Config>) -> Option<Network> {
    let mut network = running?.clone();
    match new.map(|new| &new.network) {
        None => network.peers.clear(),
        Some(Some(new)) => network.peers.clone_from(&new.peers),
        Some(None) => {}
    }
    Some(network)
}

/// Checks the network, and that it is compatible with the rest of the configuration.
pub(crate) fn check(config: &Config) -> Result<(), ConfigError> {
    let Some(network) = &config.network else {
        return Ok(());
    };
    let wrong = |field: &str, problem: String| Err(ConfigError::field(field, problem));
    if config.role == Role::Rendezvous {
        let problem = "a rendezvous carries no IP packets: remove the field";
        return wrong("network", problem.to_owned());
    }
    if !config.protocol.can().packets {
        let name = config.protocol.as_str();
        let problem = format!("protocol {name} carries no IP packets: use Native or QUIC");
        return wrong("network", problem);
    }
    check_queues(config, network)?;
    if !is_plain(&network.device, DEVICE_BYTES_MAX) {
        let problem = format!(
            "{:?} is not a name of an interface: expected 1 to {DEVICE_BYTES_MAX} letters, digits, '-', '_' or '.'",
            network.device
        );
        return wrong("network.device", problem);
    }
    if network.mtu < MTU_MIN {
        return wrong("network.mtu", format!("must be {MTU_MIN}..=65535"));
    }
    check_cidrs("entryCIDRs", &network.entry_cidrs)?;
    check_cidrs("exitCIDRs", &network.exit_cidrs)?;
    check_roles(config, network)?;
    check_peers(config, network)?;
    assigned::check(config, network)?;
    check_rules(network)
}

fn check_queues(config: &Config, network: &Network) -> Result<(), ConfigError> {
    let queues = network.queues;
    ConfigError::unless_in("network.queues", queues, 1..=NETWORK_QUEUES_MAX)?;
    if config.workers.is_some_and(|workers| workers != queues) {
        let problem = format!(
            "must equal network.queues, which is {queues}: each queue has its own worker, so that no flow is reordered"
        );
        return Err(ConfigError::field("workers", problem));
    }
    if queues > 1 && (config.is_stdio() || config.command().is_some()) {
        let problem = "must be 1 if the carrier is a command or standard input and output, because each queue needs its own carrier";
        return Err(ConfigError::field("network.queues", problem));
    }
    Ok(())
}

/// Whether the text has 1 to `most` bytes, and only characters that need no quoting, so that it is valid for an
/// interface (dev_valid_name, net/core/dev.c). For domains, this is the same check as `is_dns_domain` of the protocol
/// crate, on which this crate does not depend.
fn is_plain(text: &str, most: usize) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=most).contains(&text.len()) && text.bytes().all(allowed) && !text.starts_with(['-', '.'])
}

fn check_cidrs(field: &str, cidrs: &[Cidr]) -> Result<(), ConfigError> {
    let field = format!("network.{field}");
    check_count(&field, cidrs)?;
    ConfigError::each(&field, cidrs, |cidr| check_routed(*cidr))
}

fn check_count(field: &str, cidrs: &[Cidr]) -> Result<(), ConfigError> {
    if (1..=NETWORK_CIDRS_MAX).contains(&cidrs.len()) {
        return Ok(());
    }
    let problem = format!("must list 1 to {NETWORK_CIDRS_MAX} networks");
    Err(ConfigError::field(field, problem))
}

/// Checks a network of a peer. `entry_cidrs`: the networks of the entry's side, which must contain it.
///
/// # Errors
/// The problem.
pub fn check_network_of_peer(cidr: Cidr, entry_cidrs: &[Cidr]) -> Result<(), String> {
    check_routed(cidr)?;
    check_within(cidr, entry_cidrs)
}

fn check_within(cidr: Cidr, entry_cidrs: &[Cidr]) -> Result<(), String> {
    match entry_cidrs.iter().any(|all| all.has(cidr)) {
        true => Ok(()),
        false => Err(format!("{cidr} is not within entryCIDRs")),
    }
}

fn is_routed(address: IpAddr) -> bool {
    !(address.is_loopback() || address.is_multicast() || is_link_local(address))
}

fn check_routed(cidr: Cidr) -> Result<(), String> {
    match is_routed(cidr.address) {
        true => Ok(()),
        false => Err(format!(
            "{cidr} has loopback, link-local or multicast addresses, which are not routed to other hosts"
        )),
    }
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

/// Checks that only an exit has the fields of exits, and only an entry those of entries.
fn check_roles(config: &Config, network: &Network) -> Result<(), ConfigError> {
    let several = "only an exit has several entries: remove the field";
    let rules = "only an exit has rules for packets: remove the field";
    let assigns = "only an exit assigns DNS servers: remove the field";
    let assigned = "only an entry receives assigned addresses and DNS servers: remove the field";
    let (reach, set) = (network.peers_reach_each_other, network.set_addresses);
    let fields = [
        ("peers", !network.peers.is_empty(), Role::Exit, several),
        ("peersReachEachOther", reach, Role::Exit, several),
        ("allow", !network.allow.is_empty(), Role::Exit, rules),
        ("deny", !network.deny.is_empty(), Role::Exit, rules),
        ("dns", network.dns.is_some(), Role::Exit, assigns),
        ("setAddresses", set, Role::Entry, assigned),
        ("dnsFile", network.dns_file.is_some(), Role::Entry, assigned),
    ];
    let mut fields = fields.into_iter();
    let found = fields.find(|(_, is_there, role, _)| *is_there && config.role != *role);
    let found = found.map(|(field, .., problem)| (format!("network.{field}"), problem));
    ConfigError::unless_none(found)
}

fn check_peers(config: &Config, network: &Network) -> Result<(), ConfigError> {
    ConfigError::unless_at_most("network.peers", network.peers.len(), NETWORK_PEERS_MAX)?;
    let proves = matches!(
        config.security,
        Security::PublicKeys(_) | Security::Certificates(_)
    );
    if !network.peers.is_empty() && !proves {
        let problem = "need security.mode PublicKeys or Certificates, because entries are distinguished by identity";
        return Err(ConfigError::field("network.peers", problem));
    }
    let mut identities = BTreeSet::new();
    for (index, peer) in network.peers.iter().enumerate() {
        let field = format!("network.peers[{index}].identity");
        if !(1..=PEER_BYTES_MAX).contains(&peer.identity.len()) {
            let problem = format!("must have 1 to {PEER_BYTES_MAX} bytes");
            return Err(ConfigError::field(field, problem));
        }
        if !identities.insert(&peer.identity) {
            let problem = format!("{:?} is listed twice", peer.identity);
            return Err(ConfigError::field(field, problem));
        }
        let field = format!("network.peers[{index}].CIDRs");
        check_count(&field, &peer.cidrs)?;
        ConfigError::each(&field, &peer.cidrs, |cidr| {
            check_network_of_peer(*cidr, &network.entry_cidrs)
        })?;
    }
    Ok(())
}

fn check_rules(network: &Network) -> Result<(), ConfigError> {
    for (field, rules) in [("allow", &network.allow), ("deny", &network.deny)] {
        let field = format!("network.{field}");
        ConfigError::unless_at_most(&field, rules.len(), RULES_MAX)?;
        ConfigError::each(&field, rules, |rule| match rule.host {
            HostPattern::Network(_) | HostPattern::Any => Ok(()),
            _ => Err(
                "packets have no host names: expected CIDR[:PORT[-PORT]] or *[:PORT[-PORT]]"
                    .to_owned(),
            ),
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXIT: &str = "role: Exit\nlisten: 0.0.0.0:64000\nsecurity: {mode: None}\n";

    fn problem(rest: &str) -> String {
        match Config::from_yaml(&format!("{EXIT}{rest}")) {
            Ok(_) => String::new(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn a_network_needs_the_cidrs_of_both_sides() {
        let text = format!(
            "{EXIT}network: {{entryCIDRs: [10.8.0.2], exitCIDRs: [10.0.0.0/8, 'fd00::/64']}}\n"
        );
        let network = Config::from_yaml(&text).unwrap().network.unwrap();
        assert_eq!((network.device.as_str(), network.mtu), ("mux0", 1500));
        assert_eq!(network.exit_cidrs.len(), 2);
        assert!(problem("network: {entryCIDRs: [10.8.0.2]}\n").contains("exitCIDRs"));
    }

    #[test]
    fn what_cannot_be_says_where_and_why() {
        let with = |rest: &str| {
            problem(&format!(
                "network: {{entryCIDRs: [10.8.0.0/24], exitCIDRs: [10.0.0.0/8], {rest}}}\n"
            ))
        };
        for (rest, field) in [
            ("mtu: 1000", "network.mtu"),
            ("queues: 0", "network.queues"),
            ("queues: 5", "network.queues"),
            ("device: ''", "network.device"),
            ("device: 'a/b'", "network.device"),
            ("device: sixteen-bytes-xx", "network.device"),
            ("allow: [{host: web.example.com}]", "network.allow[0]"),
            ("deny: [{host: '*.example.com'}]", "network.deny[0]"),
            (
                "peers: [{identity: a, CIDRs: [10.8.0.2]}]",
                "network.peers: need security.mode",
            ),
        ] {
            let problem = with(rest);
            assert!(problem.contains(field), "{rest}: {problem}");
        }
        assert_eq!(
            with("allow: [{cidr: 10.1.0.0/16, port: 443}], deny: [{host: '*', port: 25}]"),
            ""
        );
        let loopback = problem("network: {entryCIDRs: [10.8.0.2], exitCIDRs: [127.0.0.0/8]}\n");
        assert!(loopback.contains("network.exitCIDRs[0]"), "{loopback}");
        let workers =
            problem("workers: 2\nnetwork: {entryCIDRs: [10.8.0.2], exitCIDRs: [10.0.0.0/8]}\n");
        assert!(workers.contains("workers"), "{workers}");
        let with = |rest: &str| {
            problem(&format!(
                "{rest}network: {{entryCIDRs: [10.8.0.2], exitCIDRs: [10.0.0.0/8], queues: 2}}\n"
            ))
        };
        assert_eq!((with(""), with("workers: 2\n")), Default::default());
        assert!(with("workers: 4\n").contains("network.queues, which is 2"));
        let command = "role: Entry\nconnect: [{name: far, command: [ssh, host]}]\nsecurity: {mode: None}\n\
             network: {entryCIDRs: [10.8.0.2], exitCIDRs: [10.0.0.0/8], queues: 2}\n";
        let command = Config::from_yaml(command).unwrap_err().to_string();
        assert!(command.contains("network.queues"), "{command}");
        let jmux =
            problem("protocol: JMUX\nnetwork: {entryCIDRs: [10.8.0.2], exitCIDRs: [10.0.0.0/8]}\n");
        assert!(jmux.contains("network: protocol JMUX"), "{jmux}");
    }

    #[test]
    fn peers_have_networks_of_their_own_within_the_entries() {
        let with = |peers: &str| {
            let text = format!(
                "role: Exit\nlisten: 0.0.0.0:64000\nsecurity: {{mode: Certificates, certificate: /a, key: /b, ca: /c, peers: [a, b]}}\n\
                 network: {{entryCIDRs: [10.8.0.0/24], exitCIDRs: [10.0.0.0/8], peers: [{peers}]}}\n"
            );
            match Config::from_yaml(&text) {
                Ok(_) => String::new(),
                Err(error) => error.to_string(),
            }
        };
        assert_eq!(with("{identity: a, CIDRs: [10.8.0.2]}"), "");
        let twice = with("{identity: a, CIDRs: [10.8.0.2]}, {identity: a, CIDRs: [10.8.0.3]}");
        assert!(twice.contains("network.peers[1].identity"), "{twice}");
        let outside = with("{identity: a, CIDRs: [10.9.0.2]}");
        assert!(outside.contains("network.peers[0].CIDRs[0]"), "{outside}");
    }
}
