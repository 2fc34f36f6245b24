//! The source of the certificates of a tunnel's gateways. Pure.

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
    /// The SPIFFE ID of the entry.
    pub entry: String,
    /// The SPIFFE ID of the exit.
    pub exit: String,
}

/// The source of the certificates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValidatedCertificates {
    /// No certificates: carriers are not secured, or use Noise, or the tunnel is a rendezvous.
    None,
    /// The user provides the certificates. Gateways mount the user's Secrets.
    Provided,
    /// The operator issues the certificates.
    Managed(Identities, Subject),
    /// The operator issues the entry's certificates with the join bundle of a remote exit.
    Joined(Identities),
    /// cert-manager issues the certificates.
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
                let sentence = "side Entry needs carrier.joinFrom or carrier.security.entry, by which \
                            the entry verifies the exit";
                return Err(sentence.to_owned());
            }
        })
    }

    /// The identities of both sides. `None` if the user decides them.
    #[must_use]
    pub const fn identities(&self) -> Option<&Identities> {
        match self {
            Self::None | Self::Provided => None,
            Self::Managed(identities, _)
            | Self::Joined(identities)
            | Self::Issued(identities, _) => Some(identities),
        }
    }

    /// The name of the Secret that the operator or cert-manager writes for the end `name`.
    /// cert-manager's Secret has another name than the operator's, so that they never write the
    /// same Secret.
    #[must_use]
    pub fn secret(&self, tunnel: &str, name: &str) -> String {
        match self {
            Self::Issued(..) => format!("{tunnel}-{name}{ISSUED_SUFFIX}"),
            _ => format!("{tunnel}-{name}-tls"),
        }
    }
}

/// The greater of two numbers: the generation in the annotation, and the tunnel's earlier
/// generation. So revoked bundles stay invalid if the annotation gets a lower number or is removed.
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
            format!(
                "the annotation {JOIN_GENERATION} {text:?} is not a number from 0 to 2147483647"
            )
        })
}
