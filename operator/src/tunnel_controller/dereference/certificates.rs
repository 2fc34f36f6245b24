//! Reads the input of certificates: the issued certificates, the issuer, and the waiting pods. This
//! module requires a client.
//!
//! The seed, a join bundle and cert-manager's Certificates are read only if the spec or running
//! gateways need them.

use std::collections::BTreeMap;
use std::sync::Arc;

use muxtunnel_crds::{CertificateStatus, CertificatesStatus, MuxTunnel, MuxTunnelSpec};

use super::{Dereferenced, Joined, Live, join};
use crate::certificates::authority::Seed;
use crate::certificates::cert_manager::Certificate;
use crate::certificates::seed::SeedError;
use crate::tunnel_controller::access::Access;
use crate::tunnel_controller::cert_manager;
use crate::tunnel_controller::certifier::Certifier;
use crate::tunnel_controller::end::End;
use crate::tunnel_controller::error::{CertifyError, Error};
use crate::tunnel_controller::holder::Holder;
use crate::tunnel_controller::issuer::{ISSUED_SUFFIX, Issuer};
use crate::tunnel_controller::pods::{end_of, waiting_since};
use crate::tunnel_controller::problem::Problem;
use crate::tunnel_controller::records::Records;

/// The input of certificates.
#[derive(Debug, Default)]
pub struct CertificateFacts {
    /// The time of the reads, in seconds since 1970.
    pub now: i64,
    /// Lifetime of a certificate, in seconds.
    pub life: i64,
    /// The issued certificates.
    pub known: CertificatesStatus,
    /// The Secret and the identity of each certificate that the operator issued for running
    /// gateways. The exit's certificate comes first.
    pub running: Vec<(End, (String, String))>,
    /// The bundle of running gateways, if the spec now names another bundle or none.
    pub former: Option<Result<Joined, Problem>>,
    /// The seed of all authorities.
    pub seed: KnownSeed,
    /// Whether to request a newer join bundle, through an entry gateway.
    pub asks: bool,
    /// For each end, the creation time of the youngest pod that has waited for some time, perhaps
    /// for its Secret.
    pub waiting: BTreeMap<End, i64>,
    /// The Certificates of cert-manager by end, or why they cannot be used.
    pub of_cert_manager: BTreeMap<End, Result<Option<Certificate>, Problem>>,
}

/// The seed, if it was read.
#[derive(Debug, Default)]
pub enum KnownSeed {
    /// No certificate depends on the seed.
    #[default]
    NotRead,
    /// A user has to act. The sentence describes how.
    Unavailable(String),
    /// The seed was read.
    Known {
        /// The seed.
        seed: Arc<Seed>,
        /// Whether this operator process created the seed. If so, certificates that an earlier
        /// process issued come from another seed, which is lost.
        is_made_here: bool,
    },
}

impl CertificateFacts {
    /// The facts from the operator's own memory.
    pub(super) fn remembered(certifier: &Certifier, tunnel: &MuxTunnel, now: i64) -> Self {
        Self {
            now,
            life: certifier.life(),
            known: certifier.known(tunnel, now),
            ..Self::default()
        }
    }
}

/// Reads all facts. `spec` is `None` if the operator applies no spec. `live` is `None` if the
/// children are not known.
pub(super) async fn read(
    access: &Access,
    spec: Option<&MuxTunnelSpec>,
    holder: &Holder,
    live: Option<&Live>,
    named: &mut Dereferenced,
) -> Result<(), Error> {
    let carrier = spec.and_then(|spec| spec.carrier.as_ref());
    let from = carrier.and_then(|carrier| carrier.join_from.as_ref());
    let from = from.map(|from| from.secret_name.as_str());
    let issuer = spec.map(Issuer::of).filter(|_| from.is_none());
    let facts = &mut named.certificates;
    facts.running = running(&facts.known, holder, live);
    let (certifier, now) = (&access.memory.certifier, facts.now);
    facts.waiting = live.map(|live| waiting(live, now)).unwrap_or_default();
    let joined = facts.known.joined.as_ref();
    let joined = joined.filter(|_| !facts.running.is_empty());
    if let Some(former) = joined.filter(|joined| from != Some(&joined.secret_name)) {
        match join::join(access, holder, &former.secret_name, now).await {
            Err(error) if spec.is_none() => return Err(error),
            // The spec does not name this bundle, so a failed read does not stop the
            // reconciliation.
            former => facts.former = former.ok(),
        }
    }
    let issues = issuer == Some(Issuer::Operator);
    if issues || !facts.running.is_empty() && joined.is_none() {
        match seed(certifier).await {
            Err(error) if issues || spec.is_none() => return Err(error.into()),
            seed => facts.seed = seed.unwrap_or_default(),
        }
    }
    if let Some(from) = from {
        let joined = join::join(access, holder, from, now).await?;
        facts.asks = joined.as_ref().is_ok_and(|joined| {
            let uid = &holder.owner.uid;
            certifier.asks(uid, joined.pause(), now)
        });
        named.join = Some(joined);
    }
    for end in asked_of_cert_manager(spec, issuer, &facts.known) {
        let found = certificate(access, holder, end).await?;
        facts.of_cert_manager.insert(end, found);
    }
    Ok(())
}

