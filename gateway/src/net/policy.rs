//! Decides which targets an exit may dial.
//!
//! For given rules, the decision depends only on the requested name, the resolved address and the
//! peer. The caller dials exactly the address for which the decision was made. Without a matching
//! rule, the target is denied. A deny rule takes precedence over allow rules.
//! Rules of the peer itself narrow this: none of its deny rules may match, and one of its allow
//! rules must, if it has any.
//!
//! A rule with a network permits a protected address only if all addresses of the network are
//! protected for the same reason (kind). The kinds are: loopback, link-local, metadata services,
//! multicast, unspecified, the networks of `protectedCIDRs`, the API server, and the gateway's
//! own ports. An own port needs a rule with one address and one port. A rule with a name permits no
//! protected address, with two exceptions: `localhost` permits loopback, and [`API_SERVER_NAMES`]
//! permit the API server. If a tunnel or a translator maps an IPv6 address to a protected IPv4
//! address, the IPv6 address is also protected.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use muxtunnel_gateway_config::{
    Cidr, HostPattern, PeerRules, Policy, Ports, Reloadable, Rule, ends_in_number,
};

use crate::net::protected_addresses::{ApiServer, ProtectedAddresses};

/// Metadata services of large clouds whose addresses are not link-local: networks with prefix
/// lengths. AWS uses the first IPv6 network for services of an instance: `fd00:ec2::254` for
/// metadata, `fd00:ec2::23` for credentials of pods, and `fd00:ec2::253` for DNS. Google uses the
/// second IPv6 network. Oracle and Scaleway use one address each.
const METADATA: [(IpAddr, u8); 7] = [
    (IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)), 32),
    (IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)), 32),
    (IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)), 32),
    (
        IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0)),
        32,
    ),
    (
        IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0)),
        64,
    ),
    (
        IpAddr::V6(Ipv6Addr::new(0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe)),
        128,
    ),
    (
        IpAddr::V6(Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42)),
        128,
    ),
];
/// The names of the API server within a cluster. A rule for one of these names permits the API
/// server's address.
const API_SERVER_NAMES: [&str; 3] = [
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
];

/// Decides whether a peer may dial a target, from the rules, the protected addresses and the
/// identity of the peer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Authorizer<'a> {
    /// The allow rules.
    pub(crate) allow: &'a [Rule],
    pub(crate) policy: &'a Policy,
    pub(crate) protected: &'a ProtectedAddresses,
    /// The identity that the peer's carriers proved; `None`: the peer proved no identity.
    pub(crate) peer: Option<&'a str>,
    /// The rules of this peer alone. They only narrow what the other rules permit.
    pub(crate) of_peer: PeerRules<'a>,
    /// Whether a packet has no port. An allow rule must then be for all ports, and a deny rule
    /// applies with any ports.
    pub(crate) is_portless: bool,
}

/// The host of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Host<'a> {
    /// An address in standard notation.
    Address(IpAddr),
    /// A name without the final dot.
    Name(&'a str),
}

impl<'a> Host<'a> {
    /// Parses a host. Returns `None` if the text is neither a name nor an address, for example
    /// `0177.1`, which some resolvers interpret as an address.
    pub(crate) fn read(text: &'a str) -> Option<Self> {
        if let Ok(address) = text.parse() {
            return Some(Self::Address(address));
        }
        let name = text.strip_suffix('.').unwrap_or(text);
        let is_part = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        let is_name = !name.is_empty() && name.bytes().all(is_part) && !ends_in_number(name);
        is_name.then_some(Self::Name(name))
    }
}

impl<'a> Authorizer<'a> {
    /// Creates an authorizer with the rules of an exit.
    pub(crate) fn of_exit(
        in_force: &'a Reloadable,
        protected: &'a ProtectedAddresses,
        peer: Option<&'a str>,
    ) -> Self {
        let policy = &in_force.policy;
        Self {
            allow: &policy.allow,
            policy,
            protected,
            peer,
            of_peer: in_force.security.rules_of(peer),
            is_portless: false,
        }
    }

