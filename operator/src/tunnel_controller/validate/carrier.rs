//! Settings of carriers: the dialled address, the transport and the security. Pure.

use std::collections::BTreeSet;

use muxtunnel_crds::{
    Carrier, Meeting, MuxTunnelSpec, Protocol, Security, SecurityMode, Side, Transport, WebSocket,
};
use muxtunnel_gateway_config as config;
use muxtunnel_gateway_config::{CARRIER_PORT, Cidr, CidrError, GatewayKey, KeyRole, Peer, Pool};

use super::certificates::ValidatedCertificates;
use super::peers::JudgedPeer;
use crate::protocol::configured;
use crate::tunnel_controller::dereference::{Credentials, mode};
use crate::tunnel_controller::end::End;
use crate::tunnel_controller::issuer::ISSUED_SUFFIX;

/// The identity of an entry or an exit at a rendezvous.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValidatedLeaf {
    /// The name that entry and exit share.
    pub name: String,
    /// The Secret with the name's secret.
    pub secret: String,
}

impl ValidatedLeaf {
    pub(super) fn of(asked: &Meeting) -> Self {
        Self {
            name: asked.name.clone(),
            secret: asked.secret_name.clone(),
        }
    }
}

/// The security of carriers of one end.
#[derive(Debug, Clone, PartialEq)]
pub enum ValidatedSecurity {
    /// Carriers are not secured.
    None,
    /// Carriers use TLS with public keys of both sides. Both ends belong to the object.
    Pair {
        /// The Secret with the keys of both ends.
        secret: String,
    },
    /// Carriers use TLS with public keys of both sides. The other end belongs to another object.
    PublicKeys {
        /// The Secrets with the private keys, in ascending order of their generations, 1 or 2.
        secrets: Vec<String>,
        /// The accepted peers.
        peers: Vec<Peer>,
        /// For an exit: the names of the forwards whose ports a peer may serve, by peer, oldest
        /// first.
        reverse_ports: Vec<(String, BTreeSet<String>)>,
    },
    /// Carriers use TLS with certificates on both sides.
    MutualTls {
        /// The Secret with certificate, key and authority.
        secret: String,
        /// The peer's certificate must contain one of these names.
        peers: Vec<String>,
    },
}

impl ValidatedSecurity {
    /// The Secrets that the end's gateways mount.
    #[must_use]
    pub fn secrets(&self) -> Vec<&str> {
        match self {
            Self::None => Vec::new(),
            Self::Pair { secret } | Self::MutualTls { secret, .. } => vec![secret],
            Self::PublicKeys { secrets, .. } => secrets.iter().map(String::as_str).collect(),
        }
    }
}

/// The carrier settings of `spec`. A rendezvous opens no carriers, so it ignores these settings.
pub(super) fn of(spec: &MuxTunnelSpec) -> Carrier {
    spec.carrier.clone().unwrap_or_else(|| Carrier {
        protocol: Protocol::default(),
        transport: None,
        address: None,
        rendezvous: None,
        web_socket: None,
        congestion_control: None,
        liveness_seconds: None,
        pool: None,
        resume: None,
        public_keys: Vec::new(),
        security: None,
    })
}

/// The `host:port` to dial, and the fallback if no address of that host answers.
pub(super) fn connect(
    name: &str,
    namespace: &str,
    side: Side,
    carrier: &Carrier,
) -> (String, Option<String>) {
    if let Some(rendezvous) = &carrier.rendezvous {
        return (rendezvous.address.clone(), None);
    }
    let service = format!("{name}-exit.{namespace}.svc:{CARRIER_PORT}");
    match (carrier.address.as_ref(), side) {
        (Some(address), Side::Entry) => (address.clone(), None),
        (_, Side::Both) if configured(carrier.protocol).can().several_exits => {
            let pods = format!("{name}-exit-headless.{namespace}.svc:{CARRIER_PORT}");
            (pods, Some(service))
        }
        _ => (service, None),
    }
}

/// Whether `text` is `host:port`, as the schema defines it.
#[must_use]
pub(in crate::tunnel_controller) fn is_address(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else {
        return false;
    };
    let inner = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let is_host = match inner {
        Some(inner) => inner.parse::<std::net::Ipv6Addr>().is_ok(),
        None => {
            let is_fine = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            !host.is_empty() && host.chars().all(is_fine)
        }
    };
    is_host && text.len() <= 260 && port.parse::<u16>().is_ok_and(|port| port > 0)
}

/// The networks of load balancers in front of `end` (its name in the spec).
pub(super) fn trusted_proxies(asked: &[String], end: &str) -> Result<Vec<Cidr>, String> {
    let field = format!("{end}.trustedProxies");
    let network = |(index, text): (usize, &String)| {
        text.parse()
            .map_err(|error: CidrError| format!("{field}[{index}]: {error}"))
    };
    let networks: Vec<Cidr> = asked
        .iter()
        .enumerate()
        .map(network)
        .collect::<Result<_, _>>()?;
    config::check_trusted_proxies(&field, &networks).map_err(|error| error.to_string())?;
    Ok(networks)
}

