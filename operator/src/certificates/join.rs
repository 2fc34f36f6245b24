//! Join bundles: what an exit's operator gives to entries elsewhere. Pure.
//!
//! A bundle has the authorities that the exit's certificates come from, and one of entries with its key, which signs for
//! that one tunnel alone: so the entry's operator issues short-lived certificates by itself, and the next bundle comes
//! through the tunnel ([`super::offer`]). A Secret that is read here was written by anybody: all of it is checked.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff::Timestamp;
use muxtunnel_codes::Code;
use muxtunnel_contract::secrets::{self, JOIN_TYPE};
use rcgen::{Issuer, KeyPair};
use x509_parser::pem::Pem;
use zeroize::Zeroizing;

use super::authority::{Authority, SKEW_SECONDS, fingerprint};

/// Where the exit is, `host:port`; not there where both sides meet at a rendezvous.
pub const ADDRESS: &str = "address";
/// The authorities of exits, in PEM.
pub const EXIT_AUTHORITIES: &str = secrets::AUTHORITIES;
/// The authority of entries, in PEM...
pub const ENTRY_AUTHORITY: &str = secrets::CERTIFICATE;
/// ...and its key.
pub const ENTRY_KEY: &str = secrets::KEY;
/// The SPIFFE ID of the exit.
pub const EXIT_IDENTITY: &str = "exit-identity";
/// The SPIFFE ID that the exit takes for an entry.
pub const ENTRY_IDENTITY: &str = "entry-identity";
/// When all this expires (RFC 3339), for people and for tools: what counts is in the certificates.
pub const EXPIRES: &str = "expires";

/// Longest text of a key, but for the certificates.
const TEXT_BYTES_MAX: usize = 512;
/// Longest certificates and key.
const PEM_BYTES_MAX: usize = 1 << 16;
/// Most authorities of exits: three are trusted at once.
const AUTHORITIES_MAX: usize = 8;

/// What an entry elsewhere needs to join an exit.
#[derive(Debug)]
pub struct Bundle {
    /// Where the exit is.
    pub address: Option<String>,
    /// Its authorities, in PEM.
    pub exit_authorities: String,
    /// What signs for entries.
    pub entry_authority: Authority,
    /// Who the exit is.
    pub exit_identity: String,
    /// Who an entry has to be.
    pub entry_identity: String,
}

/// Why a bundle cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BundleProblem {
    /// The class.
    pub code: Code,
    /// What is wrong with the Secret, without its name.
    pub what: String,
}

impl Bundle {
    /// When it expires, in seconds since 1970.
    #[must_use]
    pub const fn expires(&self) -> i64 {
        self.entry_authority.end
    }

    /// By when a newer one is published, and has come, in seconds since 1970: see [`super::authority::Schedule`], of which a bundle
    /// shows the first and the last moment.
    #[must_use]
    pub const fn renewed_by(&self) -> i64 {
        let (begin, end) = (self.entry_authority.begin, self.entry_authority.end);
        end - (end - begin) / 10 * 3
    }

    /// The data of its Secret.
    #[must_use]
    pub fn data(&self) -> BTreeMap<String, ByteString> {
        let mut data = self.public();
        data.insert(ENTRY_KEY, self.entry_authority.key_pem.as_str().to_owned());
        data.into_iter()
            .map(|(key, text)| (key.to_owned(), ByteString(text.into_bytes())))
            .collect()
    }

    /// The same as text.
    #[must_use]
    pub fn text(&self) -> Zeroizing<Vec<u8>> {
        // Texts alone: nothing of it is refused.
        Zeroizing::new(serde_json::to_vec(&self.data()).unwrap_or_default())
    }

    /// The bundle in what [`Self::text`] gave.
    ///
    /// # Errors
    /// [`BundleProblem`].
    pub fn parse(text: &[u8]) -> Result<Self, BundleProblem> {
        let data = serde_json::from_slice(text).map_err(|_| BundleProblem {
            code: Code::JoinBundleInvalid,
            what: "is no bundle".to_owned(),
        })?;
        Self::of(&data)
    }

    /// SHA-256 of all but the key, which its certificate stands for.
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

    /// The bundle in `secret`, if it is one, whether or not it is still good. Nothing of a Secret of another type is
    /// looked at.
    ///
    /// # Errors
    /// [`BundleProblem`].
    pub fn read(secret: &Secret) -> Result<Self, BundleProblem> {
        if secret.type_.as_deref() != Some(JOIN_TYPE) {
            return Err(invalid(format!("is not of type {JOIN_TYPE}")));
        }
        Self::of(secret.data.as_ref().unwrap_or(&BTreeMap::new()))
    }

    /// The bundle with this data.
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

    /// Whether it is good at `now`.
    ///
    /// # Errors
    /// [`BundleProblem`]: it has expired.
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

/// RFC 3339.
#[must_use]
pub fn date(seconds: i64) -> String {
    Timestamp::from_second(seconds).map_or_else(|_| seconds.to_string(), |time| time.to_string())
}

/// `host:port`, as the schema has it.
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
            .map_err(|_| format!("has a key {key} that is no text"))
    }

    fn address(&self) -> Result<Option<String>, String> {
        if !self.0.contains_key(ADDRESS) {
            return Ok(None);
        }
        let address = self.text(ADDRESS)?.trim();
        if is_address(address) {
            Ok(Some(address.to_owned()))
        } else {
            Err(format!("has a key {ADDRESS} that is not host:port"))
        }
    }

    fn identity(&self, key: &str) -> Result<String, String> {
        let identity = self.text(key)?.trim();
        let is_fine = |c: char| c.is_ascii_alphanumeric() || "-_.:/".contains(c);
        if identity.starts_with("spiffe://") && identity.chars().all(is_fine) {
            Ok(identity.to_owned())
        } else {
            Err(format!("has a key {key} that is no SPIFFE ID"))
        }
    }

    fn exit_authorities(&self) -> Result<String, String> {
        let wrong =
            || format!("has a key {EXIT_AUTHORITIES} with no authority in PEM, or a broken one");
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
        let unreadable = || wrong(ENTRY_AUTHORITY, "that is no certificate in PEM");
        let mut pems = Pem::iter_from_buffer(bytes);
        let pem = pems.next().and_then(Result::ok).ok_or_else(unreadable)?;
        let parsed = pem.parse_x509().map_err(|_| unreadable())?;
        if !parsed.is_ca() {
            return Err(wrong(ENTRY_AUTHORITY, "whose certificate is no authority"));
        }
        let key = self.bytes(ENTRY_KEY, PEM_BYTES_MAX)?;
        let key_pem = Zeroizing::new(
            std::str::from_utf8(key)
                .map_err(|_| wrong(ENTRY_KEY, "that is no text"))?
                .to_owned(),
        );
        let key = KeyPair::from_pem(&key_pem)
            .map_err(|_| wrong(ENTRY_KEY, "that is no private key in PEM"))?;
        if key.public_key_raw() != &*parsed.public_key().subject_public_key.data {
            return Err(wrong(ENTRY_KEY, "that is not the one of its certificate"));
        }
        let (begin, end) = (
            // It is good a little before it is trusted.
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
            issuer,
        })
    }
}
