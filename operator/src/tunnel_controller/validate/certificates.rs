//! Whose the certificates of a tunnel's gateways are. Pure.

use kube::ResourceExt;
use muxtunnel_contract::annotations::JOIN_GENERATION;
use muxtunnel_crds::{CertificatesStatus, IssuerRef, MuxTunnel};

use crate::certificates::authority::Subject;
use crate::certificates::identity::identity;
use crate::certificates::join::Bundle;
use crate::settings::Settings;
use crate::tunnel_controller::issuer::{ISSUED_SUFFIX, Issuer};

/// The SPIFFE IDs of both sides of a tunnel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identities {
    /// That of the entry.
    pub entry: String,
    /// That of the exit.
    pub exit: String,
}

/// Whose the certificates are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValidatedCertificates {
    /// There are none: carriers are not secured, or by Noise, or a rendezvous joins those of others.
    None,
    /// The user's: their Secrets are mounted as they are.
    Provided,
    /// The operator issues them.
    Managed(Identities, Subject),
    /// The operator issues those of the entry, by the join bundle of an exit elsewhere.
    Joined(Identities),
    /// cert-manager issues them.
    Issued(Identities, IssuerRef),
}

impl ValidatedCertificates {
    pub(super) fn of(
        tunnel: &MuxTunnel,
        namespace: &str,
        joined: Option<&Bundle>,
        settings: &Settings,
    ) -> Result<Self, String> {
        if let Some(bundle) = joined {
            return Ok(Self::Joined(Identities {
                entry: bundle.entry_identity.clone(),
                exit: bundle.exit_identity.clone(),
            }));
        }
        let name = tunnel.name_any();
        let own = |side| identity(&settings.trust_domain, namespace, &name, side);
        let identities = || Identities {
            entry: own("entry"),
            exit: own("exit"),
        };
        Ok(match Issuer::of(&tunnel.spec) {
            Issuer::Nobody => Self::None,
            Issuer::CertManager(issuer) => Self::Issued(identities(), issuer.clone()),
            Issuer::Users => Self::Provided,
            Issuer::Operator => {
                let subject = Subject::of(tunnel, join_generation(tunnel)?, settings);
                Self::Managed(identities(), subject)
            }
            Issuer::Unknown => {
                let sentence = "side Entry needs carrier.joinFrom, the bundle of the exit, or \
                                carrier.security.entry, the keys of its gateways";
                return Err(sentence.to_owned());
            }
        })
    }

    /// Who both sides are, where that is decided here.
    #[must_use]
    pub const fn identities(&self) -> Option<&Identities> {
        match self {
            Self::None | Self::Provided => None,
            Self::Managed(identities, _)
            | Self::Joined(identities)
            | Self::Issued(identities, _) => Some(identities),
        }
    }

    /// The Secret of the end `name`, where its name is decided here. That of cert-manager has another, so that one is
    /// never written by both.
    #[must_use]
    pub fn secret(&self, tunnel: &str, name: &str) -> String {
        match self {
            Self::Issued(..) => format!("{tunnel}-{name}{ISSUED_SUFFIX}"),
            _ => format!("{tunnel}-{name}-tls"),
        }
    }
}

/// That of the annotation, unless the tunnel had a greater one before: one that is lowered, or lost on the way, does
/// not bring revoked bundles back.
fn join_generation(tunnel: &MuxTunnel) -> Result<u32, String> {
    let certificates = tunnel
        .status
        .as_ref()
        .and_then(|status| status.certificates.as_ref());
    let least = certificates.map_or(0, CertificatesStatus::least_generation);
    let least = u32::try_from(least).unwrap_or_default();
    let Some(text) = tunnel.annotations().get(JOIN_GENERATION) else {
        return Ok(least);
    };
    let asked = text.parse::<u32>().ok();
    asked
        .filter(|number| i32::try_from(*number).is_ok())
        .map(|number| number.max(least))
        .ok_or_else(|| {
            format!("the annotation {JOIN_GENERATION} {text:?} is no number from 0 to 2147483647")
        })
}
