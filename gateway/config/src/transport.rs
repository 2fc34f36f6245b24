//! The transport of carriers.

use serde::{Deserialize, Serialize};

use crate::carrier::is_unix;
use crate::{Config, ConfigError, CongestionControl, Protocol, Proxy, Role, connect, rendezvous};

/// The transport of carriers. Both ends must have the same value. TCP: TCP connections. KCP: KCP over
/// UDP, for paths that lose packets. WebSocket: WebSocket connections, for networks that pass only
/// HTTP. Auto: the entry selects a transport that the network permits. Default: TCP.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub enum Transport {
    /// TCP connections.
    #[default]
    #[serde(rename = "TCP")]
    Tcp,
    /// KCP over UDP, for paths that lose packets. The exit's port is then a UDP port. Needs protocol
    /// Native.
    #[serde(rename = "KCP")]
    Kcp,
    /// WebSocket connections, with the path `webSocket.path`. Needs protocol Native or JMUX.
    WebSocket,
    /// The entry selects TCP, KCP over the UDP port with the same number, or, with `webSocket`,
    /// WebSocket. It avoids transports that the network blocks. Under load, it compares KCP with
    /// another transport, and selects the faster one. Streams survive a change of the transport. An
    /// exit accepts all of these transports. Needs protocol Native.
    Auto,
}

/// Checks that transports KCP and Auto have protocol Native and addresses of the form HOST:PORT, and
/// that WebSocket has its path.
pub(crate) fn check(config: &Config) -> Result<(), ConfigError> {
    let problem = match config.transport {
        Transport::Tcp => config.web_socket.as_ref().map(|_| {
            let problem = "needs transport WebSocket or Auto: set transport, or remove webSocket";
            ("webSocket", problem.to_owned())
        }),
        Transport::Kcp => problem_of_datagrams(config).or_else(|| problem(config, "KCP")),
        Transport::WebSocket if !config.protocol.can().web_socket => {
            let name = config.protocol.as_str();
            let problem = format!("protocol {name} cannot use WebSocket: remove transport");
            Some(("transport", problem))
        }
        Transport::WebSocket if config.web_socket.is_none() => {
            let problem = "is missing: transport WebSocket needs its path, such as webSocket: {path: /carrier}";
            Some(("webSocket", problem.to_owned()))
        }
        Transport::WebSocket => None,
        Transport::Auto => problem(config, "Auto"),
    };
    ConfigError::unless_none(problem)
}

/// The first field that KCP does not support. With transport Auto, a gateway with such a field
/// either does not try KCP, or applies the field to TCP only.
fn problem_of_datagrams(config: &Config) -> Option<(&'static str, String)> {
    let (field, problem) = if config.web_socket.is_some() {
        (
            "webSocket",
            "needs TCP, but KCP runs on UDP: remove webSocket or transport",
        )
    } else if matches!(config.proxy, Some(Proxy::Server(_))) {
        (
            "proxy",
            "forwards only TCP connections, but KCP runs on UDP: remove proxy or transport",
        )
    } else if config.congestion_control != CongestionControl::Auto {
        (
            "congestionControl",
            "applies only to TCP, and KCP has its own congestion control: remove congestionControl or transport",
        )
    } else {
        return None;
    };
    Some((field, problem.to_owned()))
}

/// The first field that neither KCP nor Auto supports. `name`: the name of the transport.
fn problem(config: &Config, name: &str) -> Option<(&'static str, String)> {
    let (field, problem) = match (config.role, config.protocol) {
        (Role::Rendezvous, _) => ("transport", "a rendezvous joins TCP connections only"),
        (_, Protocol::Native) => field_of_byte_streams(config)?,
        _ => (
            "transport",
            "is for protocol Native only: other protocols use TCP or QUIC",
        ),
    };
    Some((field, format!("transport {name}: {problem}")))
}

