//! The issuer of the certificates of a tunnel's gateways, according to the spec. Pure.

use muxtunnel_crds::{IssuerRef, MuxTunnelSpec, SecurityMode, Side};

/// Suffix of the Secrets that cert-manager writes.
pub(super) const ISSUED_SUFFIX: &str = "-issued-tls";

/// The issuer of a tunnel's certificates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Issuer<'a> {
    /// No issuer: carriers are not secured, or use public keys, or the tunnel is a rendezvous.
    Nobody,
    /// cert-manager.
    CertManager(&'a IssuerRef),
    /// The users created the Secrets that the spec names.
    Users,
}

impl<'a> Issuer<'a> {
    pub(super) fn of(spec: &'a MuxTunnelSpec) -> Self {
        let carrier = spec.carrier.as_ref();
        let security = carrier.and_then(|carrier| carrier.security.as_ref());
        let mode = security.and_then(|security| security.mode);
        match security.map(|security| security.issuer_ref.as_ref()) {
            _ if spec.side == Side::Rendezvous => Self::Nobody,
            _ if mode != Some(SecurityMode::MutualTls) => Self::Nobody,
            Some(Some(issuer)) => Self::CertManager(issuer),
            _ => Self::Users,
        }
    }
}
