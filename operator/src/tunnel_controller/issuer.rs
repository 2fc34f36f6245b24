//! Who issues the certificates of a tunnel's gateways, as its spec says. Pure.

use muxtunnel_crds::{IssuerRef, MuxTunnelSpec, SecurityMode, Side};

/// End of the names of Secrets that cert-manager writes.
pub(super) const ISSUED_SUFFIX: &str = "-issued-tls";

/// Who issues, where the tunnel joins by no bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Issuer<'a> {
    /// Nobody: carriers are not secured, or by Noise, or a rendezvous joins those of others.
    Nobody,
    /// cert-manager.
    CertManager(&'a IssuerRef),
    /// The users, who made the Secrets that the spec names.
    Users,
    /// The operator, by authorities of its own.
    Operator,
    /// The spec does not say: the exit is another object's, and so are its authorities.
    Unknown,
}

impl<'a> Issuer<'a> {
    pub(super) fn of(spec: &'a MuxTunnelSpec) -> Self {
        let carrier = spec.carrier.as_ref();
        let security = carrier.and_then(|carrier| carrier.security.as_ref());
        let mode = security.map_or_else(SecurityMode::default, |security| security.mode);
        if spec.side == Side::Rendezvous || mode != SecurityMode::MutualTls {
            return Self::Nobody;
        }
        if let Some(issuer) = security.and_then(|security| security.issuer_ref.as_ref()) {
            return Self::CertManager(issuer);
        }
        if security.is_some_and(|security| security.entry.is_some() || security.exit.is_some()) {
            return Self::Users;
        }
        match spec.side {
            Side::Entry => Self::Unknown,
            _ => Self::Operator,
        }
    }
}
