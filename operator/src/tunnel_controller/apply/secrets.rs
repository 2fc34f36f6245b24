//! Writes the Secrets of due certificates. This module requires a client.
//!
//! The module uses server-side apply without force. So the API server refuses to change another
//! owner's Secret, and a Secret of the operator that nobody owns gets the tunnel as its owner.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use muxtunnel_codes::Code;
use muxtunnel_crds::CertificatesStatus;
use tracing::{info, warn};

use super::cert_manager;
use crate::apply::{is_immutable, is_taken};
use crate::caches::Cluster;
use crate::certificates::join::date;
use crate::failure;
use crate::labels::MANAGER;
use crate::tunnel_controller::build::{Certificates, Certified, Due};
use crate::tunnel_controller::certifier::Certifier;
use crate::tunnel_controller::end::End;
use crate::tunnel_controller::error::CertifyError;
use crate::tunnel_controller::holder::Holder;
use crate::tunnel_controller::problem::Problem;
use crate::tunnel_controller::records::Records;

/// The result of issuing.
pub(super) struct Issued {
    told: Certified,
    before: CertificatesStatus,
    /// Whether a certificate that the spec requests was issued.
    is_by_spec: bool,
}

impl Issued {
    /// The ends whose Secret has another owner.
    pub(super) const fn taken(&self) -> &BTreeSet<End> {
        &self.told.taken
    }

    /// The result for the status. Until the children match their built form (`as_built`), the
    /// result includes the earlier certificates, because running gateways still use them.
    pub(super) fn certified(self, as_built: bool) -> Certified {
        let status = match as_built {
            true => self.told.status,
            false => self.known().clone(),
        };
        Certified {
            status,
            ..self.told
        }
    }

    /// Records a problem. The status has the first problem, and all Secrets that have another owner.
    pub(super) fn problem(&mut self, problem: Problem) {
        match &mut self.told.problem {
            Some(first)
                if first.code == problem.code && first.code == Code::CertificateSecretTaken =>
            {
                first.detail.push_str("; ");
                first.detail.push_str(&problem.detail);
            }
            Some(_) => {}
            none => *none = Some(problem),
        }
    }

    /// The Secrets that have another owner, as a text.
    pub(super) fn taken_text(&self) -> Option<&str> {
        let problem = self.told.problem.as_ref();
        let taken = problem.filter(|problem| problem.code == Code::CertificateSecretTaken);
        taken.map(|problem| problem.detail.as_str())
    }

    const fn known(&self) -> &CertificatesStatus {
        match self.is_by_spec {
            true => &self.told.status,
            false => &self.before,
        }
    }

    fn wrote(&mut self, due: Due) {
        self.before.set(due.end, due.record.clone());
        if due.is_asked_for {
            self.told.status.set(due.end, due.record);
            self.is_by_spec = true;
        }
    }

    fn refused(&mut self, due: &Due, problem: Problem) {
        if !due.is_asked_for {
            return;
        }
        if problem.code == Code::CertificateSecretTaken {
            self.told.taken.insert(due.end);
        }
        self.problem(problem);
    }
}

/// Writes due Secrets, and requests certificates from cert-manager. The result lists the issued
/// certificates even after a failure.
pub(super) async fn apply(
    cluster: &Cluster,
    certifier: &Certifier,
    holder: &Holder,
    certificates: Certificates,
) -> (Issued, Result<(), CertifyError>) {
    let Certificates {
        told,
        before,
        due,
        requests,
        superfluous,
    } = certificates;
    let mut issued = Issued {
        told,
        before,
        is_by_spec: false,
    };
    let asked = (superfluous, requests);
    let ended = match cert_manager::apply(cluster, holder, asked, &mut issued).await {
        Ok(()) => write(cluster, certifier, holder, due, &mut issued).await,
        failed => failed,
    };
    (issued, ended)
}

async fn write(
    cluster: &Cluster,
    certifier: &Certifier,
    holder: &Holder,
    all: Vec<Due>,
    issued: &mut Issued,
) -> Result<(), CertifyError> {
    for due in all {
        let secret = due.record.secret_name.as_str();
        if due.is_of_lost_seed {
            warn!(
                secret,
                "the seed of the authorities was lost, and a new seed was generated: the operator issues this tunnel's certificates again, \
                 and every join bundle that the tunnel's operator published before is invalid"
            );
        }
        if let Err(problem) = apply_secret(&cluster.client, holder, &due.secret).await? {
            issued.refused(&due, problem);
            continue;
        }
        info!(
            secret,
            identity = due.record.identity,
            until = date(due.until),
            reason = due.reason.as_str(),
            "issued a certificate"
        );
        issued.wrote(due);
        certifier.remember(&holder.owner.uid, issued.known(), issued.told.now);
    }
    Ok(())
}

/// Applies a Secret without force, so that no other owner's object is overwritten.
pub(in crate::tunnel_controller) async fn apply_secret(
    client: &Client,
    holder: &Holder,
    secret: &Secret,
) -> Result<Result<(), Problem>, CertifyError> {
    let name = secret.name_any();
    let api: Api<Secret> = Api::namespaced(client.clone(), &holder.namespace);
    let how = PatchParams::apply(MANAGER);
    match api.patch(&name, &how, &Patch::Apply(secret)).await {
        Ok(_) => Ok(Ok(())),
        // Another manager owns the differing field.
        Err(kube::Error::Api(status)) if is_taken(&status) => Ok(Err(Problem {
            code: Code::CertificateSecretTaken,
            detail: format!("Secret {name} exists and has another owner"),
        })),
        // The type differs, which is immutable, or a policy refuses the write in the same words.
        Err(kube::Error::Api(status)) if is_immutable(&status) => Ok(Err(Problem {
            code: Code::CertificateSecretTaken,
            detail: format!(
                "Secret {name} cannot be changed ({}); if the Secret has the type that the message names, another owner created it",
                status.message
            ),
        })),
        Err(source) => {
            let error = CertifyError::Apply {
                name,
                source: Box::new(source),
            };
            // A refusal does not end the step, because the operator may still apply other objects.
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
