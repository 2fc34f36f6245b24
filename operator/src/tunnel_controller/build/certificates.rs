//! The certificates of a tunnel's gateways. Signs due certificates into their Secrets, and builds
//! the requests to cert-manager. This module is pure, apart from random keys.
//!
//! A certificate that the spec requests is issued if there is a [`Reason`]. A certificate that
//! running gateways use is renewed even if the spec is invalid or does not request the certificate,
//! because the gateways keep running and a certificate is valid for only a day by default. The spec
//! does not affect this renewal, so an edit of a paused tunnel does not either.

mod cert_manager;
mod reason;
mod wanted;

pub(in crate::tunnel_controller) use cert_manager::pending;
pub use reason::{Reason, due};

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::core::ObjectMeta;
use muxtunnel_codes::Code;
use muxtunnel_contract::secrets;
use muxtunnel_crds::{CertificateStatus, CertificatesStatus};

use crate::certificates::CertificateError;
use crate::certificates::cert_manager::Certificate;
use crate::labels;
use crate::tunnel_controller::certifier::time;
use crate::tunnel_controller::dereference::{CertificateFacts, Joined, KnownSeed};
use crate::tunnel_controller::end::End;
use crate::tunnel_controller::holder::Holder;
use crate::tunnel_controller::problem::Problem;
use crate::tunnel_controller::records::Records;
use crate::tunnel_controller::validate::{ValidatedCertificates, ValidatedState, ValidatedTunnel};
use wanted::Wanted;

/// The state of a tunnel's certificates.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Certified {
    /// The certificates for the status.
    pub status: CertificatesStatus,
    /// The problem, if any.
    pub problem: Option<Problem>,
    /// When the entry's bundle expires, and when a newer bundle should have arrived, in seconds
    /// since 1970.
    pub joined_until: Option<(i64, i64)>,
    /// Why the last request for a newer bundle failed.
    pub not_renewed: Option<String>,
    /// The ends whose Secret has another owner. The operator creates no further pod that mounts
    /// such a Secret.
    pub taken: BTreeSet<End>,
    /// When this state was determined, in seconds since 1970.
    pub now: i64,
}

/// The certificates to issue. This type contains keys, so it does not implement `Debug`.
#[derive(Default)]
pub struct Certificates {
    /// The state without the due certificates. Once all children match their built form, the status
    /// shows this state, with the due certificates that were issued.
    pub told: Certified,
    /// The earlier certificates. The status also shows the earlier certificates until the children
    /// match their built form.
    pub before: CertificatesStatus,
    /// The certificates to issue, in this order.
    pub due: Vec<Due>,
    /// Certificates to request from cert-manager.
    pub requests: Vec<Certificate>,
    /// Certificates of cert-manager to delete.
    pub superfluous: Vec<Certificate>,
}

/// A certificate that is due.
pub struct Due {
    /// The end that uses the certificate.
    pub end: End,
    /// The Secret with the certificate, its key and the gateway's trusted authorities.
    pub secret: Secret,
    /// The record for the status.
    pub record: CertificateStatus,
    /// When the certificate expires, in seconds since 1970.
    pub until: i64,
    /// Why the certificate is issued.
    pub reason: Reason,
    /// Whether the previous certificate was issued with a lost seed.
    pub is_of_lost_seed: bool,
    /// Whether the spec requests the certificate, or the spec is not applied. Otherwise only
    /// running gateways use it, until the children match their built form.
    pub is_asked_for: bool,
}

impl Certificates {
    /// The state if only the earlier certificates are known.
    pub(super) fn known(facts: &CertificateFacts) -> Self {
        Self {
            told: Certified {
                status: facts.known.clone(),
                now: facts.now,
                ..Certified::default()
            },
            before: facts.known.clone(),
            ..Self::default()
        }
    }

    /// The certificates that `valid` requests, and the certificates of running gateways.
    pub(super) fn of_valid(
        valid: &ValidatedTunnel,
        state: &ValidatedState,
    ) -> Result<Self, CertificateError> {
        let (facts, holder, joined) = (&state.certificates, &state.holder, state.joined());
        let mut made = Self::known(facts);
        made.told.status.joined = joined.and_then(Joined::status);
        made.told.joined_until =
            joined.map(|joined| (joined.bundle.expires(), joined.bundle.renewed_by()));
        let (has_entry, has_exit) = (valid.entry.is_some(), valid.exit.is_some());
        let asked = match (&valid.certificates, &facts.seed, joined) {
            (
                ValidatedCertificates::Managed(identities, subject),
                KnownSeed::Known { seed, .. },
                _,
            ) => {
                let generation = Some(i64::from(subject.generation));
                made.told.status.keep(has_entry, has_exit);
                made.told.status.join_generation = generation.filter(|generation| *generation > 0);
                wanted::managed(valid, identities, subject, seed, facts.now)?
            }
            (ValidatedCertificates::Managed(..), seed, _) => {
                made.told.problem = seed.problem();
                Vec::new()
            }
            (ValidatedCertificates::Joined(identities), _, Some(joined)) => {
                made.told.status.keep(has_entry, has_exit);
                vec![wanted::joined(valid, identities, &joined.bundle)]
            }
            _ => {
                made.told.status = made.told.status.emptied();
                Vec::new()
            }
        };
        if matches!(valid.certificates, ValidatedCertificates::Issued(..)) {
            cert_manager::ask(&mut made, valid, facts);
        } else {
            made.superfluous = cert_manager::superfluous(facts, holder);
        }
        let others = |end: End| !asked.iter().any(|asked| asked.end == end);
        let (running, _) = running(state, others)?;
        made.add(running, holder, facts, |_| None, false)?;
        let waiting = |end: End| facts.waiting.get(&end).copied();
        made.add(asked, holder, facts, waiting, true)?;
        Ok(made)
    }

