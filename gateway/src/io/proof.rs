//! What a peer has proved: its identity and, with SSH, the permissions of its login.

mod grant;

use std::net::IpAddr;
use std::sync::Arc;

use muxtunnel_gateway_config::GatewayKey;
use russh::keys::ssh_key::{Certificate, PublicKey};
use rustls::pki_types::CertificateDer;

pub(in crate::io) use grant::{Grant, Pattern};

/// The peer's proof of identity. The bound on the bytes of a handshake bounds its size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Proof {
    /// The name of a listed peer, or what an unnamed peer proved: its public key, or a name in its
    /// certificate. With SSH, fingerprints identify keys.
    pub(crate) identity: String,
    /// The peer's certificate and the intermediate certificates, or the peer's raw public key, which
    /// the gateway verifies again later. Empty with SSH, and if the peer proved only the dialled name.
    pub(crate) chain: Vec<CertificateDer<'static>>,
    /// The last second at which the certificate or the key is valid, in seconds since 1970; `None`:
    /// the proof does not expire.
    pub(crate) not_after: Option<u64>,
    /// The public key that this side presented, if this side has accepted the connection in security
    /// mode PublicKeys.
    pub(crate) presented: Option<GatewayKey>,
    /// For SSH: everything that the peer presented, so that it can be verified again.
    pub(crate) shown: Option<Arc<Shown>>,
}

impl Proof {
    /// Creates a proof that has only an identity, and does not expire.
    pub(crate) const fn of(identity: String) -> Self {
        Self {
            identity,
            chain: Vec::new(),
            not_after: None,
            presented: None,
            shown: None,
        }
    }

    /// Whether the certificate or the key has expired at `now`, in seconds since 1970.
    pub(crate) fn has_expired(&self, now: u64) -> bool {
        self.not_after.is_some_and(|not_after| not_after < now)
    }
}

/// The keys that a peer of SSH has presented. The gateway verifies these keys again when the files
/// have changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Shown {
    Key {
        key: PublicKey,
        source: Option<IpAddr>,
        grant: Grant,
    },
    Certificate {
        certificate: Box<Certificate>,
        user: String,
        source: Option<IpAddr>,
        grant: Grant,
    },
    Host {
        name: String,
        key: PublicKey,
        certificate: Option<Box<Certificate>>,
    },
}

/// Whether this side would still accept a proof that it accepted before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Standing {
    Good,
    /// The certificate or the key has expired. The gateway verifies only the name of an expired TLS
    /// proof, and nothing of an expired SSH proof.
    Expired,
    /// The authorities in force do not accept the certificate, for the contained reason. The peer
    /// may have another certificate that is valid.
    Unverified(String),
    /// The peer is no longer permitted to connect, for the contained reason.
    Revoked(String),
}
