//! Where an exit is dialled.

use std::fmt;
use std::net::SocketAddr;

/// A name as it is configured, and one of the addresses that it resolves to, where it was looked up
/// here.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Address {
    ip: Option<SocketAddr>,
    name: String,
    /// The name resolves to others, too.
    is_one_of_several: bool,
}

impl Address {
    pub(crate) fn resolved(name: &str, ip: SocketAddr) -> Self {
        Self {
            ip: Some(ip),
            name: name.to_owned(),
            is_one_of_several: false,
        }
    }

    /// One of several addresses of a name.
    pub(crate) fn one_of_several(name: &str, ip: SocketAddr) -> Self {
        Self {
            is_one_of_several: true,
            ..Self::resolved(name, ip)
        }
    }

    /// It means one place, or any of several.
    pub(crate) fn unresolved(name: &str) -> Self {
        Self {
            ip: None,
            name: name.to_owned(),
            is_one_of_several: false,
        }
    }

    /// Where a carrier leads that was dialled by the name alone, and whose other end is at `peer`.
    pub(crate) fn at(&self, peer: &str) -> Self {
        // Behind a proxy it is the name that leads there.
        let ip = peer.parse().ok();
        Self {
            ip,
            name: self.name.clone(),
            is_one_of_several: self.is_one_of_several,
        }
    }

    /// `host:port`, `unix:/path`, or what a command is called.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn ip(&self) -> Option<SocketAddr> {
        self.ip
    }

    /// Its address, where the name may lead elsewhere.
    pub(crate) fn told_apart(&self) -> Option<SocketAddr> {
        self.ip.filter(|_| self.is_one_of_several)
    }

    /// Whether both mean the same place: two names may.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match (self.ip, other.ip) {
            (Some(one), Some(other)) => one == other,
            _ => self == other,
        }
    }

    /// The name's host, without the brackets of an IPv6 address.
    pub(crate) fn host(&self) -> &str {
        let host = self
            .name
            .rsplit_once(':')
            .map_or(&*self.name, |(host, _)| host);
        bare(host)
    }

    /// The name's port, where it has one.
    pub(crate) fn port(&self) -> Option<u16> {
        let (_, port) = self.name.rsplit_once(':')?;
        port.parse().ok()
    }
}

/// `host` without the brackets that an IPv6 address has before a port.
pub(crate) fn bare(host: &str) -> &str {
    let inner = host.strip_prefix('[');
    inner
        .and_then(|inner| inner.strip_suffix(']'))
        .unwrap_or(host)
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ip {
            Some(ip) => fmt::Display::fmt(&ip, f),
            None => f.write_str(&self.name),
        }
    }
}
