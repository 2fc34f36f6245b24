//! The configuration of a gateway, and the ConfigMap with this configuration and with those of
//! earlier pods.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::path::PathBuf;

use k8s_openapi::api::core::v1::ConfigMap;
use muxtunnel_contract::secrets;
use muxtunnel_crds as crds;
use muxtunnel_gateway_config::{
    ADMIN_PORT, Auth, CARRIER_PORT, Config, ConfigError, CongestionControl, Direction, Drain,
    Forward, LISTEN_RULES_MAX, Leaf, ListenProtocol, ListenRule, MutualTls, PEER_BYTES_MAX, Policy,
    Ports, Priority, ProxyProtocol, PublicKeys, Role, Rule, Security, SshAlgorithms, SshListener,
    Target, Transport, WebSocket, config_hash,
};

use super::sizing::sizing;
use super::{BuildError, End, metadata, network, reduce};
use crate::protocol::configured;
use crate::settings::Settings;
use crate::tunnel_controller::config_file;
use crate::tunnel_controller::validate::{
    JudgedPeer, ListenPort, UsersFile, ValidatedForward, ValidatedGateway, ValidatedSecurity,
    ValidatedSsh, ValidatedTunnel,
};

/// Mount point of the files with users.
pub(super) const USERS_FOLDER: &str = "/etc/muxgate-users";
/// Mount point of the secrets for a rendezvous.
pub(super) const MEETING_FOLDER: &str = "/etc/muxgate-rendezvous";
/// Mount point of certificates and keys.
pub(super) const KEYS_FOLDER: &str = "/etc/muxgate-keys";
/// In [`KEYS_FOLDER`]: the private key of an end whose other end belongs to the same object.
pub(super) const PRIVATE_KEY_FILE: &str = "key";
/// In [`KEYS_FOLDER`]: the public key of the other end that belongs to the same object.
pub(super) const PEERS_FILE: &str = "peers";
/// Mount point of the files for ssh.
pub(super) const SSH_FOLDER: &str = "/etc/muxgate-ssh";

/// Maximum number of earlier configurations in a ConfigMap. Several roll-outs at the same time need
/// several configurations.
const KEPT_MAX: usize = 4;
/// Maximum size of all configurations in a ConfigMap, in bytes. The API server accepts 1 MiB for the
/// whole object.
pub(super) const BYTES_MAX: usize = 900 << 10;

/// The configuration of an end's gateways, checked by the gateway's own rules.
pub(super) fn config(
    tunnel: &ValidatedTunnel,
    end: End,
    gateway: &ValidatedGateway,
) -> Result<Config, BuildError> {
    let sizing = sizing(tunnel, end, gateway);
    let protocol = configured(tunnel.protocol);
    let can = protocol.can();
    let config = Config {
        transport: match (tunnel.protocol, tunnel.transport) {
            (crds::Protocol::Auto, _) => Transport::Auto,
            (_, crds::Transport::Tcp) => Transport::Tcp,
            (_, crds::Transport::Kcp) => Transport::Kcp,
        },
        packet_bytes: None,
        role: match end {
            End::Entry => Role::Entry,
            End::Exit => Role::Exit,
            End::Rendezvous => Role::Rendezvous,
        },
        protocol,
        security: security(gateway),
        web_socket: web_socket(tunnel, end),
        congestion_control: congestion_control(tunnel.congestion_control),
        liveness_seconds: tunnel.liveness_seconds,
        connect: (end == End::Entry || !end.is_dialled(tunnel)).then(|| tunnel.connect.clone()),
        connect_fallback: tunnel
            .connect_fallback
            .clone()
            .filter(|_| end == End::Entry),
        listen: end.is_dialled(tunnel).then(|| all_addresses(CARRIER_PORT)),
        trusted_proxies: gateway.trusted_proxies.clone(),
        network: (tunnel.network.as_ref()).map(|asked| network::config(asked, end)),
        admin: Some(all_addresses(ADMIN_PORT)),
        forwards: match end {
            End::Entry => forwards(tunnel),
            End::Exit | End::Rendezvous => Vec::new(),
        },
        allow: Vec::new(),
        policy: policy_of(tunnel, end),
        allow_listen: if end == End::Exit {
            allow_listen(tunnel, gateway)
        } else {
            Vec::new()
        },
        admin_hosts: Vec::new(),
        connect_command: Vec::new(),
        proxy: None,
        rendezvous: tunnel.leaf.as_ref().map(|leaf| Leaf {
            name: leaf.name.clone(),
            secret_file: format!("{MEETING_FOLDER}/secret"),
        }),
        secrets_file: (end == End::Rendezvous).then(|| format!("{MEETING_FOLDER}/names")),
        ssh: end.ssh(tunnel).map(ssh),
        workers: sizing.workers,
        pool: (end == End::Entry && can.several_carriers).then_some(tunnel.pool),
        resume: tunnel.resume,
        splice: true,
        timeouts: tunnel.timeouts,
        limits: sizing.limits,
        memory: sizing.memory,
        drain: Drain {
            deadline_seconds: gateway.drain_seconds,
            ..Drain::default()
        },
    };
    config.check().map_err(|source| BuildError::Config {
        component: end.component(),
        source,
    })?;
    Ok(config)
}

