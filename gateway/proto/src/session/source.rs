//! The client of a stream, as the side that opens the stream describes it to the side that dials.

use std::net::{IpAddr, SocketAddr};

/// The addresses in a PROXY protocol header, version 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The connection has no addresses that the header can carry.
    Unknown,
    /// A TCP connection. Both addresses have the same family.
    Tcp {
        /// The address of the side that connected.
        client: SocketAddr,
        /// The address that the client connected to.
        server: SocketAddr,
    },
}

impl Source {
    /// The source of a connection between these addresses: IPv4 if both are IPv4 or IPv4-mapped,
    /// otherwise IPv6.
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
