//! The mux protocols and their capabilities.

use crate::text::named;
use crate::transport::field_of_byte_streams;
use crate::{Config, ConfigError, Proxy, Security};

named! {
    /// The mux protocol of carriers. Native: MuxTunnel's own protocol. QUIC: QUIC over UDP. HTTP2 and
    /// HTTP3: a CONNECT request for each stream. HBONE: the tunnel protocol of Istio's proxies. JMUX: the
    /// protocol of jetsocat. Default: Native.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
    #[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
    pub enum Protocol {
        /// MuxTunnel's own protocol, between two MuxTunnel gateways.
        #[default]
        Native = "Native",
        /// Devolutions' JMUX, the mux protocol of jetsocat.
        Jmux = "JMUX",
        /// HTTP/2 (RFC 9113) with a CONNECT request for each stream. Without TLS, the protocol is HTTP/2
        /// in plaintext (h2c). The peer can also be another HTTP/2 proxy, or a client of an HTTP/2 proxy.
        Http2 = "HTTP2",
        /// HBONE, with a proxy of an Istio mesh at the other end: HTTP/2 with mutual TLS or, in security
        /// mode None, in plaintext.
        Hbone = "HBONE",
        /// QUIC (RFC 9000) over UDP between two MuxTunnel gateways, with TLS. The exit's port is a UDP
        /// port.
        Quic = "QUIC",
        /// HTTP/3 (RFC 9114) over UDP with a CONNECT request for each stream, with TLS. The peer can also
        /// be another HTTP/3 proxy, or a client of an HTTP/3 proxy.
        Http3 = "HTTP3",
        /// SSH (RFC 4251): an exit is a server for ssh clients, an entry is a client of sshd. Each
        /// stream is one channel. Not in the resources of the operator.
        #[cfg_attr(feature = "schemars", schemars(skip))]
        Ssh = "SSH",
    }
}

/// The capabilities of a protocol. docs/protocol.md has the same table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Each half of a stream can end independently.
    pub half_close: bool,
    /// A reset differs from an end of file.
    pub reset: bool,
    /// The first payload of a client can travel with the open.
    pub early_data: bool,
    /// Streams can survive the loss of their carrier.
    pub resume: bool,
    /// A session can have several carriers.
    pub several_carriers: bool,
    /// An entry can spread its streams over several exits.
    pub several_exits: bool,
    /// A side can announce that it accepts no more streams, so that the peer opens them in another
    /// session.
    pub go_away: bool,
    /// An entry can request listeners on an exit.
    pub listen: bool,
    /// An exit can send a client's address to the target.
    pub source: bool,
    /// Sessions can carry IP packets in addition to streams.
    pub packets: bool,
    /// Targets can be Unix sockets.
    pub unix_targets: bool,
    /// Carriers can be WebSocket connections.
    pub web_socket: bool,
    /// The protocol runs on any ordered byte stream: TCP, proxies, Unix sockets, commands, a
    /// rendezvous. If false, the protocol runs on UDP.
    pub bytes: bool,
    /// A library allocates the buffers for received payload.
    pub library_buffers: bool,
}

impl Protocol {
    /// Every protocol.
    pub const ALL: [Self; 7] = [
        Self::Native,
        Self::Jmux,
        Self::Http2,
        Self::Hbone,
        Self::Quic,
        Self::Http3,
        Self::Ssh,
    ];

    /// The capabilities of the protocol.
    #[must_use]
    pub const fn can(self) -> Capabilities {
        const HTTP2: Capabilities = Capabilities {
            half_close: true,
            reset: true,
            early_data: false,
            resume: false,
            several_carriers: true,
            several_exits: true,
            go_away: true,
            listen: true,
            source: false,
            packets: false,
            unix_targets: false,
            web_socket: false,
            bytes: true,
            library_buffers: true,
        };
        match self {
            Self::Native => Capabilities {
                half_close: true,
                reset: true,
                early_data: true,
                resume: true,
                several_carriers: true,
                several_exits: true,
                go_away: true,
                listen: true,
                source: true,
                packets: true,
                unix_targets: true,
                web_socket: true,
                bytes: true,
                library_buffers: false,
            },
            Self::Jmux => Capabilities {
                half_close: true,
                // True only between two MuxTunnel gateways.
                reset: true,
                early_data: false,
                resume: false,
                several_carriers: false,
                several_exits: false,
                go_away: false,
                listen: false,
                source: false,
                packets: false,
                unix_targets: true,
                web_socket: true,
                bytes: true,
                library_buffers: false,
            },
            Self::Http2 => HTTP2,
            Self::Hbone => Capabilities {
                // HBONE peers in a service mesh do not support the listen request of protocol
                // HTTP2.
                listen: false,
                ..HTTP2
            },
            Self::Quic => Capabilities {
                listen: true,
                packets: true,
                bytes: false,
                ..HTTP2
            },
            Self::Http3 => Capabilities {
                // No standard defines a listen request, and two MuxTunnel gateways can use QUIC
                // instead.
                listen: false,
                bytes: false,
                ..HTTP2
            },
            Self::Ssh => Capabilities {
                // True only between two MuxTunnel gateways, because other SSH programs send EOF for
                // a reset as well as for an end of file.
                reset: true,
                go_away: false,
                unix_targets: true,
                ..HTTP2
            },
        }
    }
}