    fn allowing(&self, port: u16) -> impl Iterator<Item = &Rule> {
        let allowing = self.allow.iter();
        allowing.filter(move |rule| self.is_of_peer(rule) && self.is_open(rule, port))
    }

    /// Whether an allow rule is for `port`.
    fn is_open(&self, rule: &Rule, port: u16) -> bool {
        match self.is_portless {
            true => rule.ports == Ports::ALL,
            false => rule.ports.contains(port),
        }
    }

    /// Whether a rule of the peer's own `allow` for `port` is one of those that `matches` selects.
    fn is_open_to_peer(&self, port: u16, matches: impl Fn(&Rule) -> bool) -> bool {
        let Some(allow) = self.of_peer.allow else {
            return true;
        };
        let mut allow = allow.iter().filter(|rule| self.is_open(rule, port));
        allow.any(matches)
    }

    /// Whether any rule could permit `host`:`port`. The exit does not resolve a name that no rule
    /// could permit.
    pub(crate) fn may_permit(&self, host: Host<'_>, port: u16) -> bool {
        let by_name = |rule: &Rule| match &rule.host {
            HostPattern::Any => Some(true),
            HostPattern::Name(_) | HostPattern::Below(_) => Some(names(rule, host)),
            HostPattern::Network(_) => None,
            HostPattern::Unix(_) => Some(false),
        };
        let possible = |rule: &Rule| by_name(rule).unwrap_or(true);
        let mut denied = self.denying(port);
        self.allowing(port).any(possible)
            && self.is_open_to_peer(port, possible)
            && !denied.any(|rule| by_name(rule).unwrap_or(false))
    }

    /// Whether in one of both lists of allow rules, at least one rule matches the name of `host`,
    /// and all of these rules have an absolute name, so that the resolver must not apply its search
    /// list.
    pub(crate) fn is_whole(&self, host: Host<'_>, port: u16) -> bool {
        let of_peer = self.of_peer.allow.into_iter().flatten();
        let of_peer = of_peer.filter(|rule| self.is_open(rule, port));
        are_whole(self.allowing(port), host) || are_whole(of_peer, host)
    }

    /// Whether the Unix socket at `path` is permitted, that is, an allow rule names the path and no
    /// deny rule names it.
    pub(crate) fn permits_unix(&self, path: &str) -> bool {
        let mut allowing = self.allow.iter();
        let named = |rule: &Rule| self.names_unix(rule, path);
        allowing.any(named)
            && self
                .of_peer
                .allow
                .is_none_or(|rules| rules.iter().any(named))
            && !self.denies_unix(path)
    }

    /// Whether a rule denies the Unix socket at `path`.
    pub(crate) fn denies_unix(&self, path: &str) -> bool {
        let mut denying = self.policy.deny.iter().chain(self.of_peer.deny);
        denying.any(|rule| self.names_unix(rule, path))
    }

    fn names_unix(&self, rule: &Rule, path: &str) -> bool {
        self.is_of_peer(rule) && matches!(&rule.host, HostPattern::Unix(named) if named == path)
    }

    /// Whether the peer may dial `host`:`port`, resolved to `address`.
    pub(crate) fn permits(&self, host: Host<'_>, address: IpAddr, port: u16) -> bool {
        self.allowing(port)
            .any(|rule| self.covers(rule, host, address, port))
            && self.is_open_to_peer(port, |rule| match &rule.host {
                HostPattern::Any => true,
                HostPattern::Name(_) | HostPattern::Below(_) => names(rule, host),
                HostPattern::Network(cidr) => ends(*cidr, address).is_some(),
                HostPattern::Unix(_) => false,
            })
            && !self.denies(host, address, port)
    }

