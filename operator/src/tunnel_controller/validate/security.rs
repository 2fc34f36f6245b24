//! The security of carriers. Pure.

use muxtunnel_crds::{CsiSource, SecurityMode};

use super::ValidatedCertificates;
use crate::class::Class;
use crate::tunnel_controller::dereference::Credentials;
use crate::tunnel_controller::end::End;
use crate::tunnel_controller::holder::Holder;
use crate::tunnel_controller::issuer::issued_secret;
use crate::tunnel_controller::object::Object;

/// The security of carriers of one end.
#[derive(Debug, Clone, PartialEq)]
pub enum ValidatedSecurity {
    /// Carriers are not secured.
    None,
    /// Carriers use TLS with public keys of both ends. Both ends belong to the object.
    Pair {
        /// The Secret with the keys of both ends.
        secret: String,
    },
    /// Carriers use TLS with public keys of both ends. The other end belongs to another object.
    PublicKeys {
        /// The Secrets with the private keys, the newest last, 1 or 2.
        secrets: Vec<String>,
    },
    /// Carriers use TLS with certificates of both ends.
    Certificates {
        /// The volume with certificate, key and authorities.
        volume: CertificateVolume,
        /// The names of the other end of the same object, of which its certificate has one.
        names: Vec<String>,
    },
}

/// A volume with the files of a certificate.
#[derive(Debug, Clone, PartialEq)]
pub enum CertificateVolume {
    /// A Secret.
    Secret(String),
    /// The volume of a CSI driver.
    Csi(CsiSource),
}

impl ValidatedSecurity {
    /// The Secrets that the end's gateways mount.
    #[must_use]
    pub fn secrets(&self) -> Vec<&str> {
        match self {
            Self::None
            | Self::Certificates {
                volume: CertificateVolume::Csi(_),
                ..
            } => Vec::new(),
            Self::Pair { secret }
            | Self::Certificates {
                volume: CertificateVolume::Secret(secret),
                ..
            } => vec![secret],
            Self::PublicKeys { secrets } => secrets.iter().map(String::as_str).collect(),
        }
    }
}

/// The inputs of the security of an end.
pub(super) struct Source<'a> {
    pub(super) object: &'a Object,
    pub(super) holder: &'a Holder,
    pub(super) class: &'a Class,
    /// The source of the certificates.
    pub(super) certificates: &'a ValidatedCertificates,
    pub(super) credentials: &'a Credentials,
}

impl Source<'_> {
    /// The security of the carriers of `end`.
    pub(super) fn security(&self, end: End) -> Result<ValidatedSecurity, String> {
        let own = self.credentials.own.iter();
        match self.object.mode() {
            Some(SecurityMode::None) => Ok(ValidatedSecurity::None),
            Some(SecurityMode::Certificates) => self.certificates(end),
            Some(SecurityMode::PublicKeys) if self.object.has_both_ends() => {
                let secret = self.credentials.pair.clone();
                let secret = secret.ok_or("the keys of both ends are not known")?;
                Ok(ValidatedSecurity::Pair { secret })
            }
            // A rendezvous has keys of its own, whatever the mode of the carriers that it joins.
            Some(SecurityMode::PublicKeys) | None => Ok(ValidatedSecurity::PublicKeys {
                secrets: own.map(|own| own.status.secret_name.clone()).collect(),
            }),
        }
    }

    fn certificates(&self, end: End) -> Result<ValidatedSecurity, String> {
        let name = end.component();
        let asked = self.object.certificates(end).ok_or_else(|| {
            format!("security.certificates has no source for the certificate of the {name} gateways: set secretRef, issuerRef or csi")
        })?;
        let volume = match (&asked.secret_ref, &asked.issuer_ref, &asked.csi) {
            (Some(secret), None, None) => CertificateVolume::Secret(secret.name.clone()),
            (None, Some(_), None) => CertificateVolume::Secret(issued_secret(self.holder, end)),
            (None, None, Some(csi)) => CertificateVolume::Csi(csi.clone()),
            _ => {
                return Err(format!(
                    "security.certificates: set exactly one of secretRef, issuerRef and csi for the {name} gateways"
                ));
            }
        };
        Ok(ValidatedSecurity::Certificates {
            volume,
            names: self.certificates.names_of_other(end),
        })
    }
}