/// The error for a feature that needs listeners, with the protocols that support it.
pub(crate) fn cannot_listen(protocol: Protocol) -> String {
    let others = Protocol::ALL.into_iter().filter(|one| one.can().listen);
    let mut others: Vec<_> = others.map(Protocol::as_str).collect();
    let last = others.pop().unwrap_or_default();
    format!(
        "protocol {} cannot request that an exit listens: use {} or {last}",
        protocol.as_str(),
        others.join(", ")
    )
}

/// Checks the fields that depend on the protocol.
pub(crate) fn check(config: &Config) -> Result<(), ConfigError> {
    let (can, name) = (config.protocol.can(), config.protocol.as_str());
    if config.web_socket.is_some() && !can.web_socket {
        let problem = match config.protocol {
            Protocol::Quic | Protocol::Http3 => {
                format!("protocol {name} runs on UDP and cannot use WebSocket carriers")
            }
            Protocol::Ssh => "protocol SSH cannot use WebSocket carriers".to_owned(),
            _ => format!("protocol {name} cannot use WebSocket carriers: it runs on TCP or TLS"),
        };
        return Err(ConfigError::field("webSocket", problem));
    }
    if !can.bytes {
        check_datagrams(config)?;
    }
    let has_its_security = match config.protocol {
        Protocol::Hbone => matches!(
            config.security,
            Security::Certificates(_) | Security::None {}
        ),
        Protocol::Quic | Protocol::Http3 => matches!(
            config.security,
            Security::PublicKeys(_) | Security::Certificates(_) | Security::ServerTls(_)
        ),
        Protocol::Ssh => matches!(config.security, Security::Ssh(_)),
        Protocol::Native | Protocol::Jmux | Protocol::Http2 => {
            !matches!(config.security, Security::Ssh(_))
        }
    };
    if !has_its_security {
        let problem = match config.protocol {
            Protocol::Hbone => {
                "protocol HBONE needs mode Certificates, or None if the peer uses no TLS"
            }
            Protocol::Quic => "protocol QUIC needs mode PublicKeys, Certificates or ServerTls",
            Protocol::Http3 => "protocol HTTP3 needs mode PublicKeys, Certificates or ServerTls",
            Protocol::Ssh => "protocol SSH needs mode SSH",
            Protocol::Native | Protocol::Jmux | Protocol::Http2 => {
                "mode SSH is for protocol SSH only: use PublicKeys, Certificates, ServerTls or None"
            }
        };
        return Err(ConfigError::field("security.mode", problem));
    }
    Ok(())
}

