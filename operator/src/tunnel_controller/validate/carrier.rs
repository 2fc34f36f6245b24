//! Settings of carriers: the dialled address, the transport and the security. Pure.

use muxtunnel_crds::{
    Carrier, Meeting, MuxTunnelSpec, Protocol, Security, SecurityMode, Side, Transport, WebSocket,
};
use muxtunnel_gateway_config as config;
use muxtunnel_gateway_config::{CARRIER_PORT, Cidr, CidrError, Pool, PublicKey};

use super::certificates::ValidatedCertificates;
use crate::certificates::join::Bundle;
use crate::protocol::configured;

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
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValidatedSecurity {
    /// Carriers are not secured.
    None,
    /// Carriers use TLS with certificates on both sides.
    MutualTls {
        /// The Secret with certificate, key and authority.
        secret: String,
        /// The peer's certificate must contain one of these names.
        peers: Vec<String>,
    },
    /// Carriers use Noise.
    Noise {
        /// The Secret with the private key.
        secret: String,
        /// Permitted public keys of the peer.
        peers: Vec<PublicKey>,
        /// Whether the Secret also has a pre-shared key.
        psk: bool,
    },
}

impl ValidatedSecurity {
    /// The Secret that the end's gateways mount.
    #[must_use]
    pub fn secret(&self) -> Option<&str> {
        match self {
            Self::None => None,
            Self::MutualTls { secret, .. } | Self::Noise { secret, .. } => Some(secret),
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
        join_from: None,
        security: None,
    })
}

/// The security of carriers in the spec, or its default.
pub(super) fn asked_security(carrier: &Carrier) -> Security {
    carrier.security.clone().unwrap_or_else(|| Security {
        mode: SecurityMode::default(),
        issuer_ref: None,
        entry: None,
        exit: None,
        pre_shared_key: false,
    })
}

/// The `host:port` to dial, and the fallback if no address of that host answers.
pub(super) fn connect(
    name: &str,
    namespace: &str,
    side: Side,
    carrier: &Carrier,
    joined: Option<&Bundle>,
) -> (String, Option<String>) {
    if let Some(rendezvous) = &carrier.rendezvous {
        return (rendezvous.address.clone(), None);
    }
    let service = format!("{name}-exit.{namespace}.svc:{CARRIER_PORT}");
    let told = joined.and_then(|bundle| bundle.address.as_ref());
    match (carrier.address.as_ref().or(told), side) {
        (Some(address), Side::Entry) => (address.clone(), None),
        (_, Side::Both) if configured(carrier.protocol).can().several_exits => {
            let pods = format!("{name}-exit-headless.{namespace}.svc:{CARRIER_PORT}");
            (pods, Some(service))
        }
        _ => (service, None),
    }
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
/// `name` is the end's name in the spec and in the names of Secrets.
pub(super) fn security(
    asked: &Security,
    certificates: &ValidatedCertificates,
    tunnel: &str,
    name: &str,
) -> Result<ValidatedSecurity, String> {
    let keys = match name {
        "entry" => asked.entry.as_ref(),
        _ => asked.exit.as_ref(),
    };
    if let Some(identities) = certificates.identities() {
        let (other, secret) = match name {
            "entry" => (&identities.exit, certificates.secret(tunnel, name)),
            _ => (&identities.entry, certificates.secret(tunnel, name)),
        };
        let named = keys.map(|keys| keys.peers.clone());
        return Ok(ValidatedSecurity::MutualTls {
            secret,
            peers: named.unwrap_or_else(|| vec![other.clone()]),
        });
    }
    let keys = match (asked.mode, keys) {
        (SecurityMode::None, _) => return Ok(ValidatedSecurity::None),
        (_, None) => {
            return Err(format!(
                "carrier.security needs {name}, the keys of the {name} gateways"
            ));
        }
        (_, Some(keys)) => keys,
    };
    let secret = keys.secret_name.clone();
    let secret = secret.ok_or_else(|| {
        format!("carrier.security.{name} needs secretName, the Secret with the keys of the {name} gateways")
    })?;
    if asked.mode == SecurityMode::MutualTls {
        let peers = keys.peers.clone();
        return Ok(ValidatedSecurity::MutualTls { secret, peers });
    }
    let key = |text: &String| {
        let key = text.parse::<PublicKey>();
        key.map_err(|error| format!("carrier.security.{name}.peers: {text:?} is {error}"))
    };
    Ok(ValidatedSecurity::Noise {
        secret,
        peers: keys.peers.iter().map(key).collect::<Result<_, _>>()?,
        psk: asked.pre_shared_key,
    })
}
