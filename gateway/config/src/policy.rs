//! The targets that an exit may dial: rules `TARGET[,peer=IDENTITY]` that allow or deny targets.
//!
//! This module has the types, text forms and checks. `gateway/src/net/policy.rs` applies the rules.
//! The parser rejects invalid rules and rules that could never match.

mod fields;

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::forward::{FORWARDS_MAX, TARGETS_MAX};
use crate::proxies::PROXIES_MAX;
use crate::target::{Target, UNIX_PREFIX, unix_path_problem};
use crate::text::by_text;
use crate::{Config, ConfigError, Role};

/// Maximum number of rules in `allow`, and in `deny`.
pub const RULES_MAX: usize = 768;
const _: () = assert!(
    RULES_MAX == 2 * 64 + (FORWARDS_MAX + PROXIES_MAX) * TARGETS_MAX,
    "every spec fits: the 64 rules of `deny`, and a denial for each of the 64 rules of `allow` and for each target"
);
/// Maximum number of networks in `protectedCIDRs`.
pub const PROTECTED_MAX: usize = 64;
/// Maximum number of prefixes in `nat64Prefixes`.
pub const NAT64_PREFIXES_MAX: usize = 8;
/// Maximum length of a peer's identity, in bytes.
pub const PEER_BYTES_MAX: usize = 256;

/// The targets that an exit may dial.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policy {
    /// The value of [`Config::allow`].
    pub allow: Vec<Rule>,
    /// The value of [`Config::deny`].
    pub deny: Vec<Rule>,
    /// The value of [`Config::protected_cidrs`].
    pub protected: Vec<Cidr>,
    /// The value of [`Config::nat64_prefixes`].
    pub nat64_prefixes: Vec<Cidr>,
}

/// A rule for targets: exactly one of `host` and `cidr`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(try_from = "fields::Fields", into = "fields::Fields")]
pub struct Rule {
    /// The hosts that the rule covers.
    pub host: HostPattern,
    /// The ports that the rule covers.
    pub ports: Ports,
    /// The proved identity of the peer whose streams the rule covers. `None`: every peer.
    pub peer: Option<String>,
}

impl Rule {
    /// The rule that matches exactly `target`.
    #[must_use]
    pub fn of_target(target: &Target) -> Self {
        let (host, ports) = match target {
            Target::Tcp { host, port } => {
                let host = match host.parse() {
                    Ok(address) => HostPattern::Network(Cidr::single(address)),
                    Err(_) => HostPattern::Name(host.to_ascii_lowercase()),
                };
                (host, Ports::single(*port))
            }
            Target::Unix(path) => (HostPattern::Unix(path.clone()), Ports::ALL),
        };
        Self {
            host,
            ports,
            peer: None,
        }
    }
}

/// The host part of a [`Rule`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostPattern {
    /// `*`: every name and address.
    Any,
    /// A DNS name, lower case, compared with the requested name. The comparison ignores a dot at
    /// the end of either name. A dot at the end of this name makes it absolute: the resolver does
    /// not apply its search list.
    Name(String),
    /// `*.DOMAIN`, without the asterisk and the dot, lower case: every name below the domain. A dot
    /// at the end makes these names absolute, as for [`Self::Name`].
    Below(String),
    /// A network, matched against the resolved address.
    Network(Cidr),
    /// A Unix socket, by its absolute path. The rule ignores ports.
    Unix(String),
}

impl HostPattern {
    /// The text of a pattern of names: a name, `*.DOMAIN` or `*`.
    #[must_use]
    pub fn names(&self) -> Option<String> {
        match self {
            Self::Any => Some("*".to_owned()),
            Self::Name(name) => Some(name.clone()),
            Self::Below(domain) => Some(format!("*.{domain}")),
            Self::Network(_) | Self::Unix(_) => None,
        }
    }
}

/// A network: an address and a prefix length. A single address has the full length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cidr {
    /// The bits after the prefix are ignored.
    pub address: IpAddr,
    /// 0..=32 or 0..=128 bits.
    pub length: u8,
}

