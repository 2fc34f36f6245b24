//! The authorities of a tunnel, derived from one seed.
//!
//! Each tunnel has two: one signs the certificates of its entries, the other those of its exits, and both sign for this
//! tunnel alone. A key is HKDF-SHA256 of the seed over the tunnel's UID, the purpose and the generation; it is of
//! Ed25519, whose signatures are no matter of chance, so that the same certificate comes out each time. Authorities
//! take turns by the clock: see [`Schedule`].

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

/// Length of a seed.
pub const SEED_BYTES: usize = 32;
/// How much longer than the entries' an authority of exits serves: a join bundle has it, and lives as long as the
/// entries' authority in it.
const EXIT_LIVES: i64 = 10;
/// By how much clocks may differ.
pub(super) const SKEW_SECONDS: i64 = 3600;
/// What is before the key of Ed25519 in PKCS #8, version 1 (RFC 8410, section 7).
const PKCS8_HEAD: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

/// What all authorities are derived from. It is wiped from memory once it is dropped.
pub struct Seed(Zeroizing<[u8; SEED_BYTES]>);

impl std::fmt::Debug for Seed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seed")
    }
}

impl Seed {
    /// A new one, of a cryptographic generator.
    #[must_use]
    pub fn random() -> Self {
        Self(Zeroizing::new(rand::random()))
    }

    /// The seed of these bytes; `None`: there are not [`SEED_BYTES`].
    #[must_use]
    pub fn of(bytes: &[u8]) -> Option<Self> {
        Some(Self(Zeroizing::new(bytes.try_into().ok()?)))
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &*self.0
    }

    /// A key for what is kept for `subject`.
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

/// Whose certificates an authority signs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Those of entries.
    Entry,
    /// Those of exits.
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

/// When which authority of a row signs, and which are trusted. Times are seconds since 1970.
///
/// Each serves for two thirds of its life; then the next one signs, and certificates of the former are good for as long
/// as it lives. The next one is trusted a tenth of a life before it signs: by then it is in every gateway, and in the
/// bundles of exits.
#[derive(Debug, Clone, Copy)]
pub struct Schedule {
    begin: i64,
    life: i64,
}

impl Schedule {
    /// The row that begins when its tunnel does. `life`: at least 60 seconds.
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

    /// The number of the one that signs at `now`.
    #[must_use]
    pub fn signing(&self, now: i64) -> i64 {
        (now - self.begin).max(0) / self.step()
    }

    /// The numbers of those that are trusted at `now`, the oldest first. At most three.
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
    /// UID of its object: an object that is created again has other keys.
    pub uid: String,
    /// When it was made, in seconds since 1970.
    pub created: i64,
    /// The join generation. Authorities of entries are others for each.
    pub generation: u32,
    /// Life of an authority of entries, in seconds.
    pub life: i64,
}

impl Subject {
    /// `tunnel`, under a join generation.
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

    /// The one that signs at `now`.
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

    /// Those that are trusted at `now`, the oldest first.
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

    /// Those of entries that are, or were, in a bundle that is still good at `now`, the oldest first. At most two.
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
        // A revocation is of bundles, and they have the key of the entries' authority alone.
        let generation = match purpose {
            Purpose::Entry => self.generation,
            Purpose::Exit => 0,
        };
        // Numbers are counted by the life: with another one the same number is another time's, whose key is long known.
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
        // Positive, and never zero (RFC 5280, section 4.1.2.2).
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
            issuer: Issuer::new(params, key),
        })
    }
}

/// One authority, with its key.
pub struct Authority {
    /// SHA-256 of its certificate (DER), in hexadecimal digits.
    pub fingerprint: String,
    /// Its certificate.
    pub pem: String,
    /// Its key.
    pub key_pem: Zeroizing<String>,
    /// From when on it is trusted, in seconds since 1970.
    pub begin: i64,
    /// When it expires, in seconds since 1970.
    pub end: i64,
    pub(super) issuer: Issuer<'static, KeyPair>,
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

/// The certificates of `authorities`, one after another.
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
