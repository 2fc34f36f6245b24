//! What the operator remembers of certificates, and the clock and the seed that they are issued by.
//!
//! The operator may create and patch Secrets of users' namespaces, and look at none. So it goes by the status: what was
//! issued stands there, and a reconciliation that finds it good writes nothing. Until a watch has brought that status
//! back, what was issued is remembered here.

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

/// How long what was issued is remembered here. By then the status has it, and the watch has brought that back.
const REMEMBERED_SECONDS: i64 = 600;
/// The longest pause between two questions for a newer join bundle, in seconds.
pub(super) const ASKED_SECONDS_MAX: i64 = 3600;

/// What tells the time, in seconds since 1970.
pub type Clock = Arc<dyn Fn() -> i64 + Send + Sync>;

/// What outlasts reconciliations. Bounded: tunnels of the last minutes, and of the last hours.
pub struct Certifier {
    seeds: SeedKeeper,
    life: i64,
    clock: Clock,
    issued: Mutex<BTreeMap<String, (i64, CertificatesStatus)>>,
    asked: Mutex<BTreeMap<String, Asked>>,
}

/// When a newer join bundle was asked for last, and why none came.
struct Asked {
    at: i64,
    failure: Option<String>,
}

impl Certifier {
    /// One that goes by the system's clock.
    #[must_use]
    pub fn new(client: Client, settings: &Settings) -> Self {
        let clock = Arc::new(|| Timestamp::now().as_second());
        Self::with_clock(client, settings, clock)
    }

    /// One that goes by `clock`.
    #[must_use]
    pub fn with_clock(client: Client, settings: &Settings, clock: Clock) -> Self {
        let life = i64::try_from(settings.certificate_life.as_secs());
        Self {
            seeds: SeedKeeper::new(client, &settings.namespace, &settings.ca_secret),
            life: life.unwrap_or(i64::MAX / 100),
            clock,
            issued: Mutex::default(),
            asked: Mutex::default(),
        }
    }

    /// Seconds since 1970.
    #[must_use]
    pub fn now(&self) -> i64 {
        (self.clock)()
    }

    /// Life of a certificate, in seconds.
    #[must_use]
    pub const fn life(&self) -> i64 {
        self.life
    }

    /// What all authorities are derived from. It is made where there is none.
    ///
    /// # Errors
    /// [`SeedError`].
    pub async fn seed(&self) -> Result<Arc<Seed>, SeedError> {
        self.seeds.seed().await
    }

    /// Whether the seed was made here, by this very operator.
    #[must_use]
    pub fn is_seed_made_here(&self) -> bool {
        self.seeds.is_made_here()
    }

    /// What was issued last: as the status says, unless that is older than what is remembered here.
    pub(super) fn known(&self, tunnel: &MuxTunnel) -> CertificatesStatus {
        let status = tunnel.status.as_ref();
        let said = status.and_then(|status| status.certificates.clone());
        let said = said.unwrap_or_default();
        let mut issued = self.issued.lock();
        let now = self.now();
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

    /// What was issued at `now`.
    pub(super) fn remember(&self, uid: &str, status: &CertificatesStatus, now: i64) {
        let mut issued = self.issued.lock();
        issued.insert(uid.to_owned(), (now, status.clone()));
    }

    /// Whether a newer bundle is to be asked for, `pause` seconds after it was the last time.
    pub(super) fn asks(&self, uid: &str, pause: i64) -> bool {
        let now = self.now();
        self.with_asked(now, |asked| {
            let last = asked.get(uid);
            last.is_none_or(|last| now - last.at >= pause)
        })
    }

    /// A newer bundle was asked for; `failure`: why none came.
    pub(super) fn asked(&self, uid: &str, failure: Option<String>) {
        let at = self.now();
        let asked = Asked { at, failure };
        self.with_asked(at, |all| all.insert(uid.to_owned(), asked));
    }

    /// Why none came the last time.
    pub(super) fn failure(&self, uid: &str) -> Option<String> {
        self.with_asked(self.now(), |asked| asked.get(uid)?.failure.clone())
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
