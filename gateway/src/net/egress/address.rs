//! The address of an exit.

use std::fmt;
use std::net::SocketAddr;

/// A configured name and, if this gateway resolved the name, one of its addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Address {
    ip: Option<SocketAddr>,
    name: String,
    /// Whether the name also resolves to other addresses.
    is_one_of_several: bool,
    /// The index of the exit in `connect`.
    exit: usize,
    /// Whether the address is that of a rendezvous, where several exits may be.
    is_meeting: bool,
}

impl Address {
    pub(crate) fn resolved(name: &str, ip: SocketAddr) -> Self {
        Self {
            ip: Some(ip),
            ..Self::unresolved(name)
        }
    }

    /// One of several addresses of a name.
    pub(crate) fn one_of_several(name: &str, ip: SocketAddr) -> Self {
        Self {
            is_one_of_several: true,
            ..Self::resolved(name, ip)
        }
    }

    /// A name that this gateway does not resolve.
    pub(crate) fn unresolved(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            ..Self::default()
        }
    }

    /// The same address, of the exit with the index `exit` in `connect`.
    pub(crate) fn of_exit(self, exit: usize) -> Self {
        Self { exit, ..self }
    }

    /// The same address, which is that of the rendezvous where the exit waits.
    pub(crate) fn of_meeting(self) -> Self {
        Self {
            is_meeting: true,
            ..self
        }
    }

    /// Whether the address is that of a rendezvous.
    pub(crate) const fn is_meeting(&self) -> bool {
        self.is_meeting
    }

    /// The index of the exit in `connect`.
    pub(crate) const fn exit(&self) -> usize {
        self.exit
    }

    /// The address of a carrier that was dialled by name and whose peer is `peer`.
    pub(crate) fn at(&self, peer: &str) -> Self {
        // Behind a proxy, `peer` is a name, so the address remains unknown.
        let ip = peer.parse().ok();
        Self {
            ip,
            name: self.name.clone(),
            is_one_of_several: self.is_one_of_several,
            exit: self.exit,
            is_meeting: self.is_meeting,
        }
    }

    /// The same exit or rendezvous by its name, whatever address the name has by then.
    pub(crate) fn by_name(&self) -> Self {
        Self {
            ip: None,
            is_one_of_several: false,
            ..self.clone()
        }
    }

    /// `host:port`, `unix:/path`, or the label of a command.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn ip(&self) -> Option<SocketAddr> {
        self.ip
    }

    /// Whether the IP address is IPv4; `None`: the IP address is unknown.
    pub(crate) fn is_ipv4(&self) -> Option<bool> {
        self.ip.map(|ip| ip.is_ipv4())
    }

    /// The IP address, if the name resolves to several addresses.
    pub(crate) fn told_apart(&self) -> Option<SocketAddr> {
        self.ip.filter(|_| self.is_one_of_several)
    }

    /// Whether both addresses are the same endpoint. Two names may resolve to the same address. An
    /// exit at a rendezvous is one endpoint, whatever the addresses of the rendezvous.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        if self.is_meeting || other.is_meeting {
            return self.exit == other.exit;
        }
        match (self.ip, other.ip) {
            (Some(one), Some(other)) => one == other,
            (one, other_ip) => one == other_ip && self.name == other.name,
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

    /// The port in the name, if present.
    pub(crate) fn port(&self) -> Option<u16> {
        let (_, port) = self.name.rsplit_once(':')?;
        port.parse().ok()
    }
}

/// Removes the brackets of an IPv6 address.
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
