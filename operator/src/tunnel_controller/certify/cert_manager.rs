//! Certificates that cert-manager issues: what the operator asks it for.

use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, ResourceExt};
use muxtunnel_codes::Code;
use tracing::info;

use super::{Certified, Certifier, plan};
use crate::apply::is_owned;
use crate::certificates::cert_manager::Certificate;
use crate::labels::MANAGER;
use crate::tunnel_controller::end::End;
use crate::tunnel_controller::error::CertifyError;
use crate::tunnel_controller::problem::Problem;
use crate::tunnel_controller::validate::ValidatedTunnel;

impl Certifier {
    /// A Certificate for each end; cert-manager does the rest.
    pub(super) async fn ask_cert_manager(
        &self,
        valid: &ValidatedTunnel,
        certified: &mut Certified,
    ) -> Result<(), CertifyError> {
        certified.status = certified.status.emptied();
        for (end, wanted) in plan::issued(valid, self.life) {
            let name = wanted.name_any();
            let problem = match self.apply_certificate(valid, wanted).await {
                Ok(applied) => applied.pending().map(|message| Problem {
                    code: Code::CertificatePending,
                    detail: format!("Certificate {name}: {message}"),
                }),
                Err(error) => {
                    let problem = plan::cert_manager_problem(&name, error)?;
                    if problem.code == Code::CertificateSecretTaken {
                        certified.taken.insert(end);
                    }
                    Some(problem)
                }
            };
            certified.problem = certified.problem.take().or(problem);
        }
        Ok(())
    }

    /// The Certificate as the API server has it once it is `wanted`; it is written only where it differs.
    async fn apply_certificate(
        &self,
        valid: &ValidatedTunnel,
        wanted: Certificate,
    ) -> Result<Certificate, plan::CertManagerError> {
        let api: Api<Certificate> = Api::namespaced(self.client.clone(), &valid.namespace);
        let name = wanted.name_any();
        if let Some(live) = api.get_opt(&name).await? {
            if !is_owned(&live, &valid.owner) {
                return Err(plan::CertManagerError::Foreign);
            }
            if live.spec == wanted.spec {
                return Ok(live);
            }
        }
        info!(certificate = name, "asking cert-manager for a certificate");
        let how = PatchParams::apply(MANAGER).force();
        Ok(api.patch(&name, &how, &Patch::Apply(&wanted)).await?)
    }

    /// Nobody mounts any more what cert-manager would renew for ever.
    pub(super) async fn delete_certificates(
        &self,
        valid: &ValidatedTunnel,
    ) -> Result<(), plan::CertManagerError> {
        let api: Api<Certificate> = Api::namespaced(self.client.clone(), &valid.namespace);
        for end in [End::Exit, End::Entry] {
            let name = end.child_name(valid);
            let Some(live) = api.get_opt(&name).await? else {
                continue;
            };
            if is_owned(&live, &valid.owner) {
                info!(certificate = name, "deleting, no longer asked for");
                let params = DeleteParams {
                    preconditions: Some(Preconditions {
                        uid: live.uid(),
                        resource_version: None,
                    }),
                    ..DeleteParams::default()
                };
                match api.delete(&name, &params).await {
                    Ok(_) => {}
                    Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(())
    }
}
