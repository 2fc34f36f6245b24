//! The configuration of a gateway, and the ConfigMap that brings it to the pods.

use k8s_openapi::api::core::v1::ConfigMap;
use muxtunnel_crds as crds;
use muxtunnel_gateway_config::{
    ADMIN_PORT, Allow, AllowHost, CARRIER_PORT, Config, CongestionControl, Drain, Forward,
    Priority, Protocol, Role, Security, SecurityMode, Target, config_hash,
};

use super::sizing::sizing;
use super::{BuildError, End, metadata};
use crate::tunnel_controller::validate::{ValidatedGateway, ValidatedTunnel};

/// Key of the ConfigMap, and name of the mounted file.
pub(super) const FILE: &str = "config.yaml";

/// The configuration of the gateways of one end, checked as a gateway checks it.
pub(super) fn config(
    tunnel: &ValidatedTunnel,
    end: End,
    gateway: &ValidatedGateway,
) -> Result<Config, BuildError> {
    let sizing = sizing(tunnel, end, gateway);
    let config = Config {
        packet_bytes: None,
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
        workers: sizing.workers,
        pool: (end == End::Entry && tunnel.protocol == crds::Protocol::Native)
            .then_some(tunnel.pool),
        resume: tunnel.resume,
        timeouts: tunnel.timeouts,
        limits: sizing.limits,
        memory: sizing.memory,
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

fn priority(asked: crds::Priority) -> Priority {
    match asked {
        crds::Priority::Auto => Priority::Auto,
        crds::Priority::Interactive => Priority::Interactive,
        crds::Priority::Bulk => Priority::Bulk,
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
            priority: priority(forward.priority),
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