impl Cidr {
    /// The network that contains only `address`.
    #[must_use]
    pub const fn single(address: IpAddr) -> Self {
        let length = bits(address);
        Self { address, length }
    }

    /// Whether the network is a single address.
    #[must_use]
    pub const fn is_single(self) -> bool {
        self.length == bits(self.address)
    }

    /// Whether the network contains every address of its family.
    #[must_use]
    pub fn is_every(self) -> bool {
        self.network()
            .is_some_and(|network| network.prefix_len() == 0)
    }

    /// Whether the network contains `address`. All IPv4-mapped addresses count as IPv4.
    #[must_use]
    pub fn contains(self, address: IpAddr) -> bool {
        let network = self.network();
        network.is_some_and(|network| network.contains(&address.to_canonical()))
    }

    /// Whether the network contains all of `other`.
    #[must_use]
    pub fn has(self, other: Self) -> bool {
        match (self.network(), other.network()) {
            (Some(network), Some(other)) => network.contains(&other),
            _ => false,
        }
    }

    /// The network. An IPv4-mapped network (RFC 4291) becomes an IPv4 network. `None`: the prefix
    /// length is too large.
    #[must_use]
    pub fn network(self) -> Option<IpNet> {
        match (self.address, self.address.to_canonical()) {
            (IpAddr::V6(_), v4 @ IpAddr::V4(_)) if self.length >= 96 => {
                IpNet::new(v4, self.length - 96)
            }
            (address, _) => IpNet::new(address, self.length),
        }
        .ok()
    }
}

const fn bits(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

/// Ports from `first` to `last`, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ports {
    /// The first port, at least 1.
    pub first: u16,
    /// The last port, at least `first`.
    pub last: u16,
}

impl Ports {
    /// Every port.
    pub const ALL: Self = Self {
        first: 1,
        last: u16::MAX,
    };

    /// The ports of a rule with these fields.
    ///
    /// # Errors
    /// The problem.
    pub const fn of(port: Option<u16>, end_port: Option<u16>) -> Result<Self, &'static str> {
        match (port, end_port) {
            (Some(0), _) => Err("a port must be from 1 to 65535"),
            (None, None) => Ok(Self::ALL),
            (Some(port), None) => Ok(Self::single(port)),
            (Some(first), Some(last)) if first <= last => Ok(Self { first, last }),
            (_, Some(_)) => Err("endPort needs a port that is not greater than endPort"),
        }
    }

    /// The range of a single port.
    #[must_use]
    pub const fn single(port: u16) -> Self {
        Self {
            first: port,
            last: port,
        }
    }

    /// Whether the range is a single port.
    #[must_use]
    pub const fn is_single(self) -> bool {
        self.first == self.last
    }

    /// Whether the range contains `port`.
    #[must_use]
    pub const fn contains(self, port: u16) -> bool {
        self.first <= port && port <= self.last
    }
}

/// `80` or `8000-8100`.
impl FromStr for Ports {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let port = |text: &str| match text.parse::<u16>() {
            Ok(0) | Err(_) => Err("a port must be from 1 to 65535"),
            Ok(port) => Ok(port),
        };
        match text.split_once('-') {
            None => port(text).map(Self::single),
            Some((first, last)) => match (port(first)?, port(last)?) {
                (first, last) if first <= last => Ok(Self { first, last }),
                _ => Err("the last port is less than the first port"),
            },
        }
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_single() {
            true => write!(f, "{}", self.first),
            false => write!(f, "{}-{}", self.first, self.last),
        }
    }
}

/// The text is not a rule.
#[derive(Debug, thiserror::Error)]
#[error(
    "{text:?} is not a rule: {problem}. Expected HOST|*.DOMAIN|CIDR[:PORT[-PORT]][,peer=IDENTITY], such as web.example.com:443, *.example.com, 10.0.0.0/8:8000-8100 or [2001:db8::1]:443, or unix:/PATH"
)]
pub struct RuleError {
    /// The text.
    pub text: String,
    /// The problem.
    pub problem: &'static str,
}

