//! The certificate authorities of a tunnel, derived from one seed.
//!
//! Each tunnel has two series of authorities: one signs the certificates of entries, and the other
//! signs the certificates of exits. All of them sign for this tunnel only. A key is HKDF-SHA256 of
//! the seed over the tunnel's UID, the purpose, the generation, the lifetime and the authority's
//! number. Keys are Ed25519 keys, whose signatures are deterministic, so the same input yields the
//! same certificate. Authorities rotate by time, see [`Schedule`].

use std::panic::AssertUnwindSafe;

use data_encoding::HEXLOWER;
use kube::ResourceExt;
use muxtunnel_crds::MuxTunnel;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SerialNumber,
};
use sha2::{Digest, Sha256};
use time::OffsetDateTime;
use zeroize::Zeroizing;

use super::CertificateError;
use super::seal::{SealingKey, derived};
use crate::settings::Settings;

/// Length of a seed, in bytes.
pub const SEED_BYTES: usize = 32;
/// Lifetime of an authority of exits, as a multiple of the lifetime of an authority of entries. A
/// join bundle contains certificates of both, and expires with its authority of entries.
const EXIT_LIVES: i64 = 10;
/// Allowed difference between clocks, in seconds.
pub(super) const SKEW_SECONDS: i64 = 3600;
/// The bytes before an Ed25519 key in PKCS #8, version 1 (RFC 8410, section 7).
const PKCS8_HEAD: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

/// The secret that all authorities are derived from. The seed's memory is wiped on drop.
pub struct Seed(Zeroizing<[u8; SEED_BYTES]>);

impl std::fmt::Debug for Seed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seed")
    }
}

impl Seed {
    /// Creates a seed with a cryptographic random generator.
    #[must_use]
    pub fn random() -> Self {
        Self(Zeroizing::new(rand::random()))
    }

    /// The seed with these bytes, or `None` if their number is not [`SEED_BYTES`].
    #[must_use]
    pub fn of(bytes: &[u8]) -> Option<Self> {
        Some(Self(Zeroizing::new(bytes.try_into().ok()?)))
    }

    /// The bytes of the seed.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &*self.0
    }

    /// Derives the key that seals stored data of `subject`.
    ///
    /// # Errors
    /// [`CertificateError`].
    pub fn storage_key(&self, subject: &str) -> Result<SealingKey, CertificateError> {
        Ok(SealingKey(self.derive(subject, "storage")?))
    }

    fn derive(&self, subject: &str, use_: &str) -> Result<Zeroizing<[u8; 32]>, CertificateError> {
        let of = [subject.as_bytes(), b"\0", use_.as_bytes()];
        derived(b"muxtunnel.dev/authorities/v1", self.bytes(), &of)
            .ok_or_else(|| CertificateError::Derive(subject.to_owned()))
    }
}

/// The side whose certificates an authority signs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Certificates of entries.
    Entry,
    /// Certificates of exits.
    Exit,
}

impl Purpose {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Entry => "entry",
            Self::Exit => "exit",
        }
    }
}

/// Determines which authorities of a series sign and are trusted at a time. Times are seconds since
/// 1970.
///
/// An authority signs for two thirds of its lifetime. Then the next authority signs. Certificates
/// of the previous authority stay valid until that authority expires. Gateways trust the next
/// authority a tenth of a lifetime before it signs. In this time, all gateways and the bundles of
/// exits get the new authority.
#[derive(Debug, Clone, Copy)]
pub struct Schedule {
    begin: i64,
    life: i64,
}

impl Schedule {
    /// The series of a tunnel that was created at `begin`. `life` is in seconds. A value below 60
    /// counts as 60.
    #[must_use]
    pub fn new(begin: i64, life: i64) -> Self {
        Self {
            begin,
            life: life.max(60),
        }
    }

    const fn step(&self) -> i64 {
        self.life / 3 * 2
    }

    /// The number of the authority that signs at `now`.
    #[must_use]
    pub fn signing(&self, now: i64) -> i64 {
        (now - self.begin).max(0) / self.step()
    }

    /// The numbers of the authorities that are trusted at `now`, the oldest first. There are at
    /// most three.
    #[must_use]
    pub fn trusted(&self, now: i64) -> Vec<i64> {
        let signing = self.signing(now);
        (signing - 1..=signing + 1)
            .filter(|number| *number >= 0)
            .filter(|number| {
                *number == signing || (self.trusted_from(*number) <= now && now < self.end(*number))
            })
            .collect()
    }

    const fn trusted_from(&self, number: i64) -> i64 {
        self.begin + number * self.step() - self.life / 10
    }

    const fn end(&self, number: i64) -> i64 {
        self.begin + number * self.step() + self.life
    }
}

/// The tunnel that authorities are derived for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// UID of the tunnel. A recreated object gets other keys.
    pub uid: String,
    /// When the object was created, in seconds since 1970.
    pub created: i64,
    /// The join generation. Each generation has its own authorities of entries.
    pub generation: u32,
    /// Lifetime of an authority of entries, in seconds.
    pub life: i64,
}

impl Subject {
    /// The subject of `tunnel` with a join generation.
    #[must_use]
    pub fn of(tunnel: &MuxTunnel, generation: u32, settings: &Settings) -> Self {
        let created = tunnel.creation_timestamp();
        let life = i64::try_from(settings.authority_life.as_secs());
        Self {
            uid: tunnel.uid().unwrap_or_default(),
            created: created.map_or(0, |time| time.0.as_second()),
            generation,
            life: life.unwrap_or(i64::MAX / 100),
        }
    }