/// The first field that needs carriers over byte streams, and why it excludes datagrams.
pub(crate) fn field_of_byte_streams(config: &Config) -> Option<(&'static str, &'static str)> {
    Some(if rendezvous::has_leaf(config) {
        ("rendezvous", "a rendezvous joins TCP connections only")
    } else if config.command().is_some() {
        ("connect[0].command", "a command cannot carry datagrams")
    } else if !config.trusted_proxies.is_empty() {
        ("trustedProxies", "datagrams have no PROXY header")
    } else if connect::has_unix(config) {
        ("connect", "expected HOST:PORT")
    } else if config.is_stdio() || is_unix(config.listen.as_deref()) {
        ("listen", "expected ADDRESS:PORT")
    } else {
        return None;
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: &str = "role: Entry\nsecurity: {mode: None}\ntransport: KCP\n";
    const EXIT: &str = "role: Exit\nsecurity: {mode: None}\ntransport: KCP\n";

    #[test]
    fn what_is_of_tcp_does_not_go_with_kcp() {
        let cases = [
            (ENTRY, "connect:\n- name: far\n  address: far:1\n", None),
            (
                ENTRY,
                "connect:\n- name: far\n  address: far:1\n- name: near\n  address: far:2\nproxy: none\n",
                None,
            ),
            (EXIT, "listen: 0.0.0.0:1\n", None),
            (
                EXIT,
                "listen: 0.0.0.0:1\nprotocol: JMUX\n",
                Some("transport"),
            ),
            (
                EXIT,
                "listen: 0.0.0.0:1\nwebSocket: {path: /a}\n",
                Some("webSocket"),
            ),
            (
                EXIT,
                "listen: 0.0.0.0:1\ntrustedProxies: [192.0.2.0/28]\n",
                Some("trustedProxies"),
            ),
            (EXIT, "listen: unix:/run/a\n", Some("listen")),
            (EXIT, "listen: stdio\n", Some("listen")),
            (
                EXIT,
                "listen: 0.0.0.0:1\ncongestionControl: BBR\n",
                Some("congestionControl"),
            ),
            (
                ENTRY,
                "connect:\n- name: far\n  address: far:1\n- name: near\n  address: unix:/run/a\n",
                Some("connect"),
            ),
            (
                ENTRY,
                "connect:\n- name: far\n  address: far:1\nproxy: http://proxy:3128\n",
                Some("proxy"),
            ),
            (
                ENTRY,
                "connect: [{name: far, command: [ssh, far]}]\n",
                Some("connect[0].command"),
            ),
            (
                "role: Rendezvous\nsecurity: {mode: PublicKeys, privateKeyFiles: [/k]}\ntransport: KCP\n",
                "listen: 0.0.0.0:1\n",
                Some("transport"),
            ),
        ];
        for (head, rest, expected) in cases {
            let over = |text: &str| Config::from_yaml(&format!("{text}{rest}"));
            let other = match rest.contains("webSocket") {
                true => "transport: WebSocket",
                false => "transport: TCP",
            };
            let tcp = over(&head.replace("transport: KCP", other));
            assert!(tcp.is_ok(), "{rest}: {tcp:?}");
            let said = over(head).err().map(|error| error.to_string());
            let field = said.as_deref().and_then(|said| said.split(": ").nth(1));
            assert_eq!(field, expected, "{rest}: {said:?}");
        }
    }

    #[test]
    fn a_web_socket_has_its_transport_and_its_path() {
        for (transport, rest, expected) in [
            ("WebSocket", "webSocket: {path: /a}\n", None),
            ("Auto", "webSocket: {path: /a}\n", None),
            ("WebSocket", "webSocket: {path: /a}\nprotocol: JMUX\n", None),
            ("TCP", "webSocket: {path: /a}\n", Some("webSocket")),
            ("WebSocket", "", Some("webSocket")),
            ("WebSocket", "protocol: HTTP2\n", Some("transport")),
        ] {
            let head = ENTRY.replace("KCP", transport);
            let read = Config::from_yaml(&format!(
                "{head}connect:\n- name: far\n  address: far:1\n{rest}"
            ));
            let said = read.err().map(|error| error.to_string());
            let field = said.as_deref().and_then(|said| said.split(": ").nth(1));
            assert_eq!(field, expected, "{transport} {rest}: {said:?}");
        }
    }

    #[test]
    fn tcp_is_not_written_down() {
        let config =
            Config::from_yaml(&format!("{ENTRY}connect:\n- name: far\n  address: far:1\n"))
                .unwrap();
        assert!(config.to_yaml().unwrap().contains("transport: KCP"));
        let config = Config {
            transport: Transport::Tcp,
            ..config
        };
        assert!(!config.to_yaml().unwrap().contains("transport"));
    }
}
