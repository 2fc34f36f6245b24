//! The configuration of a gateway.

use std::net::Ipv6Addr;
use std::path::PathBuf;

use muxtunnel_contract::secrets;
use muxtunnel_crds::{Ssh, SshLogin};
use muxtunnel_gateway_config::{
    ADMIN_PORT, CARRIER_PORT, Certificates, Config, ConfigError, Connect, Drain, GatewayLimits,
    ListenRule, Memory, Peer, Policy, Ports, PublicKeys, Rule, Security, SshListener,
};

use super::{End, network, sizing};
use crate::tunnel_controller::object::Kind;
use crate::tunnel_controller::validate::{
    JudgedPeer, Streams, ValidatedGateway, ValidatedObject, ValidatedSecurity, all_addresses,
};

/// Mount point of certificates and keys.
pub(super) const KEYS_FOLDER: &str = "/etc/muxgate-keys";
/// In [`KEYS_FOLDER`]: the private key of an end whose other end belongs to the same object.
pub(super) const PRIVATE_KEY_FILE: &str = "key";
/// In [`KEYS_FOLDER`]: the public key of the other end that belongs to the same object.
pub(super) const PEERS_FILE: &str = "peers";
/// Mount point of the files for ssh.
pub(super) const SSH_FOLDER: &str = "/etc/muxgate-ssh";

/// The configuration of an end's gateways, checked by the gateway's own rules.
pub(super) fn config(
    object: &ValidatedObject,
    end: End,
    gateway: &ValidatedGateway,
) -> Result<Config, ConfigError> {
    let (carrier, connection) = (&object.carrier, &object.carrier.connection);
    let port = gateway.carrier_port.as_ref();
    let policy = policy(object, end);
    let is_entry = end == End::Entry;
    let streams = match is_entry {
        true => object.streams.clone(),
        false => Streams::default(),
    };
    let config = Config {
        role: end,
        protocol: connection.protocol(),
        packet_bytes: None,
        transport: connection.transport(),
        security: security(object, end, &gateway.security),
        web_socket: connection.web_socket.clone(),
        congestion_control: connection.congestion_control.unwrap_or_default(),
        liveness_seconds: connection.liveness_seconds(),
        connect: match is_entry {
            true => connect(object, &gateway.security),
            false => Vec::new(),
        },
        proxy: None,
        listen: port.map(|_| all_addresses(CARRIER_PORT)),
        trusted_proxies: port.map_or(Vec::new(), |port| port.trusted_proxies.clone()),
        rendezvous: match end {
            End::Exit => object.meetings.clone(),
            End::Entry | End::Rendezvous => Vec::new(),
        },
        members: object.members.clone(),
        ssh: gateway.ssh.as_ref().map(ssh),
        network: (object.network.as_ref()).map(|asked| network::config(asked, end)),
        admin: Some(all_addresses(ADMIN_PORT)),
        admin_hosts: Vec::new(),
        forwards: streams.forwards,
        reverse_forwards: streams.reverse_forwards,
        proxies: streams.proxies,
        allow: policy.allow,
        deny: policy.deny,
        protected_cidrs: policy.protected,
        nat64_prefixes: policy.nat64_prefixes,
        allow_listen: match end {
            End::Exit => allow_listen(object, &gateway.security),
            End::Entry | End::Rendezvous => Vec::new(),
        },
        workers: sizing::workers(object, end, gateway),
        pool: (is_entry && connection.protocol().can().several_carriers).then(|| carrier.pool()),
        resume: carrier.resume(),
        splice: true,
        timeouts: object.streams.timeouts,
        limits: GatewayLimits {
            carriers: gateway.carriers.unwrap_or_else(|| sizing::carriers(object)),
            ..GatewayLimits::default()
        },
        memory: Memory {
            sessions: sizing::sessions(object, end, gateway),
            ..Memory::default()
        },
        drain: Drain {
            deadline_seconds: gateway.drain_seconds,
            ..Drain::default()
        },
    };
    config.check()?;
    Ok(config)
}

fn file(key: &str) -> PathBuf {
    PathBuf::from(KEYS_FOLDER).join(key)
}

