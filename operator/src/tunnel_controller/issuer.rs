//! The issuer of the certificates of a tunnel's gateways, according to the spec. Pure.

use muxtunnel_crds::{IssuerRef, MuxTunnelSpec, SecurityMode, Side};

/// Suffix of the Secrets that cert-manager writes.
pub(super) const ISSUED_SUFFIX: &str = "-issued-tls";

/// The issuer of a tunnel without a join bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Issuer<'a> {
    /// No issuer: carriers are not secured, or use Noise, or the tunnel is a rendezvous.
    Nobody,
    /// cert-manager.
    CertManager(&'a IssuerRef),
    /// The users created the Secrets that the spec names.
    Users,
    /// The operator, with its own authorities.
    Operator,
    /// The spec does not determine the issuer, because the exit and its authorities belong to
    /// another object.
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