/// The policy of an end that dials or receives packets: an exit, or an entry with reverse forwards or
/// a network.
fn policy_of(tunnel: &ValidatedTunnel, end: End) -> Policy {
    match end {
        End::Exit => policy(tunnel),
        End::Entry if dials(tunnel) || tunnel.network.is_some() => Policy {
            protected: tunnel.policy.protected.clone(),
            deny: denied(tunnel, true).collect(),
            nat64_prefixes: tunnel.policy.nat64_prefixes.clone(),
            ..Policy::default()
        },
        End::Entry | End::Rendezvous => Policy::default(),
    }
}

/// All addresses of the pod in both families. If the kernel has no IPv6, the gateway listens on the
/// IPv4 addresses.
fn all_addresses(port: u16) -> String {
    format!("[::]:{port}")
}

/// The WebSocket settings of an end. Only the entry sends a host name.
fn web_socket(tunnel: &ValidatedTunnel, end: End) -> Option<WebSocket> {
    let web_socket = tunnel.web_socket.clone()?;
    let host = web_socket.host.filter(|_| end == End::Entry);
    Some(WebSocket { host, ..web_socket })
}

fn security(gateway: &ValidatedGateway) -> Security {
    let file = |key: &str| PathBuf::from(KEYS_FOLDER).join(key);
    match &gateway.security {
        ValidatedSecurity::None => Security::None {},
        ValidatedSecurity::MutualTls { peers, .. } => Security::MutualTls(MutualTls {
            certificate: file(secrets::CERTIFICATE),
            key: file(secrets::KEY),
            ca: file(secrets::AUTHORITIES),
            peers: peers.clone(),
        }),
        ValidatedSecurity::Pair { .. } => Security::PublicKeys(PublicKeys {
            private_key_files: vec![file(PRIVATE_KEY_FILE)],
            peers: Vec::new(),
            peers_file: Some(file(PEERS_FILE)),
        }),
        ValidatedSecurity::PublicKeys { secrets, peers, .. } => Security::PublicKeys(PublicKeys {
            private_key_files: secrets.iter().map(|secret| file(secret)).collect(),
            peers: peers.clone(),
            peers_file: None,
        }),
    }
}

fn ssh(asked: &ValidatedSsh) -> SshListener {
    let file = |key: &&str| PathBuf::from(SSH_FOLDER).join(key);
    SshListener {
        listen: all_addresses(asked.port),
        host_keys: asked.host_keys.iter().map(file).collect(),
        authorized_keys: asked.authorized_keys.as_ref().map(file),
        trusted_user_ca_keys: asked.trusted_user_ca_keys.as_ref().map(file),
        algorithms: match asked.algorithms {
            crds::SshAlgorithms::Default => SshAlgorithms::Default,
            crds::SshAlgorithms::Compatible => SshAlgorithms::Compatible,
        },
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
            listen: all_addresses(forward.listen_port),
            protocol: listen_protocol(forward.protocol),
            target: target(forward),
            auth: forward.users.as_ref().map(auth),
            proxy_protocol: ProxyProtocol {
                accept: forward.proxy_protocol.accept,
                send: forward.proxy_protocol.send,
            },
            direction: if forward.reverse {
                Direction::ExitToEntry
            } else {
                Direction::EntryToExit
            },
            priority: priority(forward.priority),
            limits: forward.limits,
        })
        .collect()
}

