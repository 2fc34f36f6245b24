//! Certificates to request from cert-manager, and to delete. Pure.

use kube::ResourceExt;
use kube::core::ObjectMeta;
use muxtunnel_codes::Code;

use super::{Certificates, wanted};
use crate::apply::is_owned;
use crate::certificates::cert_manager::Certificate;
use crate::labels;
use crate::tunnel_controller::cert_manager::foreign;
use crate::tunnel_controller::dereference::CertificateFacts;
use crate::tunnel_controller::end::End;
use crate::tunnel_controller::holder::Holder;
use crate::tunnel_controller::problem::Problem;
use crate::tunnel_controller::validate::{ValidatedCertificates, ValidatedTunnel};

/// Requests Certificates that are missing or differ. cert-manager issues them.
pub(super) fn ask(made: &mut Certificates, valid: &ValidatedTunnel, facts: &CertificateFacts) {
    for (end, certificate) in certificates(valid, facts.life) {
        let name = certificate.name_any();
        let problem = match facts.of_cert_manager.get(&end) {
            Some(Err(problem)) => Some(problem.clone()),
            Some(Ok(Some(live))) if !is_owned(live, &valid.owner) => {
                made.told.taken.insert(end);
                Some(foreign(&name))
            }
            Some(Ok(Some(live))) if live.spec == certificate.spec => pending(live),
            _ => {
                made.requests.push(certificate);
                None
            }
        };
        made.told.problem = made.told.problem.take().or(problem);
    }
}

/// Why `certificate` is not issued yet.
pub(in crate::tunnel_controller) fn pending(certificate: &Certificate) -> Option<Problem> {
    certificate.pending().map(|message| Problem {
        code: Code::CertificatePending,
        detail: format!("Certificate {}: {message}", certificate.name_any()),
    })
}

/// The tunnel's Certificates, for deletion once no pod mounts their Secrets. Otherwise cert-manager
/// would renew them forever.
pub(super) fn superfluous(facts: &CertificateFacts, holder: &Holder) -> Vec<Certificate> {
    let found = facts.of_cert_manager.values();
    let found = found.filter_map(|found| found.as_ref().ok()?.as_ref());
    found
        .filter(|live| is_owned(*live, &holder.owner))
        .cloned()
        .collect()
}

/// The Certificates for each end of `valid`.
fn certificates(valid: &ValidatedTunnel, life: i64) -> Vec<(End, Certificate)> {
    let ValidatedCertificates::Issued(identities, issuer) = &valid.certificates else {
        return Vec::new();
    };
    [
        (End::Exit, &identities.exit),
        (End::Entry, &identities.entry),
    ]
    .into_iter()
    .filter(|(end, _)| end.gateway(valid).is_some())
    .map(|(end, identity)| {
        let metadata = ObjectMeta {
            name: Some(end.child_name(valid)),
            namespace: Some(valid.namespace.clone()),
            labels: Some(labels::child(&valid.name, end.component())),
            owner_references: Some(vec![valid.owner.clone()]),
            ..ObjectMeta::default()
        };
        let secret = valid.certificates.secret(&valid.name, end.component());
        let (identity, issuer) = (identity.clone(), issuer.clone());
        let wanted = Certificate::of(
            metadata,
            secret,
            identity,
            wanted::purpose(end),
            life,
            issuer,
        );
        (end, wanted)
    })
    .collect()
}
