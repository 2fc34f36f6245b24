//! The configuration of a gateway, and the ConfigMap that brings it to the pods.

use k8s_openapi::api::core::v1::ConfigMap;
use muxtunnel_crds as crds;
use muxtunnel_gateway_config::{
    ADMIN_PORT, Allow, CARRIER_PORT, Config, CongestionControl, Drain, Forward, Limits, Memory,
    Protocol, RECEIVE_DEFAULT, RECEIVE_MIN, Role, STREAM_RECEIVE_MIN, Security, SecurityMode,
    Target,
};
use muxtunnel_gateway_config::{AllowHost, ByteSize, config_hash};

use super::{BuildError, End, metadata, quantity};
use crate::tunnel_controller::validate::{ValidatedGateway, ValidatedTunnel};

/// Key of the ConfigMap, and name of the mounted file.
pub(super) const FILE: &str = "config.yaml";
/// Carriers that an exit has room for besides those of its own entries: reconnects overlap.
const SPARE_CARRIERS: u64 = 1;

/// The configuration of the gateways of one end, checked as a gateway checks it.
pub(super) fn config(
    tunnel: &ValidatedTunnel,
    end: End,
    gateway: &ValidatedGateway,
) -> Result<Config, BuildError> {
    let memory = memory(tunnel, end, gateway);
    let config = Config {
        role: match end {
            End::Entry => Role::Entry,
            End::Exit => Role::Exit,
        },
        protocol: protocol(tunnel.protocol),
        security: Security {
            mode: SecurityMode::None,
        },
        congestion_control: congestion_control(tunnel.congestion_control),
        connect: (end == End::Entry).then(|| tunnel.connect.clone()),
        listen: (end == End::Exit).then(|| format!("0.0.0.0:{CARRIER_PORT}")),
        admin: Some(format!("0.0.0.0:{ADMIN_PORT}")),
        forwards: if end == End::Entry {
            forwards(tunnel)
        } else {
            Vec::new()
        },
        allow: if end == End::Exit {
            allow(tunnel)
        } else {
            Vec::new()
        },
        workers: None,
        timeouts: tunnel.timeouts,
        limits: limits(tunnel.protocol, &memory),
        memory,
        drain: Drain::default(),
    };
    config.check().map_err(|source| BuildError::Config {
        component: end.component(),
        source,
    })?;
    Ok(config)
}

fn protocol(protocol: crds::Protocol) -> Protocol {
    match protocol {
        crds::Protocol::Jmux => Protocol::Jmux,
        crds::Protocol::Native => Protocol::Native,
    }
}

fn congestion_control(asked: crds::CongestionControl) -> CongestionControl {
    match asked {
        crds::CongestionControl::Auto => CongestionControl::Auto,
        crds::CongestionControl::Cubic => CongestionControl::Cubic,
        crds::CongestionControl::Bbr => CongestionControl::Bbr,
    }
}

fn forwards(tunnel: &ValidatedTunnel) -> Vec<Forward> {
    tunnel
        .forwards
        .iter()
        .map(|forward| Forward {
            name: forward.name.clone(),
            listen: format!("0.0.0.0:{}", forward.listen_port),
            target: Target {
                host: forward.host.clone(),
                port: forward.port,
            },
            limits: forward.limits,
        })
        .collect()
}

/// The declared targets and nothing else, each once.
fn allow(tunnel: &ValidatedTunnel) -> Vec<Allow> {
    let mut allow: Vec<Allow> = Vec::new();
    for forward in &tunnel.forwards {
        let host = match forward.host.parse::<std::net::IpAddr>() {
            Ok(address) => AllowHost::Network(address, if address.is_ipv4() { 32 } else { 128 }),
            Err(_) => AllowHost::Name(forward.host.clone()),
        };
        let entry = Allow {
            host,
            port: Some(forward.port),
        };
        if !allow.contains(&entry) {
            allow.push(entry);
        }
    }
    allow
}

/// Half of the container's memory limit, shared by its sessions; without a limit the default.
fn memory(tunnel: &ValidatedTunnel, end: End, gateway: &ValidatedGateway) -> Memory {
    let limit = gateway
        .template
        .resources
        .as_ref()
        .and_then(|resources| resources.limits.get("memory"))
        .and_then(quantity::bytes);
    let Some(limit) = limit else {
        return Memory::default();
    };
    let sessions = match (end, &tunnel.entry) {
        (End::Entry, _) | (End::Exit, None) => 1,
        (End::Exit, Some(entry)) => u64::try_from(entry.replicas).unwrap_or(1) + SPARE_CARRIERS,
    };
    let share = limit / 2 / sessions;
    Memory {
        receive: ByteSize(share.clamp(RECEIVE_MIN.0, RECEIVE_DEFAULT.0)),
    }
}

/// As many streams as there are by default; with JMUX, as the memory has room for.
fn limits(protocol: crds::Protocol, memory: &Memory) -> Limits {
    let limits = Limits::default();
    if protocol == crds::Protocol::Native {
        return limits;
    }
    let room = u32::try_from(memory.receive.0 / STREAM_RECEIVE_MIN.0).unwrap_or(u32::MAX);
    Limits {
        streams: limits.streams.min(room),
        ..limits
    }
}

/// The hash of what a running gateway cannot take over.
pub(super) fn static_hash(config: &Config, end: End) -> Result<String, BuildError> {
    Ok(config_hash(&text(&config.static_part(), end)?))
}

fn text(config: &Config, end: End) -> Result<String, BuildError> {
    config.to_yaml().map_err(|source| BuildError::Config {
        component: end.component(),
        source,
    })
}

pub(super) fn build(
    tunnel: &ValidatedTunnel,
    end: End,
    config: &Config,
) -> Result<ConfigMap, BuildError> {
    Ok(ConfigMap {
        metadata: metadata(tunnel, end),
        data: Some([(FILE.to_owned(), text(config, end)?)].into()),
        ..ConfigMap::default()
    })
}

/// What gateways report as `configHash` once they run the configuration in `config_map`.
#[must_use]
pub fn expected_hash(config_map: &ConfigMap) -> Option<String> {
    let text = config_map.data.as_ref()?.get(FILE)?;
    Some(config_hash(text))
}