    /// Whether a rule denies `host`:`port`, resolved to `address`.
    pub(crate) fn denies(&self, host: Host<'_>, address: IpAddr, port: u16) -> bool {
        self.denying(port).any(|rule| match &rule.host {
            HostPattern::Any => true,
            HostPattern::Name(_) | HostPattern::Below(_) => names(rule, host),
            HostPattern::Network(cidr) => self.is_in(*cidr, address),
            HostPattern::Unix(_) => false,
        })
    }

    fn denying(&self, port: u16) -> impl Iterator<Item = &Rule> {
        let denying = self.policy.deny.iter().chain(self.of_peer.deny);
        let is_for = move |rule: &Rule| self.is_portless || rule.ports.contains(port);
        denying.filter(move |rule| self.is_of_peer(rule) && is_for(rule))
    }

    fn is_of_peer(&self, rule: &Rule) -> bool {
        let peer = rule.peer.as_deref();
        peer.is_none_or(|peer| self.peer == Some(peer))
    }

    /// Whether an allow rule matches and, for a protected address, specifies it literally.
    fn covers(&self, rule: &Rule, host: Host<'_>, address: IpAddr, port: u16) -> bool {
        let by_name = |exact: bool| {
            !self.is_own(address, port)
                && (exact || !self.names_api_server(host))
                && (self.guards_of(address).is_empty() || exact && is_localhost(host, address))
                && !self.is_protected(address, exact && is_api_server(host))
        };
        match &rule.host {
            HostPattern::Any => by_name(false),
            HostPattern::Name(_) => names(rule, host) && by_name(true),
            HostPattern::Below(_) => names(rule, host) && by_name(false),
            HostPattern::Unix(_) => false,
            HostPattern::Network(cidr) => {
                !self.names_api_server(host)
                    && ends(*cidr, address).is_some_and(|(first, last)| {
                        let names_port = first == last && rule.ports.is_single();
                        (names_port || !self.is_own(address, port))
                            && self.is_literal(address, first)
                            && self.is_literal(address, last)
                    })
            }
        }
    }

    /// Whether a network may permit `address` if its first or last address is `end`. Each
    /// protection of `address` must also apply to `end`.
    fn is_literal(&self, address: IpAddr, end: IpAddr) -> bool {
        let mut protected = self.protected();
        self.guards_of(address).is_within(self.guards_of(end))
            && protected.all(|cidr| !self.is_in(cidr, address) || self.is_in(cidr, end))
    }

    /// Whether the gateway itself listens on `address`, or on an address that it contains.
    pub(crate) fn is_own(&self, address: IpAddr, port: u16) -> bool {
        let mut all = self.embedded(address).chain([canonical(address)]);
        all.any(|address| self.protected.is_own(address, port))
    }

    /// The IPv4 addresses that a router or a translator could extract from an IPv6 address.
    fn embedded(&self, address: IpAddr) -> impl Iterator<Item = IpAddr> {
        let prefixes = self.policy.nat64_prefixes.iter();
        embedded(address).chain(prefixes.filter_map(move |prefix| translated(*prefix, address)))
    }

    /// The protections of the address and of its embedded addresses.
    fn guards_of(&self, address: IpAddr) -> Guards {
        let all = self.embedded(address).chain([canonical(address)]);
        all.map(guards_of_one).fold(Guards::NONE, Guards::with)
    }

    /// Whether the network contains the address or one of its embedded addresses.
    fn is_in(&self, cidr: Cidr, address: IpAddr) -> bool {
        let mut all = self.embedded(address).chain([address]);
        all.any(|address| ends(cidr, address).is_some())
    }

    /// Whether `host` is the name of the API server, if the gateway knows the API server by its
    /// name.
    fn names_api_server(&self, host: Host<'_>) -> bool {
        match (&self.protected.api_server, host) {
            (Some(ApiServer::Name(name)), Host::Name(host)) => name.eq_ignore_ascii_case(host),
            _ => false,
        }
    }

    fn is_protected(&self, address: IpAddr, but_for_api_server: bool) -> bool {
        let configured = self.policy.protected.iter().copied();
        let api_server = self.api_server().filter(|_| !but_for_api_server);
        let mut protected = configured.chain(api_server);
        protected.any(|cidr| self.is_in(cidr, address))
    }