/// Checks that a protocol on UDP has no field that needs a byte stream.
fn check_datagrams(config: &Config) -> Result<(), ConfigError> {
    let wrong = match config.proxy {
        Some(Proxy::Server(_)) => Some(("proxy", "a proxy connects to TCP ports only")),
        _ => field_of_byte_streams(config),
    };
    let name = config.protocol.as_str();
    ConfigError::unless_none(wrong.map(|(field, problem)| {
        let problem = format!("protocol {name} runs on UDP: {problem}");
        (field, problem)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table in docs/protocol.md.
    fn table() -> String {
        type Row = (&'static str, fn(Capabilities) -> bool);
        let rows: [Row; 13] = [
            ("the halves of a stream end independently", |can| {
                can.half_close
            }),
            ("a reset differs from an end of file", |can| can.reset),
            ("early data: payload travels with the open", |can| {
                can.early_data
            }),
            ("streams survive the loss of a carrier", |can| can.resume),
            ("several carriers per session", |can| can.several_carriers),
            ("an entry spreads its streams over several exits", |can| {
                can.several_exits
            }),
            (
                "graceful shutdown: new opens go to another session",
                |can| can.go_away,
            ),
            ("reverse forwards (`reverseForwards`)", |can| can.listen),
            (
                "targets receive the client's address (`proxyProtocol.send`)",
                |can| can.source,
            ),
            ("IP packets (`network`)", |can| can.packets),
            ("Unix sockets as targets", |can| can.unix_targets),
            ("WebSocket carriers", |can| can.web_socket),
            (
                "carriers through proxies, Unix sockets, commands and a rendezvous",
                |can| can.bytes,
            ),
        ];
        let names = Protocol::ALL.map(|protocol| format!(" `{}` |", protocol.as_str()));
        let mut table = format!(
            "| |{}\n|---|{}\n",
            names.concat(),
            "---|".repeat(names.len())
        );
        for (what, has) in rows {
            let cells = Protocol::ALL.map(|protocol| match has(protocol.can()) {
                true => " yes |",
                false => " - |",
            });
            table += &format!("| {what} |{}\n", cells.concat());
        }
        table
    }

    #[test]
    fn the_table_of_the_documentation_says_the_same() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/protocol.md");
        let text = std::fs::read_to_string(file).unwrap();
        let table = table();
        assert!(
            text.contains(&table),
            "docs/protocol.md lacks this table:\n{table}"
        );
    }

    #[test]
    fn names_are_those_of_the_file() {
        for protocol in Protocol::ALL {
            let written = serde_yaml::to_string(&protocol).unwrap();
            assert_eq!(written.trim(), protocol.as_str());
        }
    }

    #[test]
    fn what_does_not_go_together_is_refused_with_its_field() {
        let entry = "role: Entry\nconnect:\n- name: far\n  address: far:1\n";
        let none = "security: {mode: None}\n";
        let ssh = "security: {mode: SSH}\n";
        let forward = |target: &str| {
            format!("forwards: [{{name: a, listen: '127.0.0.1:1', targets: [{{{target}}}]}}]\n")
        };
        let web = "host: web, port: 80";
        for (rest, field) in [
            (
                format!("protocol: HTTP2\n{none}{}", forward("unix: /a")),
                "forwards[0].target",
            ),
            (
                format!("protocol: HTTP2\n{none}webSocket: {{path: /}}\n"),
                "webSocket",
            ),
            (format!("protocol: HTTP2\n{ssh}"), "security.mode"),
            (format!("protocol: HBONE\n{ssh}"), "security.mode"),
            (format!("protocol: QUIC\n{ssh}"), "security.mode"),
            (format!("protocol: QUIC\n{none}"), "security.mode"),
            (format!("protocol: HTTP3\n{ssh}"), "security.mode"),
            (format!("protocol: HTTP3\n{none}"), "security.mode"),
            (
                format!("protocol: HTTP3\n{MUTUAL_TLS}{}", forward(web))
                    .replace("forwards", "reverseForwards"),
                "reverseForwards[0].listen",
            ),
            (
                format!("protocol: HBONE\n{none}{}", forward(web))
                    .replace("forwards", "reverseForwards"),
                "reverseForwards[0].listen",
            ),
        ] {
            let names = match rest.contains(MUTUAL_TLS) {
                true => "  certificateNames: [p]\n",
                false => "",
            };
            let error = Config::from_yaml(&format!("{entry}{names}{rest}")).unwrap_err();
            assert!(error.to_string().contains(field), "{rest}: {error}");
        }
        for protocol in ["HTTP2", "HBONE"] {
            let good = format!("{entry}protocol: {protocol}\n{none}{}", forward(web));
            assert!(Config::from_yaml(&good).is_ok());
        }
    }

    #[test]
    fn quic_and_http3_run_on_udp_with_certificates_and_nothing_between() {
        for protocol in ["QUIC", "HTTP3"] {
            assert_runs_on_udp(protocol);
        }
    }

    const MUTUAL_TLS: &str = "security: {mode: Certificates, certificate: /a, key: /b, ca: /c}\n";

    fn assert_runs_on_udp(protocol: &str) {
        let web =
            "forwards: [{name: a, listen: '127.0.0.1:1', targets: [{host: web, port: 80}]}]\n";
        let config =
            |rest: &str| Config::from_yaml(&format!("protocol: {protocol}\n{MUTUAL_TLS}{rest}"));
        let entry = format!(
            "role: Entry\nconnect:\n- {{name: far, address: 'far:1', certificateNames: [p]}}\n\
             - {{name: near, address: 'near:2', certificateNames: [p]}}\n{web}"
        );
        assert!(config(&entry).is_ok());
        assert!(config("role: Exit\nlisten: '[::]:64000'\n").is_ok());
        for (rest, field) in [
            (
                format!("{entry}transport: WebSocket\nwebSocket: {{path: /}}\n"),
                "webSocket",
            ),
            (format!("{entry}proxy: 'http://proxy:3128'\n"), "proxy"),
            (entry.replace("near:2", "unix:/a"), "connect"),
            (
                "role: Entry\nconnect: [{name: far, command: [ssh, far], certificateNames: [p]}]\n"
                    .to_owned(),
                "connect[0].command",
            ),
            ("role: Exit\nlisten: unix:/a\n".to_owned(), "listen"),
            ("role: Exit\nlisten: stdio\n".to_owned(), "listen"),
            (
                "role: Exit\nlisten: '[::]:1'\ntrustedProxies: [10.0.0.0/8]\n".to_owned(),
                "trustedProxies",
            ),
            (
                entry.replace("address: 'near:2'", "rendezvous: {address: 'near:2'}"),
                "rendezvous",
            ),
        ] {
            let error = config(&rest).unwrap_err();
            assert!(error.to_string().contains(field), "{rest}: {error}");
        }
    }
}
