//! The source of the certificates of a tunnel's gateways. Pure.

use kube::ResourceExt;
use muxtunnel_crds::{IssuerRef, MuxTunnel};

use crate::certificates::identity::identity;
use crate::settings::Settings;
use crate::tunnel_controller::issuer::Issuer;

/// The SPIFFE IDs of both sides of a tunnel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identities {
    /// The SPIFFE ID of the entry.
    pub entry: String,
    /// The SPIFFE ID of the exit.
    pub exit: String,
}

/// The source of the certificates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValidatedCertificates {
    /// No certificates: carriers are not secured, or use public keys, or the tunnel is a rendezvous.
    None,
    /// The user provides the certificates. Gateways mount the user's Secrets.
    Provided,
    /// cert-manager issues the certificates.
    Issued(Identities, IssuerRef),
}

impl ValidatedCertificates {
    pub(super) fn of(tunnel: &MuxTunnel, namespace: &str, settings: &Settings) -> Self {
        let name = tunnel.name_any();
        let own = |side| identity(&settings.trust_domain, namespace, &name, side);
        match Issuer::of(&tunnel.spec) {
            Issuer::Nobody => Self::None,
            Issuer::Users => Self::Provided,
            Issuer::CertManager(issuer) => {
                let identities = Identities {
                    entry: own("entry"),
                    exit: own("exit"),
                };
                Self::Issued(identities, issuer.clone())
            }
        }
    }
}