/// The text form: `web.example.com:443`, `*.example.com:8000-8100`, `*:25`, `web.example.com`,
/// `10.0.0.0/8:5432`, `192.0.2.7`, `[2001:db8::1]:443`, `[2001:db8::]/32:443`, `2001:db8::/32`,
/// each optionally followed by `,peer=IDENTITY`.
impl FromStr for Rule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).map_err(|problem| RuleError {
            text: text.to_owned(),
            problem,
        })
    }
}

fn parse(text: &str) -> Result<Rule, &'static str> {
    let (target, peer) = split_peer(text)?;
    let (host, ports) = parse_target(target)?;
    Ok(Rule { host, ports, peer })
}

/// Splits off `,peer=IDENTITY` and returns the text before it, and the identity.
pub(crate) fn split_peer(text: &str) -> Result<(&str, Option<String>), &'static str> {
    match text.split_once(",peer=") {
        Some((target, peer)) => Ok((target, Some(parse_peer(peer)?))),
        None => Ok((text, None)),
    }
}

fn parse_peer(text: &str) -> Result<String, &'static str> {
    match text.len() {
        0 => Err("the peer's identity is empty"),
        1..=PEER_BYTES_MAX => Ok(text.to_owned()),
        _ => Err("the peer's identity is longer than 256 bytes"),
    }
}

fn parse_target(text: &str) -> Result<(HostPattern, Ports), &'static str> {
    let path = text.strip_prefix(UNIX_PREFIX);
    if let Some(path) = path.filter(|path| path.starts_with('/')) {
        return match unix_path_problem(path) {
            Some(_) => Err("the path is too long or has a control character"),
            None => Ok((HostPattern::Unix(path.to_owned()), Ports::ALL)),
        };
    }
    if let Some(rest) = text.strip_prefix('[') {
        let (address, rest) = rest.split_once(']').ok_or("a bracket is not closed")?;
        let (prefix, ports) = match rest.split_once(':') {
            Some((prefix, ports)) => (prefix, ports.parse()?),
            None => (rest, Ports::ALL),
        };
        return Ok((HostPattern::Network(parse_cidr(address, prefix)?), ports));
    }
    if text.matches(':').count() > 1 {
        // An IPv6 address without brackets: the whole text, without a port.
        return Ok((HostPattern::Network(parse_network(text)?), Ports::ALL));
    }
    let (host, ports) = match text.split_once(':') {
        Some((host, ports)) => (host, ports.parse()?),
        None => (text, Ports::ALL),
    };
    Ok((parse_host(host)?, ports))
}

fn parse_host(host: &str) -> Result<HostPattern, &'static str> {
    if host == "*" {
        return Ok(HostPattern::Any);
    }
    let end = if host.ends_with('.') { "." } else { "" };
    if let Some(domain) = host.strip_prefix("*.") {
        return parse_name(domain).map(|name| HostPattern::Below(name + end));
    }
    if host.contains('/') || host.parse::<IpAddr>().is_ok() {
        return parse_network(host).map(HostPattern::Network);
    }
    parse_name(host).map(|name| HostPattern::Name(name + end))
}

/// `10.0.0.0/8`, `2001:db8::1`.
impl FromStr for Cidr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse_network(text).map_err(|problem| {
            format!(
                "{text:?} is not a network, such as 10.96.0.0/16, 192.0.2.7 or 2001:db8::/32: {problem}"
            )
        })
    }
}

fn parse_network(text: &str) -> Result<Cidr, &'static str> {
    let (address, prefix) = text.split_at(text.find('/').unwrap_or(text.len()));
    parse_cidr(address, prefix)
}

/// `prefix`: empty, or `/` and a length.
fn parse_cidr(address: &str, prefix: &str) -> Result<Cidr, &'static str> {
    let address: IpAddr = address.parse().map_err(|_| "the address cannot be read")?;
    let length = match prefix.strip_prefix('/') {
        Some(length) => length
            .parse()
            .map_err(|_| "the prefix length is not a number")?,
        None if prefix.is_empty() => bits(address),
        None => return Err("unexpected text after the address"),
    };
    if length > bits(address) {
        return Err("the prefix length is too large");
    }
    Ok(Cidr { address, length })
}

