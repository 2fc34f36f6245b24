//! Certificates of gateways: short-lived, each with its own key.

use rcgen::{
    CertificateParams, DistinguishedName, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose,
    SanType,
};
use zeroize::Zeroizing;

use super::CertificateError;
use super::authority::{Authority, Purpose, SKEW_SECONDS, at, fingerprint};

/// A certificate and its key.
pub struct Leaf {
    /// The certificate.
    pub pem: String,
    /// The private key of the certificate.
    pub key_pem: Zeroizing<String>,
    /// SHA-256 of the certificate (DER), in hexadecimal digits.
    pub fingerprint: String,
    /// When the certificate expires, in seconds since 1970.
    pub not_after: i64,
}

impl Authority {
    /// Issues a certificate for `identity`, a SPIFFE ID, of a gateway of side `purpose`. The
    /// certificate is valid from [`SKEW_SECONDS`] before `now` until `life` seconds after `now`,
    /// but not beyond the expiry of the authority.
    ///
    /// # Errors
    /// [`CertificateError`].
    pub fn issue(
        &self,
        identity: &str,
        purpose: Purpose,
        now: i64,
        life: i64,
    ) -> Result<Leaf, CertificateError> {
        let wrong = |source| CertificateError::Make {
            subject: identity.to_owned(),
            source,
        };
        let not_after = (now + life).min(self.end);
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.subject_alt_names = vec![SanType::URI(identity.try_into().map_err(wrong)?)];
        params.not_before = at(now - SKEW_SECONDS)?;
        params.not_after = at(not_after)?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![match purpose {
            Purpose::Entry => ExtendedKeyUsagePurpose::ClientAuth,
            Purpose::Exit => ExtendedKeyUsagePurpose::ServerAuth,
        }];
        let key = KeyPair::generate().map_err(wrong)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(wrong)?;
        Ok(Leaf {
            pem: certificate.pem(),
            key_pem: Zeroizing::new(key.serialize_pem()),
            fingerprint: fingerprint(certificate.der()),
            not_after,
        })
    }
}
