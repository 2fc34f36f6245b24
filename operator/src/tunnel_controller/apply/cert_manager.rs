//! Requests missing certificates from cert-manager, and deletes Certificates that are no longer
//! requested. This module requires a client.

use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use tracing::info;

use crate::apply::delete_same;
use crate::caches::Cluster;
use crate::certificates::cert_manager::Certificate;
use crate::labels::MANAGER;
use crate::tunnel_controller::build::certificates::pending;
use crate::tunnel_controller::build::{Certificates, Certified};
use crate::tunnel_controller::cert_manager::missing;
use crate::tunnel_controller::error::CertifyError;
use crate::tunnel_controller::holder::Holder;

/// Sends the requests. The result has the state of the certificates even after a failure.
pub(super) async fn apply(
    cluster: &Cluster,
    holder: &Holder,
    certificates: Certificates,
) -> (Certified, Result<(), CertifyError>) {
    let Certificates {
        mut told,
        requests,
        superfluous,
    } = certificates;
    let ended = write(cluster, holder, (superfluous, requests), &mut told).await;
    (told, ended)
}

async fn write(
    cluster: &Cluster,
    holder: &Holder,
    (superfluous, requests): (Vec<Certificate>, Vec<Certificate>),
    told: &mut Certified,
) -> Result<(), CertifyError> {
    let api: Api<Certificate> = Api::namespaced(cluster.client.clone(), &holder.namespace);
    for certificate in superfluous {
        let name = certificate.name_any();
        info!(
            certificate = name,
            "deleting a certificate that is no longer requested"
        );
        if let Err(error) = delete_same(&api, &certificate).await {
            // Ignores an error that a retry cannot resolve: without cert-manager, or without the
            // permission to use it, the operator cannot delete Certificates.
            missing(error)?;
        }
    }
    for wanted in requests {
        let name = wanted.name_any();
        info!(
            certificate = name,
            "requesting a certificate from cert-manager"
        );
        let how = PatchParams::apply(MANAGER).force();
        let problem = match api.patch(&name, &how, &Patch::Apply(&wanted)).await {
            Ok(applied) => pending(&applied),
            Err(error) => Some(missing(error)?),
        };
        told.problem = told.problem.take().or(problem);
    }
    Ok(())
}