/// Parses an RFC 1123 name. A name whose last label is a number is rejected: resolvers read it as
/// an unusual form of an IPv4 address.
fn parse_name(text: &str) -> Result<String, &'static str> {
    let label_ok = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && label
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    let name = text.strip_suffix('.').unwrap_or(text);
    if name.is_empty() || name.len() > 253 || !name.split('.').all(label_ok) {
        return Err("the host is not a DNS name");
    }
    if ends_in_number(name) {
        return Err("the host ends in a number, but is not a valid IP address");
    }
    Ok(name.to_ascii_lowercase())
}

/// Whether the last label of `host` is a decimal, octal or hexadecimal number. Resolvers read such
/// a host as an IPv4 address (`127.1`, `0x7f000001`). Source: inet_aton(3); WHATWG URL, "ends in a
/// number".
#[must_use]
pub fn ends_in_number(host: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host);
    let last = host.rsplit('.').next().unwrap_or(host);
    let hexadecimal = last
        .strip_prefix("0x")
        .or_else(|| last.strip_prefix("0X"))
        .is_some_and(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()));
    hexadecimal || (!last.is_empty() && last.bytes().all(|b| b.is_ascii_digit()))
}

/// A single address has no length, except in a document (`{:#}`).
impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_single() && !f.alternate() {
            true => write!(f, "{}", self.address),
            false => write!(f, "{}/{}", self.address, self.length),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            HostPattern::Any | HostPattern::Name(_) | HostPattern::Below(_) => {
                f.write_str(&self.host.names().unwrap_or_default())?;
            }
            HostPattern::Network(cidr) if cidr.address.is_ipv6() && self.ports != Ports::ALL => {
                write!(f, "[{}]", cidr.address)?;
                if !cidr.is_single() {
                    write!(f, "/{}", cidr.length)?;
                }
            }
            HostPattern::Network(cidr) => write!(f, "{cidr}")?,
            HostPattern::Unix(path) => write!(f, "{UNIX_PREFIX}{path}")?,
        }
        if self.ports != Ports::ALL {
            write!(f, ":{}", self.ports)?;
        }
        match &self.peer {
            Some(peer) => write!(f, ",peer={peer}"),
            None => Ok(()),
        }
    }
}

// An API server accepts only a network with its length.
by_text!(Cidr: {"type": "string", "format": "cidr", "minLength": 3, "maxLength": 49});

/// Prefix lengths of RFC 6052, section 2.2.
const NAT64_LENGTHS: [u8; 6] = [32, 40, 48, 56, 64, 96];

/// Checks the role and the lengths of the lists.
pub(crate) fn check(config: &Config) -> Result<(), ConfigError> {
    let dials = config.role != Role::Rendezvous;
    let is_exit = config.role == Role::Exit;
    for (field, length, most, may) in [
        ("allow", config.allow.len(), RULES_MAX, is_exit),
        ("deny", config.deny.len(), RULES_MAX, dials),
        (
            "protectedCIDRs",
            config.protected_cidrs.len(),
            PROTECTED_MAX,
            dials,
        ),
        (
            "nat64Prefixes",
            config.nat64_prefixes.len(),
            NAT64_PREFIXES_MAX,
            dials,
        ),
    ] {
        if length > 0 && !may {
            let problem = "only an exit dials targets: remove the field";
            return Err(ConfigError::field(field, problem));
        }
        ConfigError::unless_at_most(field, length, most)?;
    }
    let is_prefix = |cidr: &&Cidr| cidr.address.is_ipv6() && NAT64_LENGTHS.contains(&cidr.length);
    if let Some(wrong) = config.nat64_prefixes.iter().find(|cidr| !is_prefix(cidr)) {
        let problem = format!("{wrong} is not an IPv6 prefix of 32, 40, 48, 56, 64 or 96 bits");
        return Err(ConfigError::field("nat64Prefixes", problem));
    }
    Ok(())
}
