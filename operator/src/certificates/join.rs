//! Join bundles: the data that an exit's operator gives to remote entries. This module is pure.
//!
//! A bundle contains the certificates of the authorities of exits, and one authority of entries with its key. This
//! authority signs certificates for this tunnel only. With the key, the entry's operator issues short-lived
//! certificates itself. The next bundle arrives through the tunnel ([`super::offer`]). Any user may have written the
//! Secret, so this module checks each of its keys.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff::Timestamp;
use muxtunnel_codes::Code;
use muxtunnel_contract::secrets::{self, JOIN_TYPE};
use rcgen::{Issuer, KeyPair};
use x509_parser::pem::Pem;
use zeroize::Zeroizing;

use super::authority::{Authority, SKEW_SECONDS, fingerprint};

/// `host:port` of the exit. The key is absent if both sides connect to a rendezvous.
pub const ADDRESS: &str = "address";
/// The certificates of the authorities of exits, PEM.
pub const EXIT_AUTHORITIES: &str = secrets::AUTHORITIES;
/// The certificate of the authority of entries, PEM.
pub const ENTRY_AUTHORITY: &str = secrets::CERTIFICATE;
/// The key of the authority of entries, PEM.
pub const ENTRY_KEY: &str = secrets::KEY;
/// The SPIFFE ID of the exit.
pub const EXIT_IDENTITY: &str = "exit-identity";
/// The SPIFFE ID that the exit accepts for an entry.
pub const ENTRY_IDENTITY: &str = "entry-identity";
/// When the bundle expires (RFC 3339). This value is only informational, because the certificates
/// determine the expiry.
pub const EXPIRES: &str = "expires";

/// Longest value in bytes, except for certificates and the private key.
const TEXT_BYTES_MAX: usize = 512;
/// Longest value in bytes for certificates and for the private key.
const PEM_BYTES_MAX: usize = 1 << 16;
/// Maximum number of authorities of exits in a bundle. At most three are trusted at the same time.
const AUTHORITIES_MAX: usize = 8;

/// The data that a remote entry needs to join an exit.
#[derive(Debug)]
pub struct Bundle {
    /// `host:port` of the exit, or `None` with a rendezvous.
    pub address: Option<String>,
    /// The certificates of the exit's authorities, PEM.
    pub exit_authorities: String,
    /// The authority that signs certificates of entries.
    pub entry_authority: Authority,
    /// The SPIFFE ID of the exit.
    pub exit_identity: String,
    /// The SPIFFE ID of the entry.
    pub entry_identity: String,
}

/// Why a bundle cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BundleProblem {
    /// The code of the problem.
    pub code: Code,
    /// A description of the fault. The description does not contain the Secret's name.
    pub what: String,
}

impl Bundle {
    /// When the bundle expires, in seconds since 1970. The bundle expires with its authority of
    /// entries.
    #[must_use]
    pub const fn expires(&self) -> i64 {
        self.entry_authority.end
    }

    /// When a newer bundle must have been published and received, in seconds since 1970. A bundle
    /// is valid from [`Authority::begin`] to [`Authority::end`] of its authority of entries. See
    /// [`super::authority::Schedule`].
    #[must_use]
    pub const fn renewed_by(&self) -> i64 {
        let (begin, end) = (self.entry_authority.begin, self.entry_authority.end);
        end - (end - begin) / 10 * 3
    }

    /// The data of the bundle's Secret.
    #[must_use]
    pub fn data(&self) -> BTreeMap<String, ByteString> {
        let mut data = self.public();
        data.insert(ENTRY_KEY, self.entry_authority.key_pem.as_str().to_owned());
        data.into_iter()
            .map(|(key, text)| (key.to_owned(), ByteString(text.into_bytes())))
            .collect()
    }

    /// The data as JSON.
    #[must_use]
    pub fn text(&self) -> Zeroizing<Vec<u8>> {
        // The map contains only strings, so the serialization cannot fail.
        Zeroizing::new(serde_json::to_vec(&self.data()).unwrap_or_default())
    }