pub(super) fn web_socket(asked: &WebSocket) -> config::WebSocket {
    config::WebSocket {
        path: asked.path.clone(),
        host: asked.host.clone(),
        origins: Vec::new(),
    }
}

/// The pool of the spec. The default is a growing pool under three conditions: the transport is
/// TCP, the protocol supports several carriers, and `resume` is true or the protocol does not
/// support `resume`. Otherwise the default is one carrier.
pub(super) fn pool(carrier: &Carrier) -> Pool {
    let can = configured(carrier.protocol).can();
    let is_tcp = carrier.transport.unwrap_or_default() == Transport::Tcp;
    let grows = is_tcp && can.several_carriers && (!can.resume || carrier.resume.unwrap_or(true));
    match carrier.pool {
        Some(asked) => Pool {
            min: asked.min,
            max: asked.max.unwrap_or(asked.min),
        },
        None if grows => Pool::GROWING,
        None => Pool::ONE,
    }
}

/// The security of an end's carriers. `certificates` is the source of the end's certificates.
pub(super) fn security(
    spec: &MuxTunnelSpec,
    certificates: &ValidatedCertificates,
    (name, end): (&str, End),
    (credentials, peers): (&Credentials, &[JudgedPeer]),
) -> Result<ValidatedSecurity, String> {
    let carrier = spec.carrier.as_ref();
    match mode(spec) {
        None | Some(SecurityMode::None) => Ok(ValidatedSecurity::None),
        Some(SecurityMode::PublicKeys) => public_keys(spec, credentials, peers),
        Some(SecurityMode::MutualTls) => {
            let asked = carrier.and_then(|carrier| carrier.security.as_ref());
            mutual_tls(asked, certificates, name, end)
        }
    }
}

fn public_keys(
    spec: &MuxTunnelSpec,
    credentials: &Credentials,
    peers: &[JudgedPeer],
) -> Result<ValidatedSecurity, String> {
    if spec.side == Side::Both {
        let secret = credentials.pair.clone();
        let secret = secret.ok_or("the keys of both ends are not known")?;
        return Ok(ValidatedSecurity::Pair { secret });
    }
    let own = credentials.own.iter();
    let secrets = own.map(|own| own.status.secret_name.clone()).collect();
    if spec.side == Side::Exit {
        let reverse_ports = peers.iter().filter_map(|peer| {
            let ports = peer.object.spec.reverse_ports.iter().cloned().collect();
            Some((peer.accepted()?.name.clone()?, ports))
        });
        return Ok(ValidatedSecurity::PublicKeys {
            secrets,
            peers: peers
                .iter()
                .filter_map(JudgedPeer::accepted)
                .cloned()
                .collect(),
            reverse_ports: reverse_ports.collect(),
        });
    }
    let asked = spec.carrier.iter().flat_map(|carrier| &carrier.public_keys);
    let key = |(index, text): (usize, &String)| {
        let key = GatewayKey::of_role(text, KeyRole::Exit);
        let key = key.map_err(|error| format!("carrier.publicKeys[{index}]: {error}"))?;
        Ok::<_, String>(Peer::with_key(key))
    };
    let peers: Vec<_> = asked.enumerate().map(key).collect::<Result<_, _>>()?;
    config::check_peers(&peers, KeyRole::Exit, &[]).map_err(|found| {
        let index = found.index;
        format!("carrier.publicKeys[{index}] {}", found.problem)
    })?;
    if peers.is_empty() {
        let sentence = "side Entry needs carrier.publicKeys, the keys in the status of the exit";
        return Err(sentence.to_owned());
    }
    Ok(ValidatedSecurity::PublicKeys {
        secrets,
        peers,
        reverse_ports: Vec::new(),
    })
}

fn mutual_tls(
    asked: Option<&Security>,
    certificates: &ValidatedCertificates,
    tunnel: &str,
    end: End,
) -> Result<ValidatedSecurity, String> {
    let name = end.component();
    let own = asked.and_then(|asked| match end {
        End::Entry => asked.entry.as_ref(),
        End::Exit | End::Rendezvous => asked.exit.as_ref(),
    });
    let peers = own.map(|own| own.peers.clone());
    if let ValidatedCertificates::Issued(identities, _) = certificates {
        let other = match end {
            End::Entry => &identities.exit,
            End::Exit | End::Rendezvous => &identities.entry,
        };
        return Ok(ValidatedSecurity::MutualTls {
            secret: format!("{}{ISSUED_SUFFIX}", end.child_of(tunnel)),
            peers: peers.unwrap_or_else(|| vec![other.clone()]),
        });
    }
    let secret = own.and_then(|own| own.secret_name.clone());
    match (secret, peers) {
        (Some(secret), Some(peers)) => Ok(ValidatedSecurity::MutualTls { secret, peers }),
        _ => Err(format!(
            "carrier.security.{name} needs secretName, the Secret with the certificate of the {name} gateways"
        )),
    }
}
