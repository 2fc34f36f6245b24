//! Addresses that peers reach only where a rule names them literally: the Kubernetes API server's, and the gateway's own
//! ports.
//!
//! Found once, when the process starts. [`crate::net::policy`] uses them; they decide nothing themselves.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use muxtunnel_gateway_config::Config;

use crate::io::local_socket::canonical;

/// In every pod: the address of the API server's Service, on some platforms its name.
const API_SERVER: &str = "KUBERNETES_SERVICE_HOST";

/// The protected addresses of one gateway.
#[derive(Debug)]
pub(crate) struct ProtectedAddresses {
    pub(crate) api_server: Option<ApiServer>,
    /// What it listens on for carriers and for its operator.
    own: Vec<SocketAddr>,
    /// Whether an address is one of this host's.
    is_local: fn(IpAddr) -> bool,
}

/// Where the API server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ApiServer {
    Address(IpAddr),
    Name(String),
}

impl ProtectedAddresses {
    /// Those of this process.
    pub(crate) fn of_process(config: &Config) -> Self {
        let host = std::env::var(API_SERVER).unwrap_or_default();
        Self::new(&host, config, is_local)
    }

    /// `api_server`: an address or a name; empty: there is none.
    pub(crate) fn new(api_server: &str, config: &Config, is_local: fn(IpAddr) -> bool) -> Self {
        let api_server = match (api_server, api_server.parse()) {
            ("", _) => None,
            (_, Ok(address)) => Some(ApiServer::Address(address)),
            (name, Err(_)) => Some(ApiServer::Name(name.trim_end_matches('.').to_owned())),
        };
        let listened = config.listen.iter().chain(&config.admin);
        Self {
            api_server,
            own: listened
                .filter_map(|text| text.parse().ok())
                .map(canonical)
                .collect(),
            is_local,
        }
    }

    /// Whether the gateway itself listens there, not for streams.
    pub(crate) fn is_own(&self, address: IpAddr, port: u16) -> bool {
        self.own.iter().any(|own| {
            let any = own.ip().is_unspecified();
            own.port() == port && (own.ip() == address || (any && (self.is_local)(address)))
        })
    }
}

/// The kernel's word: what is sent to an address of one's own comes from that address.
fn is_local(address: IpAddr) -> bool {
    if address.is_loopback() || address.is_unspecified() {
        return true;
    }
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let source = || {
        let socket = UdpSocket::bind((any, 0))?;
        // Sends nothing: it only looks for the route. The port is of no importance.
        socket.connect((address, 9))?;
        socket.local_addr()
    };
    source().is_ok_and(|source| source.ip() == address)
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