fn listen_protocol(asked: crds::ListenProtocol) -> ListenProtocol {
    match asked {
        crds::ListenProtocol::Tcp => ListenProtocol::Tcp,
        crds::ListenProtocol::Socks5 => ListenProtocol::Socks5,
        crds::ListenProtocol::HttpConnect => ListenProtocol::HttpConnect,
        crds::ListenProtocol::Auto => ListenProtocol::Auto,
    }
}

fn auth(users: &UsersFile) -> Auth {
    Auth::UsersFile(format!("{USERS_FOLDER}/{}", users_path(users)))
}

/// The path of a file with users in [`USERS_FOLDER`].
pub(super) fn users_path(users: &UsersFile) -> String {
    format!("{}/{}", users.secret, users.key)
}

fn target(forward: &ValidatedForward) -> Option<Target> {
    let (host, port) = forward.target.clone()?;
    Some(Target::Tcp { host, port })
}

/// The ports that entries may request the exit to listen on: the ports of the declared reverse
/// forwards. Users of ssh may not use them. The first peer that requests a port gets it. A MuxPeer
/// may use the ports that it names, and the peers of certificates may use all ports. The rules name
/// no peer in two cases: the exit accepts any peer, or a gateway's configuration has no room for a
/// rule per name and port.
fn allow_listen(tunnel: &ValidatedTunnel, exit: &ValidatedGateway) -> Vec<ListenRule> {
    let ports = || tunnel.listen_ports.iter().filter(|port| port.reverse);
    let rule = |port: &ListenPort, peer: Option<&String>| ListenRule {
        address: Ipv6Addr::UNSPECIFIED.into(),
        ports: Ports::single(port.port),
        peer: peer.cloned(),
    };
    let named = match &exit.security {
        ValidatedSecurity::PublicKeys { reverse_ports, .. } => {
            // A younger peer takes no place of an older one.
            let rules = reverse_ports.iter().flat_map(|(peer, names)| {
                let named = ports().filter(|port| names.contains(&port.name));
                named.map(|port| rule(port, Some(peer)))
            });
            return rules.take(LISTEN_RULES_MAX).collect();
        }
        ValidatedSecurity::None => Vec::new(),
        ValidatedSecurity::Pair { .. } => vec![secrets::ENTRY_NAME.to_owned()],
        ValidatedSecurity::MutualTls { peers, .. } => peers.clone(),
    };
    let has_room = named.len() * ports().count() <= LISTEN_RULES_MAX;
    let are_named = has_room && named.iter().all(|peer| peer.len() <= PEER_BYTES_MAX);
    let peers: Vec<_> = match are_named && !named.is_empty() {
        true => named.iter().map(Some).collect(),
        false => vec![None],
    };
    let rules = |port| peers.iter().map(move |peer| rule(port, *peer));
    ports().flat_map(rules).collect()
}

/// Whether the entry dials targets, or dialled targets before a permission was revoked.
fn dials(tunnel: &ValidatedTunnel) -> bool {
    tunnel.forwards.iter().any(|forward| forward.reverse) || denied(tunnel, true).next().is_some()
}

/// The rules that deny unpermitted targets, for the side that would dial them.
fn denied(tunnel: &ValidatedTunnel, reverse: bool) -> impl Iterator<Item = Rule> {
    let denied = tunnel.denied.iter();
    let denied = denied.filter(move |target| target.reverse == reverse);
    denied.map(|target| target.rule.clone())
}

