//! Certificates to request from cert-manager, and to delete. Pure.

use std::collections::BTreeSet;

use kube::ResourceExt;
use muxtunnel_codes::Code;
use muxtunnel_crds::IssuerRef;

use super::metadata;
use crate::apply::is_owned;
use crate::certificates::cert_manager::Certificate;
use crate::tunnel_controller::cert_manager::foreign;
use crate::tunnel_controller::end::End;
use crate::tunnel_controller::issuer::issued_secret;
use crate::tunnel_controller::keyring::OwnKey;
use crate::tunnel_controller::problem::Problem;
use crate::tunnel_controller::validate::{ValidatedObject, ValidatedState};

/// The state of an object's keys and certificates.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Certified {
    /// The key pairs of the only end of the object.
    pub keys: Vec<OwnKey>,
    /// The problem of certificates, if any.
    pub problem: Option<Problem>,
    /// The ends whose Certificate has another owner. The operator creates no further pod that
    /// mounts its Secret.
    pub taken: BTreeSet<End>,
    /// When this state was determined, in seconds since 1970.
    pub now: i64,
}

/// The requests to cert-manager.
#[derive(Debug, Default)]
pub struct Certificates {
    /// The state without the requests.
    pub told: Certified,
    /// Certificates to request.
    pub requests: Vec<Certificate>,
    /// Certificates to delete.
    pub superfluous: Vec<Certificate>,
}

impl Certificates {
    /// The requests of `valid`. Missing Certificates are requested, and those that differ. Without
    /// an issuer, the object's Certificates are deleted, because cert-manager would renew them
    /// forever. `valid`: `None` if the spec is not applied, which makes no requests.
    pub fn of(valid: Option<&ValidatedObject>, state: &ValidatedState) -> Self {
        let mut made = Self::default();
        made.told.keys.clone_from(&state.credentials.own);
        made.told.now = state.now;
        let Some(valid) = valid else {
            return made;
        };
        let (wanted, found) = (wanted(valid), &state.credentials.of_cert_manager);
        if wanted.is_empty() {
            let found = found.values();
            let found = found.filter_map(|found| found.as_ref().ok()?.as_ref());
            let own = found.filter(|live| is_owned(*live, &state.holder.owner));
            made.superfluous = own.cloned().collect();
        }
        for (end, certificate) in wanted {
            let name = certificate.name_any();
            let problem = match found.get(&end) {
                Some(Err(problem)) => Some(problem.clone()),
                Some(Ok(Some(live))) if !is_owned(live, &valid.holder.owner) => {
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
        made
    }
}

/// Why `certificate` is not issued yet.
pub(in crate::tunnel_controller) fn pending(certificate: &Certificate) -> Option<Problem> {
    let (name, message) = (certificate.name_any(), certificate.pending()?);
    let detail = format!("Certificate {name}: {message}");
    Some(Problem::new(Code::CertificatePending, detail))
}

/// The reference with all its fields, as cert-manager stores it.
fn whole(issuer: &IssuerRef) -> IssuerRef {
    IssuerRef {
        name: issuer.name.clone(),
        kind: Some(issuer.kind().to_owned()),
        group: Some(issuer.group().to_owned()),
    }
}

/// The Certificates for each end of `valid`.
fn wanted(valid: &ValidatedObject) -> Vec<(End, Certificate)> {
    let issued = valid.certificates.issued.iter();
    issued
        .map(|(end, (identity, issuer))| {
            let usage = match end {
                End::Entry => "client auth",
                End::Exit | End::Rendezvous => "server auth",
            };
            let content = (issued_secret(&valid.holder, *end), identity.clone());
            let metadata = metadata(valid, *end);
            (
                *end,
                Certificate::of(metadata, content, usage, whole(issuer)),
            )
        })
        .collect()
}
