//! Authorities and certificates for tests, generated on each call.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    SanType,
};

pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// The files of one end.
#[derive(Clone)]
pub struct Files {
    pub certificate: PathBuf,
    pub key: PathBuf,
    pub ca: PathBuf,
}

impl Authority {
    pub fn new() -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        let number = MADE.fetch_add(1, Relaxed);
        let name = format!("authority {number}");
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self {
            issuer: Issuer::new(params, key),
            pem,
        }
    }

    /// Issues a certificate for `name`, a DNS name or a URI, that is valid until `year`. Writes its
    /// files to `dir`.
    pub fn issue(&self, dir: &Path, name: &str, year: i32) -> Files {
        self.issue_until(dir, name, rcgen::date_time_ymd(year, 1, 1))
    }

    /// Works like [`Self::issue`], for a certificate that is valid until `end`.
    pub fn issue_until(&self, dir: &Path, name: &str, end: time::OffsetDateTime) -> Files {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.subject_alt_names = vec![if name.contains("://") {
            SanType::URI(name.try_into().unwrap())
        } else {
            SanType::DnsName(name.try_into().unwrap())
        }];
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = end;
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        let write = |what: &str, text: &str| {
            let file = dir.join(format!("{}.{what}.pem", name.replace('/', "-")));
            let staged = file.with_extension("new");
            std::fs::write(&staged, text).unwrap();
            std::fs::rename(&staged, &file).unwrap();
            file
        };
        Files {
            certificate: write("certificate", &certificate),
            key: write("key", &key.serialize_pem()),
            ca: write("ca", &self.pem),
        }
    }
}

/// The time `seconds` from now.
pub fn in_seconds(seconds: i64) -> time::OffsetDateTime {
    time::OffsetDateTime::now_utc() + time::Duration::seconds(seconds)
}

impl Files {
    /// The `security` field of a configuration with these files.
    pub fn security(&self, peer: &str) -> String {
        format!(
            "{{mode: Certificates, certificate: '{}', key: '{}', ca: '{}', peers: ['{peer}']}}",
            self.certificate.display(),
            self.key.display(),
            self.ca.display()
        )
    }
}
