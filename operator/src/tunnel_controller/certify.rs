//! Steps 4 and 7: sees to it that the gateways have certificates. Client required; [`plan`] is the pure part.
//!
//! In: the tunnel, its bundle where it joins by one, and what was issued before. Out: [`Certified`], which goes into the
//! status. [`Certifier::issue`] comes before the Deployments, whose pods do not start without their Secrets;
//! [`Certifier::settle`] after the pods were looked at: it publishes the join bundle, whose address a Service says, and
//! issues anew what pods wait for.
//!
//! The operator may create and patch Secrets of users' namespaces, and look at none. So it goes by the status: what was
//! issued stands there, and a reconciliation that finds it good writes nothing. Secrets are written by server-side apply
//! without force: one that belongs to somebody else is refused by the API server, and left alone.

mod cert_manager;
pub mod plan;
mod records;
pub mod renewal;
mod running;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::core::ObjectMeta;
use kube::{Api, Client, ResourceExt};
use muxtunnel_codes::Code;
use muxtunnel_contract::secrets;
use muxtunnel_crds::{CertificateStatus, CertificatesStatus, JoinStatus, MuxTunnel};
use parking_lot::Mutex;
use tracing::{info, warn};

use super::apply::Applied;
use super::end::End;
use super::error::CertifyError;
use super::observe::Seen;
use super::problem::Problem;
use super::validate::{ISSUED_SUFFIX, ValidatedCertificates, ValidatedTunnel};
use crate::apply::{is_immutable, is_taken};
use crate::caches::Cluster;
use crate::certificates::join::Bundle;
use crate::certificates::seed::{SeedError, SeedKeeper};
use crate::failure;
use crate::labels::{self, MANAGER};
use crate::settings::Settings;
use plan::{Reason, Wanted};
use records::Records;
use renewal::{Joined, Renewals};

/// How long what was issued is remembered here. By then the status has it, and the watch has brought that back.
const REMEMBERED_SECONDS: i64 = 600;

/// What came out.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Certified {
    /// What stands in the status.
    pub status: CertificatesStatus,
    /// Why not all is as it should be.
    pub problem: Option<Problem>,
    /// When the bundle that the entry joins by expires, and by when a newer one has come, in seconds since 1970.
    pub joined_until: Option<(i64, i64)>,
    /// Why none has come, where it was asked for.
    pub not_renewed: Option<String>,
    /// The ends whose Secret is somebody else's: no further pod may mount it.
    pub taken: BTreeSet<End>,
    /// When all this was looked at, in seconds since 1970.
    pub now: i64,
}

/// The tunnel that certificates are for.
#[derive(Clone, Copy)]
struct Holder<'a> {
    name: &'a str,
    namespace: &'a str,
    owner: &'a OwnerReference,
}

impl<'a> From<&'a ValidatedTunnel> for Holder<'a> {
    fn from(valid: &'a ValidatedTunnel) -> Self {
        Self {
            name: &valid.name,
            namespace: &valid.namespace,
            owner: &valid.owner,
        }
    }
}

/// What tells the time, in seconds since 1970.
pub type Clock = Arc<dyn Fn() -> i64 + Send + Sync>;