    /// Parses the JSON that [`Self::text`] returns.
    ///
    /// # Errors
    /// [`BundleProblem`].
    pub fn parse(text: &[u8]) -> Result<Self, BundleProblem> {
        let data = serde_json::from_slice(text).map_err(|_| BundleProblem {
            code: Code::JoinBundleInvalid,
            what: "is not a join bundle".to_owned(),
        })?;
        Self::of(&data)
    }

    /// SHA-256 of the data without the private key. The certificate identifies the key.
    #[must_use]
    pub fn digest(&self) -> String {
        let parts = self.public().into_iter();
        let text: String = parts.map(|(key, text)| format!("{key}={text}\n")).collect();
        fingerprint(text.as_bytes())
    }

    fn public(&self) -> BTreeMap<&'static str, String> {
        let mut public = BTreeMap::from([
            (EXIT_AUTHORITIES, self.exit_authorities.clone()),
            (ENTRY_AUTHORITY, self.entry_authority.pem.clone()),
            (EXIT_IDENTITY, self.exit_identity.clone()),
            (ENTRY_IDENTITY, self.entry_identity.clone()),
            (EXPIRES, date(self.expires())),
        ]);
        public.extend(self.address.clone().map(|address| (ADDRESS, address)));
        public
    }

    /// Reads the bundle from `secret`, even if it has expired. A Secret of another type is rejected
    /// before its data is read.
    ///
    /// # Errors
    /// [`BundleProblem`].
    pub fn read(secret: &Secret) -> Result<Self, BundleProblem> {
        if secret.type_.as_deref() != Some(JOIN_TYPE) {
            return Err(invalid(format!("is not of type {JOIN_TYPE}")));
        }
        Self::of(secret.data.as_ref().unwrap_or(&BTreeMap::new()))
    }

    /// Reads the bundle from the data of a Secret.
    ///
    /// # Errors
    /// [`BundleProblem`].
    pub fn of(data: &BTreeMap<String, ByteString>) -> Result<Self, BundleProblem> {
        let fields = Fields(data);
        Ok(Self {
            address: fields.address().map_err(invalid)?,
            exit_authorities: fields.exit_authorities().map_err(invalid)?,
            entry_authority: fields.entry_authority().map_err(invalid)?,
            exit_identity: fields.identity(EXIT_IDENTITY).map_err(invalid)?,
            entry_identity: fields.identity(ENTRY_IDENTITY).map_err(invalid)?,
        })
    }

    /// Checks that the bundle has not expired at `now` (seconds since 1970).
    ///
    /// # Errors
    /// [`BundleProblem`] if the bundle has expired.
    pub fn good_at(&self, now: i64) -> Result<(), BundleProblem> {
        if self.expires() > now {
            return Ok(());
        }
        Err(BundleProblem {
            code: Code::JoinBundleExpired,
            what: format!("expired at {}", date(self.expires())),
        })
    }
}

fn invalid(what: String) -> BundleProblem {
    BundleProblem {
        code: Code::JoinBundleInvalid,
        what,
    }
}

/// `seconds` since 1970 as RFC 3339.
#[must_use]
pub fn date(seconds: i64) -> String {
    Timestamp::from_second(seconds).map_or_else(|_| seconds.to_string(), |time| time.to_string())
}

/// Whether `text` is `host:port`, as the schema defines it.
#[must_use]
pub fn is_address(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else {
        return false;
    };
    let inner = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let is_host = match inner {
        Some(inner) => inner.parse::<std::net::Ipv6Addr>().is_ok(),
        None => {
            let is_fine = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            !host.is_empty() && host.chars().all(is_fine)
        }
    };
    is_host && text.len() <= 260 && port.parse::<u16>().is_ok_and(|port| port > 0)
}

struct Fields<'a>(&'a BTreeMap<String, ByteString>);