    fn protected(&self) -> impl Iterator<Item = Cidr> {
        let configured = self.policy.protected.iter();
        configured.copied().chain(self.api_server())
    }

    fn api_server(&self) -> Option<Cidr> {
        match &self.protected.api_server {
            Some(ApiServer::Address(address)) => Some(Cidr::single(*address)),
            _ => None,
        }
    }
}

/// Whether at least one of `rules` matches the name of `host`, and all of these have an absolute
/// name.
fn are_whole<'a>(rules: impl Iterator<Item = &'a Rule>, host: Host<'_>) -> bool {
    let by_name = rules.filter(|rule| names(rule, host));
    let mut by_name = by_name.filter_map(|rule| match &rule.host {
        HostPattern::Name(name) | HostPattern::Below(name) => Some(name.ends_with('.')),
        _ => None,
    });
    by_name
        .next()
        .is_some_and(|first| first && by_name.all(|is_whole| is_whole))
}

/// Whether a rule with a name or a name pattern matches `host`.
fn names(rule: &Rule, host: Host<'_>) -> bool {
    let Host::Name(host) = host else {
        return false;
    };
    match &rule.host {
        HostPattern::Name(name) => host.eq_ignore_ascii_case(name.trim_end_matches('.')),
        HostPattern::Below(domain) => {
            let (host, domain) = (host.as_bytes(), domain.trim_end_matches('.').as_bytes());
            let Some(split) = host.len().checked_sub(domain.len() + 1) else {
                return false;
            };
            let (label, below) = host.split_at(split);
            !label.is_empty() && below[0] == b'.' && below[1..].eq_ignore_ascii_case(domain)
        }
        HostPattern::Any | HostPattern::Network(_) | HostPattern::Unix(_) => false,
    }
}

/// Whether `host` is `localhost`, and `address` is a loopback address. Of the protected addresses,
/// a rule for `localhost` permits only loopback addresses.
fn is_localhost(host: Host<'_>, address: IpAddr) -> bool {
    matches!(host, Host::Name(name) if name.eq_ignore_ascii_case("localhost"))
        && canonical(address).is_loopback()
}

fn is_api_server(host: Host<'_>) -> bool {
    let Host::Name(host) = host else {
        return false;
    };
    API_SERVER_NAMES
        .iter()
        .any(|name| host.eq_ignore_ascii_case(name))
}

/// Why an address must be specified literally, as a bit set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Guards(u8);

impl Guards {
    const NONE: Self = Self(0);
    const UNSPECIFIED: Self = Self(1);
    const LOOPBACK: Self = Self(2);
    const LINK_LOCAL: Self = Self(4);
    const METADATA: Self = Self(8);
    const MULTICAST: Self = Self(16);
    /// NAT64 for local use (RFC 8215). The position of the IPv4 address in such an address depends
    /// on the network's configuration, so the whole prefix is protected.
    const TRANSLATED: Self = Self(32);

    fn is_empty(self) -> bool {
        self == Self::NONE
    }

    fn is_within(self, other: Self) -> bool {
        self.0 & !other.0 == 0
    }

    fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

fn guards_of_one(address: IpAddr) -> Guards {
    let is_translated = |v6: Ipv6Addr| v6.segments()[..3] == [0x64, 0xff9b, 1];
    match address {
        IpAddr::V4(v4) if v4.octets()[0] == 0 => Guards::UNSPECIFIED,
        IpAddr::V6(v6) if v6.is_unspecified() => Guards::UNSPECIFIED,
        _ if address.is_loopback() => Guards::LOOPBACK,
        IpAddr::V4(v4) if v4.is_link_local() => Guards::LINK_LOCAL,
        IpAddr::V6(v6) if v6.is_unicast_link_local() => Guards::LINK_LOCAL,
        _ if is_metadata(address) => Guards::METADATA,
        IpAddr::V4(v4) if v4.is_broadcast() => Guards::MULTICAST,
        _ if address.is_multicast() => Guards::MULTICAST,
        IpAddr::V6(v6) if is_translated(v6) => Guards::TRANSLATED,
        _ => Guards::NONE,
    }
}

fn is_metadata(address: IpAddr) -> bool {
    let mut networks = METADATA.into_iter();
    networks.any(|(network, length)| {
        IpNet::new(network, length).is_ok_and(|network| network.contains(&address))
    })
}

/// Converts an address to the IPv4 address that it reaches. This applies to IPv4-mapped addresses
/// (RFC 4291), which the kernel dials as IPv4, and to addresses in the well-known NAT64 prefix (RFC
/// 6052). Other addresses remain unchanged.
fn canonical(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => match v6.segments() {
            [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
                v4(high, low)
            }
            _ => address,
        },
        IpAddr::V4(_) => address,
    }
}

/// The IPv4 addresses that a router or a translator could extract from an IPv6 address. The forms
/// are: compatible (RFC 4291), translated (RFC 2765), 6to4 (RFC 3056), server and client of Teredo
/// (RFC 4380), ISATAP (RFC 5214).
fn embedded(address: IpAddr) -> impl Iterator<Item = IpAddr> {
    let found = match address {
        IpAddr::V6(v6) => {
            let s = v6.segments();
            let outer = match s {
                [0, 0, 0, 0, 0, 0, high, low] if high != 0 || low > 1 => {
                    [Some(v4(high, low)), None]
                }
                [0, 0, 0, 0, 0xffff, 0, high, low] => [Some(v4(high, low)), None],
                [0x2002, high, low, ..] => [Some(v4(high, low)), None],
                [0x2001, 0, h, l, _, _, high, low] => [Some(v4(h, l)), Some(v4(!high, !low))],
                _ => [None, None],
            };
            // The "universal" and "group" bits of the interface identifier may have any value.
            let isatap = s[4] & 0xfcff == 0 && s[5] == 0x5efe;
            [outer[0], outer[1], isatap.then(|| v4(s[6], s[7]))]
        }
        IpAddr::V4(_) => [None; 3],
    };
    found.into_iter().flatten()
}

/// The IPv4 address that a translator with this prefix extracts from an address: the bits after the
/// prefix, except byte 8 (RFC 6052, section 2.2).
fn translated(prefix: Cidr, address: IpAddr) -> Option<IpAddr> {
    let network = IpNet::new(prefix.address, prefix.length).ok()?;
    let IpAddr::V6(v6) = address else {
        return None;
    };
    let octets = v6.octets();
    let behind = octets
        .iter()
        .enumerate()
        .skip(usize::from(prefix.length) / 8);
    let mut bytes = behind.filter(|(at, _)| *at != 8).map(|(_, byte)| *byte);
    let v4 = [bytes.next()?, bytes.next()?, bytes.next()?, bytes.next()?];
    network.contains(&address).then(|| IpAddr::V4(v4.into()))
}

fn v4(high: u16, low: u16) -> IpAddr {
    let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
    IpAddr::V4(Ipv4Addr::new(a, b, c, d))
}

/// The first and the last address of the network, if the network contains `address`.
fn ends(cidr: Cidr, address: IpAddr) -> Option<(IpAddr, IpAddr)> {
    let network = canonical_network(cidr)?;
    let has = network.contains(&canonical(address));
    has.then(|| (network.network(), network.broadcast()))
}

fn canonical_network(cidr: Cidr) -> Option<IpNet> {
    match (cidr.address, canonical(cidr.address)) {
        (IpAddr::V6(_), v4 @ IpAddr::V4(_)) if cidr.length >= 96 => {
            IpNet::new(v4, cidr.length - 96)
        }
        (address, _) => IpNet::new(address, cidr.length),
    }
    .ok()
}

#[cfg(test)]
mod tests;
