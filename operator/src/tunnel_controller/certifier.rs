//! The operator's memory of certificates, and the seed for issuing.
//!
//! The operator may create and patch Secrets in users' namespaces, but may not read them. The
//! operator therefore reads from the status which certificates were issued, and issues none while
//! they are valid. The memory covers the time until a watch delivers the written status.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::{Client, ResourceExt};
use muxtunnel_crds::{CertificatesStatus, MuxTunnel};
use parking_lot::Mutex;

use super::records::Records;
use crate::certificates::authority::Seed;
use crate::certificates::seed::{SeedError, SeedKeeper};
use crate::settings::Settings;

/// How long an issued certificate is remembered, in seconds. Within this time, the watch delivers
/// the status that lists the certificate.
const REMEMBERED_SECONDS: i64 = 600;
/// The longest pause between two requests for a newer join bundle, in seconds.
pub(super) const ASKED_SECONDS_MAX: i64 = 3600;

/// State that outlasts reconciliations. The state contains only tunnels whose certificates were
/// issued in the last [`REMEMBERED_SECONDS`], or whose bundle was requested in the last two
/// [`ASKED_SECONDS_MAX`].
pub struct Certifier {
    seeds: SeedKeeper,
    life: i64,
    issued: Mutex<BTreeMap<String, (i64, CertificatesStatus)>>,
    asked: Mutex<BTreeMap<String, Asked>>,
}

/// The last request for a newer join bundle, and why it failed.
struct Asked {
    at: i64,
    failure: Option<String>,
}

impl Certifier {
    /// An empty memory. `client`: reads and creates the seed.
    #[must_use]
    pub fn new(client: Client, settings: &Settings) -> Self {
        let life = i64::try_from(settings.certificate_life.as_secs());
        Self {
            seeds: SeedKeeper::new(client, &settings.namespace, &settings.ca_secret),
            life: life.unwrap_or(i64::MAX / 100),
            issued: Mutex::default(),
            asked: Mutex::default(),
        }
    }

    /// Lifetime of a certificate, in seconds.
    #[must_use]
    pub const fn life(&self) -> i64 {
        self.life
    }

    /// The seed of all authorities. Creates the seed if the Secret does not contain one.
    ///
    /// # Errors
    /// [`SeedError`].
    pub async fn seed(&self) -> Result<Arc<Seed>, SeedError> {
        self.seeds.seed().await
    }

    /// Whether this operator process created the seed. If so, certificates that an earlier process
    /// issued come from another seed, which is lost.
    #[must_use]
    pub fn is_seed_made_here(&self) -> bool {
        self.seeds.is_made_here()
    }

    /// The certificates that were issued last, at `now`: from the status, or from the memory if the
    /// memory is newer.
    pub(super) fn known(&self, tunnel: &MuxTunnel, now: i64) -> CertificatesStatus {
        let status = tunnel.status.as_ref();
        let said = status.and_then(|status| status.certificates.clone());
        let said = said.unwrap_or_default();
        let mut issued = self.issued.lock();
        issued.retain(|_, (at, _)| now - *at < REMEMBERED_SECONDS);
        let uid = tunnel.uid().unwrap_or_default();
        match issued.get(&uid) {
            Some((_, remembered))
                if *remembered != said && remembered.newest() >= said.newest() =>
            {
                remembered.clone()
            }
            _ => {
                issued.remove(&uid);
                said
            }
        }
    }

    /// Remembers the certificates that were issued at `now`.
    pub(super) fn remember(&self, uid: &str, status: &CertificatesStatus, now: i64) {
        let mut issued = self.issued.lock();
        issued.insert(uid.to_owned(), (now, status.clone()));
    }

    /// Whether `pause` seconds have passed between the last request and `now`, so that a newer bundle
    /// has to be requested.
    pub(super) fn asks(&self, uid: &str, pause: i64, now: i64) -> bool {
        self.with_asked(now, |asked| {
            let last = asked.get(uid);
            last.is_none_or(|last| now - last.at >= pause)
        })
    }

    /// Records a request for a newer bundle. `failure` is the reason if the request failed.
    pub(super) fn asked(&self, uid: &str, failure: Option<String>, at: i64) {
        let asked = Asked { at, failure };
        self.with_asked(at, |all| all.insert(uid.to_owned(), asked));
    }

    /// Why the last request before `now` failed.
    pub(super) fn failure(&self, uid: &str, now: i64) -> Option<String> {
        self.with_asked(now, |asked| asked.get(uid)?.failure.clone())
    }

    fn with_asked<T>(&self, now: i64, f: impl FnOnce(&mut BTreeMap<String, Asked>) -> T) -> T {
        let mut asked = self.asked.lock();
        asked.retain(|_, asked| now - asked.at <= 2 * ASKED_SECONDS_MAX);
        f(&mut asked)
    }
}

pub(super) fn time(seconds: i64) -> Option<Time> {
    Timestamp::from_second(seconds).ok().map(Time)
}