async fn seed(certifier: &Certifier) -> Result<KnownSeed, CertifyError> {
    match certifier.seed().await {
        Ok(seed) => Ok(KnownSeed::Known {
            seed,
            is_made_here: certifier.is_seed_made_here(),
        }),
        Err(SeedError::Unavailable(detail)) => Ok(KnownSeed::Unavailable(detail)),
        Err(error) => Err(error.into()),
    }
}

/// The certificates that the operator issued for running gateways and renews. If `live` is `None`,
/// gateways may be running.
fn running(
    known: &CertificatesStatus,
    holder: &Holder,
    live: Option<&Live>,
) -> Vec<(End, (String, String))> {
    let ends = [End::Exit, End::Entry].into_iter();
    let running = ends.filter_map(|end| {
        let record = known.of(end);
        let identity = record.and_then(|record| issued_identity(record, &holder.name, end));
        let is_gone = live.is_some_and(|live| !live.deployments.contains_key(&end));
        let identity = identity.filter(|_| !is_gone);
        identity.map(|identity| (end, identity))
    });
    running.collect()
}

/// The Secret and the identity of an issued certificate. `None` for a user's certificate, which has
/// no time of issue.
fn issued_identity(record: &CertificateStatus, name: &str, end: End) -> Option<(String, String)> {
    let own = format!("{}-tls", end.child_of(name));
    let is_own = record.secret_name == own && record.issued_at.is_some();
    let identity = record.identity.clone().filter(|_| is_own)?;
    Some((own, identity))
}

fn waiting(live: &Live, now: i64) -> BTreeMap<End, i64> {
    let mut waiting = BTreeMap::new();
    for pod in live.pods.iter().flatten() {
        let since = waiting_since(pod, now);
        let since = since.filter(|_| pod.metadata.deletion_timestamp.is_none());
        if let (Some(end), Some(since)) = (end_of(pod), since) {
            let youngest = waiting.entry(end).or_insert(since);
            *youngest = since.max(*youngest);
        }
    }
    waiting
}

/// The ends whose Certificates are or were requested.
fn asked_of_cert_manager(
    spec: Option<&MuxTunnelSpec>,
    issuer: Option<Issuer<'_>>,
    known: &CertificatesStatus,
) -> Vec<End> {
    let Some(spec) = spec else {
        return Vec::new();
    };
    let ends = [End::Exit, End::Entry].into_iter();
    let was_issued = |record: &CertificateStatus| record.secret_name.ends_with(ISSUED_SUFFIX);
    match issuer {
        Some(Issuer::CertManager(_)) => {
            let side = spec.side;
            ends.filter(|end| match end {
                End::Exit => side.has_exit(),
                _ => side.has_entry(),
            })
            .collect()
        }
        _ if ends
            .clone()
            .any(|end| known.of(end).is_some_and(was_issued)) =>
        {
            ends.collect()
        }
        _ => Vec::new(),
    }
}

async fn certificate(
    access: &Access,
    holder: &Holder,
    end: End,
) -> Result<Result<Option<Certificate>, Problem>, CertifyError> {
    let name = end.child_of(&holder.name);
    match access.reader.get(&holder.namespace, &name).await {
        Ok(found) => Ok(Ok(found)),
        Err(error) => Ok(Err(cert_manager::missing(error)?)),
    }
}
