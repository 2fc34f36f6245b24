//! Who a stream is for, as the side that opens it tells the side that dials.

use std::net::{IpAddr, SocketAddr};

/// What the PROXY protocol, version 2, says of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// It has no addresses that could be said.
    Unknown,
    /// A TCP connection. Both addresses are of one family.
    Tcp {
        /// The end that connected.
        client: SocketAddr,
        /// The end that was connected to.
        server: SocketAddr,
    },
}

impl Source {
    /// Of a connection with these ends: IPv4 where both are, even if written as IPv6, or else IPv6.
    #[must_use]
    pub fn of(client: SocketAddr, server: SocketAddr) -> Self {
        let (one, other) = (client.ip().to_canonical(), server.ip().to_canonical());
        let same = one.is_ipv4() == other.is_ipv4();
        let ip = |ip: IpAddr| match ip {
            IpAddr::V4(v4) if !same => IpAddr::V6(v4.to_ipv6_mapped()),
            ip => ip,
        };
        Self::Tcp {
            client: SocketAddr::new(ip(one), client.port()),
            server: SocketAddr::new(ip(other), server.port()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_are_of_one_family() {
        for (client, server, expected) in [
            ("1.2.3.4:5", "6.7.8.9:1", "1.2.3.4:5 6.7.8.9:1"),
            ("[::ffff:1.2.3.4]:5", "6.7.8.9:1", "1.2.3.4:5 6.7.8.9:1"),
            ("[::2]:5", "6.7.8.9:1", "[::2]:5 [::ffff:6.7.8.9]:1"),
            ("[::2]:5", "[::3]:1", "[::2]:5 [::3]:1"),
        ] {
            let source = Source::of(client.parse().unwrap(), server.parse().unwrap());
            let Source::Tcp { client, server } = source else {
                panic!("{source:?}");
            };
            assert_eq!(format!("{client} {server}"), expected);
        }
    }
}