fn security(object: &ValidatedObject, end: End, security: &ValidatedSecurity) -> Security {
    let served = object.peers.iter().filter_map(JudgedPeer::served);
    let peers: Vec<_> = served.filter(|_| end == End::Exit).cloned().collect();
    match security {
        ValidatedSecurity::None => Security::None {},
        ValidatedSecurity::Certificates { names, .. } => Security::Certificates(Certificates {
            certificate: file(secrets::CERTIFICATE),
            key: file(secrets::KEY),
            ca: file(secrets::AUTHORITIES),
            peers: match (object.kind(), end) {
                (Kind::Tunnel, End::Exit) => vec![Peer {
                    name: Some(secrets::ENTRY_NAME.to_owned()),
                    certificate_names: names.clone(),
                    ..Peer::default()
                }],
                _ => peers,
            },
        }),
        ValidatedSecurity::Pair { .. } => Security::PublicKeys(PublicKeys {
            private_key_files: vec![file(PRIVATE_KEY_FILE)],
            peers: Vec::new(),
            peers_file: Some(file(PEERS_FILE)),
            places: Vec::new(),
        }),
        ValidatedSecurity::PublicKeys { secrets } => Security::PublicKeys(PublicKeys {
            private_key_files: secrets.iter().map(|secret| file(secret)).collect(),
            peers,
            peers_file: None,
            places: Vec::new(),
        }),
    }
}

/// The exits of an entry. An exit of the same object has the names of its certificate.
fn connect(object: &ValidatedObject, security: &ValidatedSecurity) -> Vec<Connect> {
    let mut exits = object.connect.clone();
    match security {
        ValidatedSecurity::Certificates { names, .. } if !names.is_empty() => {
            for exit in &mut exits {
                exit.certificate_names.clone_from(names);
            }
        }
        _ => {}
    }
    exits
}

fn ssh(asked: &Ssh) -> SshListener {
    let file = |key: &str| PathBuf::from(SSH_FOLDER).join(key);
    SshListener {
        listen: all_addresses(asked.port()),
        host_keys: asked.host_keys().map(file).collect(),
        authorized_keys: asked.login(SshLogin::AuthorizedKeys).map(file),
        trusted_user_ca_keys: asked.login(SshLogin::TrustedUserCaKeys).map(file),
        algorithms: asked.algorithms.unwrap_or_default(),
    }
}

/// The ports that entries may request the exit to listen on. Users of ssh may not use them. Each port
/// of a MuxExit belongs to at most one MuxPeer. The rules of a MuxTunnel's own exit name its entry. In
/// mode None, the rules name no peer, and the first peer that requests a port gets it.
fn allow_listen(object: &ValidatedObject, security: &ValidatedSecurity) -> Vec<ListenRule> {
    let rule = |port: u16, peer: Option<&str>| ListenRule {
        address: Ipv6Addr::UNSPECIFIED.into(),
        ports: Ports::single(port),
        peer: peer.map(str::to_owned),
    };
    let ports = || object.listen_ports(End::Exit);
    let named = match (security, object.kind()) {
        (ValidatedSecurity::None, _) => None,
        (_, Kind::Tunnel) => Some(secrets::ENTRY_NAME),
        (_, Kind::Exit | Kind::Rendezvous) => {
            let rules = object.peers.iter().flat_map(|peer| {
                let name = peer.served().and_then(|own| own.name.as_deref());
                let asked = &peer.reverse_ports;
                let asked = ports().filter(|port| name.is_some() && asked.contains(&port.name));
                let rules = asked.map(|port| rule(port.port, name));
                rules.collect::<Vec<_>>()
            });
            return rules.collect();
        }
    };
    ports().map(|port| rule(port.port, named)).collect()
}

/// The rules of an end that dials or receives packets: an exit, or an entry with reverse forwards or
/// a network.
fn policy(object: &ValidatedObject, end: End) -> Policy {
    let own = &object.streams.rules;
    let denied = |reverse: bool| {
        let denied = object.findings.denied.iter();
        let denied = denied.filter(move |target| target.reverse == reverse);
        denied.map(|target| target.rule.clone())
    };
    let is_entry_dialling = !object.streams.reverse_forwards.is_empty()
        || denied(true).next().is_some()
        || object.network.is_some();
    match end {
        End::Exit => {
            let mut policy = own.clone();
            let proxies = object.streams.proxies.iter();
            let fallbacks = proxies.flat_map(|proxy| &proxy.fallback_targets);
            let forwards = object.streams.forwards.iter();
            let targets = forwards.flat_map(|forward| &forward.targets);
            for target in targets.chain(fallbacks) {
                let rule = Rule::of_target(target);
                if !policy.allow.contains(&rule) {
                    policy.allow.push(rule);
                }
            }
            policy.deny.extend(denied(false));
            policy
        }
        End::Entry if is_entry_dialling => Policy {
            protected: own.protected.clone(),
            deny: denied(true).collect(),
            nat64_prefixes: own.nat64_prefixes.clone(),
            ..Policy::default()
        },
        End::Entry | End::Rendezvous => Policy::default(),
    }
}
