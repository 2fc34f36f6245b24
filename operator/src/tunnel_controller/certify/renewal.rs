//! How entries elsewhere come to the next join bundle. Client required; [`crate::certificates::offer`] is the pure part.
//!
//! The exit's side: [`Certifier::offer`] goes into the configuration of the exits, which give it to entries that ask. The
//! entry's side: one of its gateways is asked now and then ([`Certifier::asks`]), through the tunnel; what comes is
//! checked and kept ([`Certifier::hear`]), in a ConfigMap beside the tunnel, sealed by the seed of this operator; from
//! then on it counts instead of the copy ([`Certifier::newest`]).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams};
use kube::core::ObjectMeta;
use kube::{Api, ResourceExt};
use muxtunnel_codes::Code;
use muxtunnel_crds::{JoinedStatus, MuxTunnel};
use parking_lot::Mutex;
use tracing::{info, warn};

use super::{Certifier, plan, time};
use crate::apply::{is_owned, owner_reference};
use crate::caches::Cluster;
use crate::certificates::authority::Purpose;
use crate::certificates::join::{Bundle, date};
use crate::certificates::offer::{self, Kept};
use crate::certificates::seed::SeedError;
use crate::labels::{self, MANAGER};
use crate::tunnel_controller::error::CertifyError;
use crate::tunnel_controller::problem::Problem;
use crate::tunnel_controller::validate::{ValidatedCertificates, ValidatedTunnel};

/// The ConfigMap's key.
const KEY: &str = "bundle";
/// A newer bundle is asked for this often in a bundle's life...
const ASKED_OF_LIFE: i64 = 40;
/// ...but not more often, and not more rarely, than this, in seconds.
const ASKED_SECONDS: (i64, i64) = (10, 3600);

/// What an entry joins by.
#[derive(Debug)]
pub struct Joined {
    /// The newest bundle.
    pub bundle: Bundle,
    /// The Secret with the copy that somebody made.
    secret_name: String,
    /// Digest of that copy.
    copy: String,
    /// `bundle` came through the tunnel.
    is_renewed: bool,
}

impl Joined {
    /// By `copy`, of the Secret `secret_name`, to which nothing newer is known.
    #[must_use]
    pub fn by_copy(secret_name: &str, copy: Bundle) -> Self {
        Self {
            secret_name: secret_name.to_owned(),
            copy: copy.digest(),
            bundle: copy,
            is_renewed: false,
        }
    }

    pub(super) fn status(&self) -> Option<JoinedStatus> {
        Some(JoinedStatus {
            secret_name: self.secret_name.clone(),
            expires: time(self.bundle.expires())?,
            renewed: self.is_renewed,
        })
    }

    fn pause(&self) -> i64 {
        let authority = &self.bundle.entry_authority;
        let (least, most) = ASKED_SECONDS;
        ((authority.end - authority.begin) / ASKED_OF_LIFE).clamp(least, most)
    }
}

/// When newer bundles were asked for last, by UID, and why none came. Holds the tunnels of the last hours.
#[derive(Default)]
pub struct Renewals(Mutex<BTreeMap<String, Asked>>);

struct Asked {
    at: i64,
    failure: Option<String>,
}

impl Renewals {
    fn with<T>(&self, now: i64, f: impl FnOnce(&mut BTreeMap<String, Asked>) -> T) -> T {
        let mut asked = self.0.lock();
        asked.retain(|_, asked| now - asked.at <= 2 * ASKED_SECONDS.1);
        f(&mut asked)
    }
}