impl Fields<'_> {
    fn bytes(&self, key: &str, length_max: usize) -> Result<&[u8], String> {
        match self.0.get(key) {
            Some(ByteString(bytes)) if bytes.len() <= length_max => Ok(bytes),
            Some(_) => Err(format!("has a key {key} of more than {length_max} bytes")),
            None => Err(format!("has no key {key}")),
        }
    }

    fn text(&self, key: &str) -> Result<&str, String> {
        std::str::from_utf8(self.bytes(key, TEXT_BYTES_MAX)?)
            .map_err(|_| format!("has a key {key} that is not UTF-8"))
    }

    fn address(&self) -> Result<Option<String>, String> {
        if !self.0.contains_key(ADDRESS) {
            return Ok(None);
        }
        let address = self.text(ADDRESS)?.trim();
        if is_address(address) {
            Ok(Some(address.to_owned()))
        } else {
            Err(format!(
                "has a key {ADDRESS} that is not of the form host:port"
            ))
        }
    }

    fn identity(&self, key: &str) -> Result<String, String> {
        let identity = self.text(key)?.trim();
        let is_fine = |c: char| c.is_ascii_alphanumeric() || "-_.:/".contains(c);
        if identity.starts_with("spiffe://") && identity.chars().all(is_fine) {
            Ok(identity.to_owned())
        } else {
            Err(format!("has a key {key} that is not a SPIFFE ID"))
        }
    }

    fn exit_authorities(&self) -> Result<String, String> {
        let wrong = || format!("has a key {EXIT_AUTHORITIES} without a valid authority in PEM");
        let bytes = self.bytes(EXIT_AUTHORITIES, PEM_BYTES_MAX)?;
        let found: Vec<_> = Pem::iter_from_buffer(bytes)
            .take(AUTHORITIES_MAX + 1)
            .collect();
        if found.is_empty() || found.len() > AUTHORITIES_MAX {
            return Err(wrong());
        }
        for pem in found {
            let pem = pem.map_err(|_| wrong())?;
            let certificate = pem.parse_x509().map_err(|_| wrong())?;
            if !certificate.is_ca() {
                return Err(wrong());
            }
        }
        String::from_utf8(bytes.to_vec()).map_err(|_| wrong())
    }

    fn entry_authority(&self) -> Result<Authority, String> {
        let wrong = |key: &str, what: &str| format!("has a key {key} {what}");
        let bytes = self.bytes(ENTRY_AUTHORITY, PEM_BYTES_MAX)?;
        let unreadable = || wrong(ENTRY_AUTHORITY, "that is not a certificate in PEM");
        let mut pems = Pem::iter_from_buffer(bytes);
        let pem = pems.next().and_then(Result::ok).ok_or_else(unreadable)?;
        let parsed = pem.parse_x509().map_err(|_| unreadable())?;
        if !parsed.is_ca() {
            return Err(wrong(
                ENTRY_AUTHORITY,
                "whose certificate is not an authority",
            ));
        }
        let key = self.bytes(ENTRY_KEY, PEM_BYTES_MAX)?;
        let key_pem = Zeroizing::new(
            std::str::from_utf8(key)
                .map_err(|_| wrong(ENTRY_KEY, "that is not UTF-8"))?
                .to_owned(),
        );
        let key = KeyPair::from_pem(&key_pem)
            .map_err(|_| wrong(ENTRY_KEY, "that is not a private key in PEM"))?;
        if key.public_key_raw() != &*parsed.public_key().subject_public_key.data {
            return Err(wrong(ENTRY_KEY, "that does not match the certificate"));
        }
        let (begin, end) = (
            // The validity begins [`SKEW_SECONDS`] before the time from which gateways trust the
            // authority.
            parsed.validity().not_before.timestamp() + SKEW_SECONDS,
            parsed.validity().not_after.timestamp(),
        );
        let certificate_pem = String::from_utf8(bytes.to_vec()).map_err(|_| unreadable())?;
        let issuer = Issuer::from_ca_cert_der(&pem.contents.as_slice().into(), key)
            .map_err(|_| unreadable())?;
        Ok(Authority {
            fingerprint: fingerprint(&pem.contents),
            pem: certificate_pem,
            key_pem,
            begin,
            end,
            issuer: AssertUnwindSafe(issuer),
        })
    }
}