/// Sees to certificates.
pub struct Certifier {
    client: Client,
    seeds: SeedKeeper,
    life: i64,
    clock: Clock,
    issued: Mutex<BTreeMap<String, (i64, CertificatesStatus)>>,
    renewals: Renewals,
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
            seeds: SeedKeeper::new(client.clone(), &settings.namespace, &settings.ca_secret),
            client,
            life: life.unwrap_or(i64::MAX / 100),
            clock,
            issued: Mutex::default(),
            renewals: Renewals::default(),
        }
    }

    /// Seconds since 1970.
    #[must_use]
    pub fn now(&self) -> i64 {
        (self.clock)()
    }

    /// Issues what is not there or no longer good.
    ///
    /// # Errors
    /// [`CertifyError`].
    pub async fn issue(
        &self,
        tunnel: &MuxTunnel,
        valid: &ValidatedTunnel,
        joined: Option<&Joined>,
    ) -> Result<Certified, CertifyError> {
        let bundle = joined.map(|joined| &joined.bundle);
        let mut certified = Certified {
            status: self.known(tunnel),
            now: self.now(),
            joined_until: bundle.map(|bundle| (bundle.expires(), bundle.renewed_by())),
            ..Certified::default()
        };
        certified.status.joined = joined.and_then(Joined::status);
        let was_issued = |record: &CertificateStatus| record.secret_name.ends_with(ISSUED_SUFFIX);
        let ends = [&certified.status.entry, &certified.status.exit];
        let is_issued = matches!(valid.certificates, ValidatedCertificates::Issued(..));
        if !is_issued
            && ends.into_iter().flatten().any(was_issued)
            && let Err(error) = self.delete_certificates(valid).await
        {
            // Without cert-manager, or the right to ask it, there is nothing to delete.
            plan::cert_manager_problem(&valid.name, error)?;
        }
        self.issue_ends(valid, bundle, &mut certified, |_| None)
            .await?;
        Ok(certified)
    }

    /// Publishes the join bundle, takes over what the exit elsewhere offers, and issues anew what `seen` shows that pods
    /// wait for.
    ///
    /// # Errors
    /// [`CertifyError`].
    pub async fn settle(
        &self,
        cluster: &Cluster,
        valid: &ValidatedTunnel,
        joined: Option<&Joined>,
        (applied, seen): (&Applied, &Seen),
        mut certified: Certified,
    ) -> Result<Certified, CertifyError> {
        let problem = certified.problem.as_ref().map(|problem| problem.code);
        if matches!(
            problem,
            Some(Code::AuthorityUnavailable | Code::IssuerMissing)
        ) {
            return Ok(certified);
        }
        let waiting_since = |end| {
            let pods = seen.pods.iter().filter(|pod| pod.end == end);
            pods.filter_map(|pod| pod.waiting_since).max()
        };
        if seen.pods.iter().any(|pod| pod.waiting_since.is_some()) {
            let bundle = joined.map(|joined| &joined.bundle);
            self.issue_ends(valid, bundle, &mut certified, waiting_since)
                .await?;
        }
        if let Some(joined) = joined {
            let heard = self.hear(cluster, valid, joined, seen.offer.as_ref());
            certified.not_renewed = heard.await?;
        }
        self.publish(valid, applied, &mut certified).await?;
        Ok(certified)
    }

    async fn issue_ends(
        &self,
        valid: &ValidatedTunnel,
        bundle: Option<&Bundle>,
        certified: &mut Certified,
        waiting_since: impl Fn(End) -> Option<i64>,
    ) -> Result<(), CertifyError> {
        let now = certified.now;
        let wanted = match (&valid.certificates, bundle) {
            (ValidatedCertificates::Managed(identities, subject), _) => {
                match self.seeds.seed().await {
                    Ok(seed) => plan::managed(valid, identities, subject, &seed, now)?,
                    Err(SeedError::Unavailable(detail)) => {
                        let code = Code::AuthorityUnavailable;
                        certified.problem = Some(Problem { code, detail });
                        return Ok(());
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            (ValidatedCertificates::Joined(identities), Some(bundle)) => {
                vec![plan::joined(valid, identities, bundle)]
            }
            (ValidatedCertificates::Issued(..), _) => {
                return self.ask_cert_manager(valid, certified).await;
            }
            _ => {
                certified.status = certified.status.emptied();
                return Ok(());
            }
        };
        certified.status.keep(valid);
        if let ValidatedCertificates::Managed(_, subject) = &valid.certificates {
            let generation = Some(i64::from(subject.generation));
            certified.status.join_generation = generation.filter(|generation| *generation > 0);
        }
        self.issue_due(valid.into(), wanted, certified, waiting_since)
            .await
    }

    /// Issues those of `wanted` for which there is a reason.
    async fn issue_due(
        &self,
        holder: Holder<'_>,
        wanted: Vec<Wanted<'_>>,
        certified: &mut Certified,
        waiting_since: impl Fn(End) -> Option<i64>,
    ) -> Result<(), CertifyError> {
        let (uid, now) = (&holder.owner.uid, certified.now);
        for wanted in wanted {
            let record = certified.status.of(wanted.end);
            let since = waiting_since(wanted.end);
            let reason = plan::reason(record, &wanted, uid, (now, self.life), since);
            let Some(reason) = reason else { continue };
            if self.seeds.is_made_here() && plan::is_of_another_seed(record, &wanted) {
                warn!(
                    secret = wanted.secret,
                    "the seed of the authorities was lost and is made anew: this tunnel's certificates are issued anew, \
                     and every join bundle that it had published is worthless"
                );
            }
            match self.issue_one(holder, &wanted, now, reason).await? {
                Ok(record) => {
                    certified.status.set(wanted.end, record);
                    self.remember(uid, &certified.status, now);
                }
                Err(problem) => {
                    if problem.code == Code::CertificateSecretTaken {
                        certified.taken.insert(wanted.end);
                    }
                    certified.problem.get_or_insert(problem);
                }
            }
        }
        Ok(())
    }

    async fn issue_one(
        &self,
        holder: Holder<'_>,
        wanted: &Wanted<'_>,
        now: i64,
        reason: Reason,
    ) -> Result<Result<CertificateStatus, Problem>, CertifyError> {
        let leaf =
            wanted
                .signing()
                .issue(&wanted.identity, plan::purpose(wanted.end), now, self.life)?;
        let data = [
            (secrets::CERTIFICATE, leaf.pem.as_bytes()),
            (secrets::KEY, leaf.key_pem.as_bytes()),
            (secrets::AUTHORITIES, wanted.trust.as_bytes()),
        ]
        .map(|(key, bytes)| (key.to_owned(), ByteString(bytes.to_vec())))
        .into();
        let labels = labels::child(holder.name, wanted.end.component());
        let secret = secret(holder, &wanted.secret, "kubernetes.io/tls", labels, data);
        if let Err(problem) = self.apply_secret(holder, &secret).await? {
            return Ok(Err(problem));
        }
        info!(
            secret = wanted.secret,
            identity = wanted.identity,
            until = crate::certificates::join::date(leaf.not_after),
            reason = reason.as_str(),
            "issued a certificate"
        );
        Ok(Ok(CertificateStatus {
            secret_name: wanted.secret.clone(),
            identity: Some(wanted.identity.clone()),
            issued_at: time(now),
            not_after: time(leaf.not_after),
            fingerprint: Some(leaf.fingerprint),
            authority: Some(wanted.signing().fingerprint.clone()),
            trust: Some(wanted.trust_digest()),
        }))
    }

    /// Without force, so that nothing of somebody else's is written over.
    async fn apply_secret(
        &self,
        holder: Holder<'_>,
        secret: &Secret,
    ) -> Result<Result<(), Problem>, CertifyError> {
        let name = secret.name_any();
        let api: Api<Secret> = Api::namespaced(self.client.clone(), holder.namespace);
        let how = PatchParams::apply(MANAGER);
        match api.patch(&name, &how, &Patch::Apply(secret)).await {
            Ok(_) => Ok(Ok(())),
            // What differs belongs to another manager, or is the type, which never changes.
            Err(kube::Error::Api(status)) if is_taken(&status) || is_immutable(&status) => {
                Ok(Err(Problem {
                    code: Code::CertificateSecretTaken,
                    detail: format!(
                        "Secret {name} exists and is not the operator's: delete it, or rename the tunnel"
                    ),
                }))
            }
            Err(source) => {
                let error = CertifyError::Apply {
                    name,
                    source: Box::new(source),
                };
                // Another object may be applied all the same.
                match failure::code(&error) {
                    code @ (Code::ApiRefused | Code::WriteConflict) => Ok(Err(Problem {
                        code,
                        detail: failure::chain(&error),
                    })),
                    _ => Err(error),
                }
            }
        }
    }

    async fn publish(
        &self,
        valid: &ValidatedTunnel,
        applied: &Applied,
        certified: &mut Certified,
    ) -> Result<(), CertifyError> {
        let ValidatedCertificates::Managed(identities, subject) = &valid.certificates else {
            return Ok(());
        };
        if valid.entry.is_some() {
            return Ok(());
        }
        let address = match plan::address(valid, applied) {
            Ok(address) => address,
            Err(detail) => {
                let code = Code::JoinAddressMissing;
                certified.problem.get_or_insert(Problem { code, detail });
                return Ok(());
            }
        };
        let now = certified.now;
        let seed = self.seeds.seed().await?;
        let bundle = plan::bundle(address, identities, subject, &seed, now)?;
        let (name, digest) = (format!("{}-join", valid.name), bundle.digest());
        let known = certified.status.join.as_ref();
        if known.is_some_and(|known| known.digest == digest && known.secret_name == name) {
            return Ok(());
        }
        let labels = labels::child(&valid.name, "join");
        let secret = secret(
            valid.into(),
            &name,
            secrets::JOIN_TYPE,
            labels,
            bundle.data(),
        );
        if let Err(problem) = self.apply_secret(valid.into(), &secret).await? {
            certified.problem.get_or_insert(problem);
            return Ok(());
        }
        info!(
            secret = name,
            until = crate::certificates::join::date(bundle.expires()),
            generation = subject.generation,
            "published a join bundle"
        );
        certified.status.join = time(bundle.expires()).map(|expires| JoinStatus {
            secret_name: name,
            address: bundle.address,
            generation: subject.generation.into(),
            expires,
            digest,
        });
        self.remember(&valid.owner.uid, &certified.status, now);
        Ok(())
    }

    /// What was issued last: as the status says, unless that is older than what is remembered here.
    fn known(&self, tunnel: &MuxTunnel) -> CertificatesStatus {
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

    fn remember(&self, uid: &str, status: &CertificatesStatus, now: i64) {
        let mut issued = self.issued.lock();
        issued.insert(uid.to_owned(), (now, status.clone()));
    }
}

fn secret(
    holder: Holder<'_>,
    name: &str,
    type_: &str,
    labels: BTreeMap<String, String>,
    data: BTreeMap<String, ByteString>,
) -> Secret {
    Secret {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(holder.namespace.to_owned()),
            labels: Some(labels),
            owner_references: Some(vec![holder.owner.clone()]),
            ..ObjectMeta::default()
        },
        type_: Some(type_.to_owned()),
        data: Some(data),
        ..Secret::default()
    }
}

fn time(seconds: i64) -> Option<Time> {
    Timestamp::from_second(seconds).ok().map(Time)
}