impl Certifier {
    /// What exits give to entries elsewhere that joined by a bundle that is still good; `None`: there are none, or no
    /// bundle was published yet.
    ///
    /// # Errors
    /// [`CertifyError`].
    pub async fn offer(
        &self,
        tunnel: &MuxTunnel,
        valid: &ValidatedTunnel,
    ) -> Result<Option<String>, CertifyError> {
        let ValidatedCertificates::Managed(identities, subject) = &valid.certificates else {
            return Ok(None);
        };
        let published = self.known(tunnel).join;
        let published = published.filter(|join| join.generation == i64::from(subject.generation));
        let Some(published) = published.filter(|_| valid.entry.is_none()) else {
            return Ok(None);
        };
        let seed = match self.seeds.seed().await {
            Ok(seed) => seed,
            // It is said where certificates are issued.
            Err(SeedError::Unavailable(_)) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let now = self.now();
        let bundle = plan::bundle(published.address, identities, subject, &seed, now)?;
        let holders = subject.published(&seed, now)?;
        let signer = subject.signing(&seed, Purpose::Exit, now)?;
        Ok(Some(offer::offer(&bundle, &holders, &signer)?))
    }

    /// What `tunnel` joins by: `copy`, or the bundle that followed it through the tunnel; or why it cannot.
    ///
    /// # Errors
    /// [`CertifyError`].
    pub async fn newest(
        &self,
        cluster: &Cluster,
        tunnel: &MuxTunnel,
        copy: Result<Bundle, Problem>,
    ) -> Result<Result<Joined, Problem>, CertifyError> {
        let carrier = tunnel.spec.carrier.as_ref();
        let from = carrier.and_then(|carrier| carrier.join_from.as_ref());
        let secret_name = from.map_or_else(String::new, |from| from.secret_name.clone());
        let joined = match self.followed(cluster, tunnel, &secret_name, copy).await? {
            Ok(joined) => joined,
            Err(problem) => return Ok(Err(problem)),
        };
        let leads = carrier.is_some_and(|carrier| {
            let address = joined.bundle.address.as_ref();
            carrier.address.is_some() || carrier.rendezvous.is_some() || address.is_some()
        });
        if !leads {
            let detail = format!(
                "Secret {secret_name} has no key address: say where the exit is by carrier.address or \
                 carrier.rendezvous"
            );
            let code = Code::JoinBundleInvalid;
            return Ok(Err(Problem { code, detail }));
        }
        Ok(Ok(joined))
    }

    /// `copy`, of the Secret `secret_name`, or the bundle that followed it; or why neither is good.
    pub(super) async fn followed(
        &self,
        cluster: &Cluster,
        tunnel: &MuxTunnel,
        secret_name: &str,
        copy: Result<Bundle, Problem>,
    ) -> Result<Result<Joined, Problem>, CertifyError> {
        let copy = match copy {
            Ok(copy) => copy,
            Err(problem) => return Ok(Err(problem)),
        };
        let kept = self.kept(cluster, tunnel, &copy).await?;
        let kept = kept.filter(|kept| kept.expires() >= copy.expires());
        let mut joined = Joined::by_copy(secret_name, copy);
        if let Some(kept) = kept {
            joined.bundle = kept;
            joined.is_renewed = true;
        }
        Ok(match joined.bundle.good_at(self.now()) {
            Ok(()) => Ok(joined),
            Err(expired) => Err(Problem {
                code: expired.code,
                detail: format!("Secret {secret_name} {}", expired.what),
            }),
        })
    }

    /// The bundle that was kept and follows `copy`.
    async fn kept(
        &self,
        cluster: &Cluster,
        tunnel: &MuxTunnel,
        copy: &Bundle,
    ) -> Result<Option<Bundle>, CertifyError> {
        let (namespace, name) = (tunnel.namespace().unwrap_or_default(), tunnel.name_any());
        let Some(owner) = owner_reference(tunnel) else {
            return Ok(None);
        };
        let known = cluster
            .caches
            .config_maps
            .get(&namespace, &kept_in(&name))?;
        let known = known.filter(|known| is_owned(known.as_ref(), &owner));
        let sealed = known.and_then(|known| known.data.as_ref()?.get(KEY).cloned());
        let Some(sealed) = sealed else {
            return Ok(None);
        };
        let seed = match self.seeds.seed().await {
            Ok(seed) => seed,
            Err(SeedError::Unavailable(detail)) => {
                warn!(detail, "the newer join bundle that was kept cannot be read");
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        let key = seed.storage_key(&owner.uid)?;
        Ok(Kept::open(&key, &copy.digest(), &sealed))
    }

    /// Whether an entry is to be asked for a newer bundle.
    #[must_use]
    pub fn asks(&self, valid: &ValidatedTunnel, joined: Option<&Joined>) -> bool {
        let now = self.now();
        joined.is_some_and(|joined| {
            let asked = |asked: &mut BTreeMap<String, Asked>| {
                let last = asked.get(&valid.owner.uid);
                last.is_none_or(|last| now - last.at >= joined.pause())
            };
            self.renewals.with(now, asked)
        })
    }

    /// Keeps the bundle in `offer` where it is newer than what `joined` has; what is written wakes the next reconciliation, which
    /// issues by it. Returns why none came, if one was asked for in vain.
    pub(super) async fn hear(
        &self,
        cluster: &Cluster,
        valid: &ValidatedTunnel,
        joined: &Joined,
        offer: Option<&Result<String, String>>,
    ) -> Result<Option<String>, CertifyError> {
        let (now, uid) = (self.now(), &valid.owner.uid);
        let Some(offer) = offer else {
            let said = |asked: &mut BTreeMap<String, Asked>| asked.get(uid)?.failure.clone();
            return Ok(self.renewals.with(now, said));
        };
        let newer = match offer {
            Ok(offer) => offer::accept(offer, &joined.bundle),
            Err(failure) => Err(failure.clone()),
        };
        let newer = newer.and_then(|newer| {
            let expired = newer.as_ref().and_then(|newer| newer.good_at(now).err());
            expired.map_or(Ok(newer), |expired| {
                Err(format!("what the exit offers {}", expired.what))
            })
        });
        let failure = match newer {
            Ok(Some(newer)) => self.keep(cluster, valid, joined, &newer).await?.err(),
            Ok(None) => None,
            Err(failure) => Some(failure),
        };
        let asked = Asked {
            at: now,
            failure: failure.clone(),
        };
        self.renewals
            .with(now, |all| all.insert(uid.clone(), asked));
        Ok(failure)
    }

    async fn keep(
        &self,
        cluster: &Cluster,
        valid: &ValidatedTunnel,
        joined: &Joined,
        newer: &Bundle,
    ) -> Result<Result<(), String>, CertifyError> {
        let (name, namespace) = (kept_in(&valid.name), &valid.namespace);
        let known = cluster.caches.config_maps.get(namespace, &name)?;
        if known.is_some_and(|known| !is_owned(known.as_ref(), &valid.owner)) {
            return Ok(Err(format!(
                "ConfigMap {name} exists and is not the tunnel's: delete it, or rename the tunnel"
            )));
        }
        let key = self.seeds.seed().await?.storage_key(&valid.owner.uid)?;
        let sealed = Kept::seal(&key, &joined.copy, newer);
        let config_map = ConfigMap {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                namespace: Some(namespace.clone()),
                labels: Some(labels::child(&valid.name, "join")),
                owner_references: Some(vec![valid.owner.clone()]),
                ..ObjectMeta::default()
            },
            data: sealed.map(|sealed| [(KEY.to_owned(), sealed)].into()),
            ..ConfigMap::default()
        };
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), namespace);
        let how = PatchParams::apply(MANAGER).force();
        let written = api.patch(&name, &how, &Patch::Apply(&config_map)).await;
        let written = written.map_err(|error| CertifyError::Keep(Box::new(error)))?;
        cluster.caches.config_maps.wrote(&written);
        info!(
            config_map = name,
            until = date(newer.expires()),
            "a newer join bundle came through the tunnel"
        );
        Ok(Ok(()))
    }
}

/// The ConfigMap of the tunnel `name` with the bundle that came through it.
fn kept_in(name: &str) -> String {
    format!("{name}-join")
}