/// The policy of the exit: rules for the declared targets that the exit dials, each once, and the
/// rules of the spec's policy.
fn policy(tunnel: &ValidatedTunnel) -> Policy {
    let mut policy = tunnel.policy.clone();
    let dialled = tunnel.forwards.iter().filter(|forward| !forward.reverse);
    for target in dialled.filter_map(target) {
        let rule = Rule::of_target(&target);
        if !policy.allow.contains(&rule) {
            policy.allow.push(rule);
        }
    }
    policy.deny.extend(denied(tunnel, false));
    policy
}

fn rendered<T>(text: Result<T, ConfigError>, end: End) -> Result<T, BuildError> {
    text.map_err(|source| BuildError::Config {
        component: end.component(),
        source,
    })
}

/// The key of the document `config` of an end.
pub(super) fn key(config: &Config, end: End, settings: &Settings) -> Result<String, BuildError> {
    rendered(config_file::key(&settings.gateway_image, config), end)
}

/// Renders `config`, and the earlier configurations that pods mount, each without what `config` does
/// not permit. Also returns descriptions of the earlier configurations for which there is no room.
pub(super) fn build(
    tunnel: &ValidatedTunnel,
    end: End,
    config: &Config,
    settings: &Settings,
) -> Result<(ConfigMap, Vec<String>), BuildError> {
    let (own, text) = (
        key(config, end, settings)?,
        rendered(config.to_yaml(), end)?,
    );
    let mut bytes = text.len();
    let mut data = BTreeMap::from([(own.clone(), text)]);
    let accepted = tunnel.peers.iter().filter_map(JudgedPeer::accepted);
    let accepted: Vec<_> = accepted.collect();
    let (mut count, mut dropped) = (0, Vec::new());
    let kept = tunnel.rollout(end).into_iter();
    let kept = kept.flat_map(|rollout| &rollout.kept);
    for (key, text) in kept.filter(|(key, _)| *key != own) {
        let is_for_image = config_file::is_for_image(key, &settings.gateway_image);
        let earlier = earlier(text, config).filter(|_| is_for_image);
        // What returns to the spec returns to the pods, so the whole document stays.
        let whole = earlier.is_none().then_some(text);
        let text = earlier.unwrap_or_else(|| reduce::reduced(text, config));
        let text = match &config.security {
            Security::PublicKeys(_) => text,
            // The mode has changed, and the peers still count for pods of the former mode.
            _ => reduce::with_peers(&text, &accepted),
        };
        let whole = whole.filter(|whole| **whole != text);
        let needed = text.len() + whole.map_or(0, String::len);
        let has_room = |needed: usize| count < KEPT_MAX && bytes + needed <= BYTES_MAX;
        let least = reduce::with_peers(&text, &[]);
        if has_room(needed) {
            (count, bytes) = (count + 1, bytes + needed);
            data.extend(whole.map(|whole| (config_file::whole_key(key), whole.clone())));
            data.insert(key.clone(), text);
        } else if has_room(least.len()) {
            // Without room for the peers, no peer keeps access that was withdrawn.
            (count, bytes) = (count + 1, bytes + least.len());
            data.insert(key.clone(), least);
        } else {
            dropped.push(format!("{key} of ConfigMap {}", end.child_name(tunnel)));
        }
    }
    let config_map = ConfigMap {
        metadata: metadata(tunnel, end),
        data: Some(data),
        ..ConfigMap::default()
    };
    Ok((config_map, dropped))
}

/// The earlier configuration `text` with the fields of `config` that a running gateway reloads.
/// `None` if this version cannot read the earlier configuration, or if a gateway refuses the result.
fn earlier(text: &str, config: &Config) -> Option<String> {
    let earlier = Config::from_yaml(text).ok()?.reloaded(config);
    earlier.check().ok()?;
    earlier.to_yaml().ok()
}

/// The `configHash` that gateways report when they run the document `key` of `config_map`.
#[must_use]
pub fn expected_hash(config_map: &ConfigMap, key: &str) -> Option<String> {
    let text = config_map.data.as_ref()?.get(key)?;
    Some(config_hash(text))
}