    fn schedule(&self, purpose: Purpose) -> Schedule {
        let lives = match purpose {
            Purpose::Entry => 1,
            Purpose::Exit => EXIT_LIVES,
        };
        Schedule::new(self.created, self.life.saturating_mul(lives))
    }

    /// The authority that signs at `now`.
    ///
    /// # Errors
    /// [`CertificateError`].
    pub fn signing(
        &self,
        seed: &Seed,
        purpose: Purpose,
        now: i64,
    ) -> Result<Authority, CertificateError> {
        self.authority(seed, purpose, self.schedule(purpose).signing(now))
    }

    /// The authorities that are trusted at `now`, the oldest first.
    ///
    /// # Errors
    /// [`CertificateError`].
    pub fn trusted(
        &self,
        seed: &Seed,
        purpose: Purpose,
        now: i64,
    ) -> Result<Vec<Authority>, CertificateError> {
        let numbers = self.schedule(purpose).trusted(now).into_iter();
        numbers
            .map(|number| self.authority(seed, purpose, number))
            .collect()
    }

    /// The authorities of entries in bundles that are still valid at `now`, the oldest first. At
    /// most two.
    ///
    /// # Errors
    /// [`CertificateError`].
    pub fn published(&self, seed: &Seed, now: i64) -> Result<Vec<Authority>, CertificateError> {
        let schedule = self.schedule(Purpose::Entry);
        let numbers = schedule.trusted(now).into_iter();
        numbers
            .filter(|number| *number <= schedule.signing(now))
            .map(|number| self.authority(seed, Purpose::Entry, number))
            .collect()
    }

    fn authority(
        &self,
        seed: &Seed,
        purpose: Purpose,
        number: i64,
    ) -> Result<Authority, CertificateError> {
        // Only authorities of entries depend on the join generation. A new generation has to revoke
        // the bundles, and the only key in a bundle is the key of an authority of entries.
        let generation = match purpose {
            Purpose::Entry => self.generation,
            Purpose::Exit => 0,
        };
        // The derivation includes the lifetime, because the lifetime determines the numbering. With
        // another lifetime, the same number means another period, and a key for this number may
        // have been published long ago.
        let name = format!(
            "muxtunnel {} {} {generation}.{}.{number}",
            purpose.as_str(),
            self.uid,
            self.life
        );
        let schedule = self.schedule(purpose);
        let (begin, end) = (schedule.trusted_from(number), schedule.end(number));
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::CommonName, name.as_str());
        params.not_before = at(begin - SKEW_SECONDS)?;
        params.not_after = at(end)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let mut serial = seed.derive(&name, "serial number")?;
        // A serial number is positive and never zero (RFC 5280, section 4.1.2.2).
        serial[0] = serial[0] & 0x7f | 0x40;
        params.serial_number = Some(SerialNumber::from_slice(&serial[..16]));
        let key = seed.derive(&name, "key")?;
        let pkcs8 = Zeroizing::new([&PKCS8_HEAD[..], &key[..]].concat());
        let wrong = |source| CertificateError::Make {
            subject: name.clone(),
            source,
        };
        let key = KeyPair::try_from(&pkcs8[..]).map_err(wrong)?;
        let certificate = params.self_signed(&key).map_err(wrong)?;
        Ok(Authority {
            fingerprint: fingerprint(certificate.der()),
            pem: certificate.pem(),
            key_pem: Zeroizing::new(key.serialize_pem()),
            begin,
            end,
            issuer: AssertUnwindSafe(Issuer::new(params, key)),
        })
    }
}

/// One authority, with its key.
pub struct Authority {
    /// SHA-256 of the authority's certificate (DER), in hexadecimal digits.
    pub fingerprint: String,
    /// The authority's certificate, PEM.
    pub pem: String,
    /// The authority's private key, PEM.
    pub key_pem: Zeroizing<String>,
    /// When the authority becomes trusted, in seconds since 1970.
    pub begin: i64,
    /// When the authority expires, in seconds since 1970.
    pub end: i64,
    /// rcgen refers to its formats of RSA keys as trait objects, which are constants.
    pub(super) issuer: AssertUnwindSafe<Issuer<'static, KeyPair>>,
}

impl Authority {
    pub(super) fn key(&self) -> Result<KeyPair, CertificateError> {
        KeyPair::from_pem(&self.key_pem).map_err(|source| CertificateError::Make {
            subject: self.fingerprint.clone(),
            source,
        })
    }
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority")
            .field("fingerprint", &self.fingerprint)
            .field("end", &self.end)
            .finish_non_exhaustive()
    }
}

/// The concatenated certificates of `authorities`, PEM.
#[must_use]
pub fn pem(authorities: &[Authority]) -> String {
    let texts = authorities.iter().map(|one| one.pem.as_str());
    texts.collect()
}

/// SHA-256, in lower-case hexadecimal digits.
#[must_use]
pub fn fingerprint(bytes: &[u8]) -> String {
    HEXLOWER.encode(&Sha256::digest(bytes))
}

pub(super) fn at(seconds: i64) -> Result<OffsetDateTime, CertificateError> {
    OffsetDateTime::from_unix_timestamp(seconds).map_err(|_| CertificateError::Time(seconds))
}