    /// The certificates of running gateways.
    pub(super) fn of_running(state: &ValidatedState) -> Result<Self, CertificateError> {
        let mut made = Self::known(&state.certificates);
        let (running, problem) = running(state, |_| true)?;
        made.told.problem = problem;
        made.add(running, &state.holder, &state.certificates, |_| None, true)?;
        Ok(made)
    }

    /// Signs the certificates of `wanted` that have a reason to be issued.
    fn add(
        &mut self,
        wanted: Vec<Wanted<'_>>,
        holder: &Holder,
        facts: &CertificateFacts,
        waiting_since: impl Fn(End) -> Option<i64>,
        is_asked_for: bool,
    ) -> Result<(), CertificateError> {
        let (uid, times) = (&holder.owner.uid, (facts.now, facts.life));
        for wanted in wanted {
            let record = facts.known.of(wanted.end);
            let since = waiting_since(wanted.end);
            let Some(reason) = reason::reason(record, &wanted, uid, times, since) else {
                continue;
            };
            let is_lost = reason::is_of_another_seed(record, &wanted);
            let signed = signed(&wanted, holder, times)?;
            self.due.push(Due {
                reason,
                is_of_lost_seed: facts.seed.is_made_here() && is_lost,
                is_asked_for,
                ..signed
            });
        }
        Ok(())
    }
}

impl KnownSeed {
    /// Why no authority is available.
    fn problem(&self) -> Option<Problem> {
        match self {
            Self::Unavailable(detail) => Some(Problem {
                code: Code::AuthorityUnavailable,
                detail: detail.clone(),
            }),
            Self::NotRead | Self::Known { .. } => None,
        }
    }

    const fn is_made_here(&self) -> bool {
        matches!(
            self,
            Self::Known {
                is_made_here: true,
                ..
            }
        )
    }
}

/// The certificates of running gateways of some ends, in their current form, or why they cannot be
/// built.
fn running(
    state: &ValidatedState,
    is_meant: impl Fn(End) -> bool,
) -> Result<(Vec<Wanted<'_>>, Option<Problem>), CertificateError> {
    let facts = &state.certificates;
    let issued: Vec<_> = facts
        .running
        .iter()
        .filter(|(end, _)| is_meant(*end))
        .cloned()
        .collect();
    if issued.is_empty() {
        return Ok((Vec::new(), None));
    }
    let issued = issued.into_iter();
    if facts.known.joined.is_some() {
        return Ok(match facts.former.as_ref().or(state.join.as_ref()) {
            Some(Ok(joined)) => {
                let entry = issued.filter(|(end, _)| *end == End::Entry);
                let wanted = entry.map(|(_, identity)| wanted::bundled(identity, &joined.bundle));
                (wanted.collect(), None)
            }
            Some(Err(problem)) => (Vec::new(), Some(problem.clone())),
            None => (Vec::new(), None),
        });
    }
    let KnownSeed::Known { seed, .. } = &facts.seed else {
        return Ok((Vec::new(), facts.seed.problem()));
    };
    let (subject, now) = (&state.subject, facts.now);
    let wanted = issued.map(|(end, identity)| wanted::derived(end, identity, subject, seed, now));
    Ok((wanted.collect::<Result<_, _>>()?, None))
}

fn signed(
    wanted: &Wanted<'_>,
    holder: &Holder,
    (now, life): (i64, i64),
) -> Result<Due, CertificateError> {
    let (end, authority) = (wanted.end, wanted.signing());
    let leaf = authority.issue(&wanted.identity, wanted::purpose(end), now, life)?;
    let data = [
        (secrets::CERTIFICATE, leaf.pem.as_bytes()),
        (secrets::KEY, leaf.key_pem.as_bytes()),
        (secrets::AUTHORITIES, wanted.trust.as_bytes()),
    ]
    .map(|(key, bytes)| (key.to_owned(), ByteString(bytes.to_vec())))
    .into();
    Ok(Due {
        end,
        secret: secret(
            holder,
            (&wanted.secret, end.component()),
            "kubernetes.io/tls",
            data,
        ),
        record: CertificateStatus {
            secret_name: wanted.secret.clone(),
            identity: Some(wanted.identity.clone()),
            issued_at: time(now),
            not_after: time(leaf.not_after),
            fingerprint: Some(leaf.fingerprint),
            authority: Some(authority.fingerprint.clone()),
            trust: Some(wanted.trust_digest()),
        },
        until: leaf.not_after,
        reason: Reason::First,
        is_of_lost_seed: false,
        is_asked_for: true,
    })
}

/// The Secret `name` for `component`.
pub(in crate::tunnel_controller) fn secret(
    holder: &Holder,
    (name, component): (&str, &str),
    type_: &str,
    data: BTreeMap<String, ByteString>,
) -> Secret {
    Secret {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(holder.namespace.clone()),
            labels: Some(labels::child(&holder.name, component)),
            owner_references: Some(vec![holder.owner.clone()]),
            ..ObjectMeta::default()
        },
        type_: Some(type_.to_owned()),
        data: Some(data),
        ..Secret::default()
    }
}
