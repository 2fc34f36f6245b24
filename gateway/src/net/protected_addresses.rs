//! Addresses that peers reach only if a rule specifies them literally: the Kubernetes API server,
//! and the gateway's own ports.
//!
//! The addresses are determined once, when the process starts. [`crate::net::policy`] uses these
//! addresses to decide which targets a peer may reach.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use muxtunnel_gateway_config::{Config, Direction, Listener};

use crate::io::local_socket::canonical;

/// Environment variable of every pod, with the address of the API server's Service. On some
/// platforms, the value is the name of the Service.
const API_SERVER: &str = "KUBERNETES_SERVICE_HOST";

/// The protected addresses of one gateway.
#[derive(Debug, Clone)]
pub(crate) struct ProtectedAddresses {
    pub(crate) api_server: Option<ApiServer>,
    /// The addresses on which the gateway listens itself.
    own: Vec<SocketAddr>,
    /// Whether an address belongs to this host.
    is_local: fn(IpAddr) -> bool,
}

/// The address or the name of the API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ApiServer {
    Address(IpAddr),
    Name(String),
}

impl ProtectedAddresses {
    /// The protected addresses of this process.
    pub(crate) fn of_process(config: &Config) -> Self {
        let host = std::env::var(API_SERVER).unwrap_or_default();
        Self::new(&host, config, is_local)
    }

    /// `api_server` is an address or a name; empty: there is no API server.
    pub(crate) fn new(api_server: &str, config: &Config, is_local: fn(IpAddr) -> bool) -> Self {
        let api_server = match (api_server, api_server.parse()) {
            ("", _) => None,
            (_, Ok(address)) => Some(ApiServer::Address(address)),
            (name, Err(_)) => Some(ApiServer::Name(name.trim_end_matches('.').to_owned())),
        };
        let ssh = config.ssh.as_ref().map(|ssh| &ssh.listen);
        let listened = config.listen.iter().chain(&config.admin).chain(ssh);
        Self {
            api_server,
            own: listened
                .filter_map(|text| text.parse().ok())
                .map(canonical)
                .collect(),
            is_local,
        }
    }

    /// Adds the ports on which an entry listens for the its clients.
    pub(crate) fn with_listeners(&self, listeners: &[Listener]) -> Self {
        let here = listeners
            .iter()
            .filter(|listener| listener.direction == Direction::EntryToExit);
        let listeners = here.filter_map(|listener| listener.listen.parse().ok());
        let mut all = self.clone();
        all.own.extend(listeners.map(canonical));
        all
    }

    /// Whether the gateway's carrier, admin or ssh port listens on the address. After
    /// [`Self::with_listeners`], also whether a forward listens on it.
    pub(crate) fn is_own(&self, address: IpAddr, port: u16) -> bool {
        self.own.iter().any(|own| {
            let any = own.ip().is_unspecified();
            own.port() == port && (own.ip() == address || (any && (self.is_local)(address)))
        })
    }
}

/// Queries the kernel's routing table. If the destination is an address of this host, the kernel
/// selects the same address as the source.
fn is_local(address: IpAddr) -> bool {
    if address.is_loopback() || address.is_unspecified() {
        return true;
    }
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // Without a socket the answer is unknown, so the address counts as one of this host.
    let Ok(socket) = UdpSocket::bind((any, 0)) else {
        return true;
    };
    // `connect` on a UDP socket only looks up the route and sends nothing. Any port works.
    let source = socket
        .connect((address, 9))
        .and_then(|()| socket.local_addr());
    source.is_ok_and(|source| source.ip() == address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_this_host_are_told_from_others() {
        for (address, local) in [
            ("127.0.0.1", true),
            ("127.9.9.9", true),
            ("::1", true),
            ("192.0.2.1", false),
            ("2001:db8::1", false),
        ] {
            assert_eq!(is_local(address.parse().unwrap()), local, "{address}");
        }
    }

    #[test]
    fn the_ports_of_carriers_of_the_admin_page_and_of_ssh_are_own_ports() {
        let config = Config::from_yaml(
            "role: Exit\nsecurity: {mode: None}\nlisten: 0.0.0.0:64000\nadmin: 192.0.2.1:64001\n\
             ssh: {listen: '192.0.2.1:2222', hostKeys: [/k], authorizedKeys: /a}\n",
        )
        .unwrap();
        let protected = ProtectedAddresses::new("", &config, |_| true);
        let address = "192.0.2.1".parse().unwrap();
        for (port, is_own) in [(64000, true), (64001, true), (2222, true), (22, false)] {
            assert_eq!(protected.is_own(address, port), is_own, "{port}");
        }
    }

    #[test]
    fn the_api_server_is_known_by_address_or_by_name() {
        let config = Config::from_yaml(
            "role: Exit\nsecurity: {mode: None}\nlisten: 0.0.0.0:64000\nadmin: 192.0.2.1:64001\n",
        )
        .unwrap();
        let of = |host| ProtectedAddresses::new(host, &config, |_| true).api_server;
        assert_eq!(of(""), None);
        let address = ApiServer::Address("fd00::1".parse().unwrap());
        assert_eq!(of("fd00::1"), Some(address));
        let name = ApiServer::Name("api.example.com".to_owned());
        assert_eq!(of("api.example.com."), Some(name));
    }
}
