//! Converts the flags that an entry and an exit share into a configuration.

use muxtunnel_gateway_config::{
    Config, CongestionControl, Drain, GatewayLimits, LIVENESS_SECONDS_DEFAULT, Memory, Protocol,
    ProxyError, Role, Security, Timeouts, Transport,
};

use super::Common;
use super::choices::ProtocolArg;
use super::network::NetworkRules;

/// A gateway with the defaults of a file.
pub(super) fn plain(role: Role) -> Config {
    Config {
        role,
        protocol: Protocol::Native,
        transport: Transport::Tcp,
        packet_bytes: None,
        security: Security::None {},
        web_socket: None,
        congestion_control: CongestionControl::Auto,
        liveness_seconds: LIVENESS_SECONDS_DEFAULT,
        connect: Vec::new(),
        listen: None,
        trusted_proxies: Vec::new(),
        proxy: None,
        rendezvous: Vec::new(),
        members: Vec::new(),
        ssh: None,
        network: None,
        admin: None,
        admin_hosts: Vec::new(),
        forwards: Vec::new(),
        reverse_forwards: Vec::new(),
        proxies: Vec::new(),
        allow: Vec::new(),
        deny: Vec::new(),
        protected_cidrs: Vec::new(),
        nat64_prefixes: Vec::new(),
        allow_listen: Vec::new(),
        workers: None,
        pool: None,
        resume: true,
        splice: true,
        timeouts: Timeouts::default(),
        memory: Memory::default(),
        limits: GatewayLimits::default(),
        drain: Drain::default(),
    }
}

/// Returns the part of the configuration that an entry and an exit share.
///
/// # Errors
/// Flags that cannot be combined, or a proxy that cannot be used.
pub(super) fn base(
    role: Role,
    common: Common,
    rules: NetworkRules,
    is_piped: bool,
) -> Result<Config, String> {
    Ok(Config {
        protocol: common.protocol.into(),
        security: {
            let is_ssh = matches!(common.protocol, ProtocolArg::Ssh);
            common.security.security(role, is_piped, is_ssh)?
        },
        // The proxy is parsed here, because clap's errors print a value that clap cannot parse, and
        // this value may contain a password.
        proxy: common
            .proxy
            .map(|text| text.parse())
            .transpose()
            .map_err(|error: ProxyError| format!("--proxy: {error}"))?,
        congestion_control: common.congestion_control.into(),
        liveness_seconds: common.liveness_seconds,
        admin: common.admin,
        admin_hosts: common.admin_host,
        network: common.network.network(rules)?,
        workers: common.workers,
        resume: !common.no_resume,
        splice: !common.no_splice,
        timeouts: Timeouts {
            idle_seconds: common.idle_timeout,
            half_open_seconds: common.half_open_timeout,
            keepalive_seconds: common.keepalive,
        },
        memory: common.memory.memory(),
        limits: GatewayLimits {
            streams: common.session_streams,
            ..GatewayLimits::default()
        },
        drain: common.drain.drain(),
        ..plain(role)
    })
}
