//! The direction of a forward, and the addresses on which an exit listens for its entries.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use crate::policy::split_peer;
use crate::protocol::cannot_listen;
use crate::text::by_text;
use crate::{Config, ConfigError, PEERS_MAX, Ports, Role};

/// Maximum number of rules in `allowListen`.
pub const LISTEN_RULES_MAX: usize = 4096;
const _: () = assert!(
    LISTEN_RULES_MAX == 16 * PEERS_MAX,
    "every peer of an exit may have each of its 16 reverse ports"
);

/// The side that listens. The other side dials the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// The entry listens and the exit dials.
    EntryToExit,
    /// The exit listens, if its `allowListen` permits the address. The entry dials.
    ExitToEntry,
}

/// An address and ports on which entries may request listeners of an exit:
/// `[ADDRESS:]PORT[-PORT][,peer=IDENTITY]`. The default address is 127.0.0.1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenRule {
    /// The address. `0.0.0.0` permits only listeners on `0.0.0.0`, that is, on all IPv4 addresses.
    /// `::` permits listeners on `::`, that is, on all addresses of both families, and on
    /// `0.0.0.0`.
    pub address: IpAddr,
    /// The ports.
    pub ports: Ports,
    /// The rule applies only to sessions of the peer that proved this identity on its carriers.
    /// `None`: every peer.
    pub peer: Option<String>,
}

impl ListenRule {
    /// Whether the peer with the identity `peer` may request a listener on `address`.
    #[must_use]
    pub fn permits(&self, address: SocketAddr, peer: Option<&str>) -> bool {
        let ports = self.ports_for(address.ip(), peer);
        ports.is_some_and(|ports| ports.contains(address.port()))
    }

    /// The ports of `address` on which the peer may request listeners. `None`: this rule does not
    /// permit the address or the peer.
    #[must_use]
    pub fn ports_for(&self, address: IpAddr, peer: Option<&str>) -> Option<Ports> {
        let asked = address.to_canonical();
        let all_of_ipv4 = self.address == Ipv6Addr::UNSPECIFIED && asked == Ipv4Addr::UNSPECIFIED;
        let is_its = self.peer.is_none() || self.peer.as_deref() == peer;
        ((self.address == asked || all_of_ipv4) && is_its).then_some(self.ports)
    }
}

impl FromStr for ListenRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse(text).map_err(|problem| {
            format!(
                "{text:?} is not a rule: {problem}. Expected [ADDRESS:]PORT[-PORT][,peer=IDENTITY], such as 8080, 0.0.0.0:9000-9100 or [::]:8080"
            )
        })
    }
}

fn parse(text: &str) -> Result<ListenRule, &'static str> {
    let (target, peer) = split_peer(text)?;
    let (address, ports) = match target.rsplit_once(':') {
        None => (Ipv4Addr::LOCALHOST.into(), target.parse()?),
        Some((address, ports)) => (parse_address(address)?, ports.parse()?),
    };
    Ok(ListenRule {
        address,
        ports,
        peer,
    })
}

/// IPv6 addresses are in brackets.
fn parse_address(text: &str) -> Result<IpAddr, &'static str> {
    let bare = text
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let address = match bare {
        Some(v6) => v6.parse().map(IpAddr::V6),
        None => text.parse().map(IpAddr::V4),
    };
    address
        .map(|address| address.to_canonical())
        .map_err(|_| "the address cannot be read")
}

impl fmt::Display for ListenRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            IpAddr::V4(v4) => write!(f, "{v4}:{}", self.ports)?,
            IpAddr::V6(v6) => write!(f, "[{v6}]:{}", self.ports)?,
        }
        match &self.peer {
            Some(peer) => write!(f, ",peer={peer}"),
            None => Ok(()),
        }
    }
}

by_text!(ListenRule);

/// Checks that only an exit whose protocol supports listeners has `allowListen`, and that the list is
/// short enough.
pub(crate) fn check(config: &Config) -> Result<(), ConfigError> {
    let listens = config.protocol.can().listen;
    let count = config.allow_listen.len();
    let problem = match config.role {
        _ if count == 0 => return Ok(()),
        Role::Exit if !listens => cannot_listen(config.protocol),
        Role::Exit => return ConfigError::unless_at_most("allowListen", count, LISTEN_RULES_MAX),
        _ => "only an exit opens listeners for entries: remove the field".to_owned(),
    };
    Err(ConfigError::field("allowListen", problem))
}
