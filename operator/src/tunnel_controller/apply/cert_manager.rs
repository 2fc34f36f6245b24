//! Requests missing certificates from cert-manager, and deletes Certificates that are no longer
//! requested. This module requires a client.

use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use tracing::info;

use crate::apply::delete_same;
use crate::caches::Cluster;
use crate::certificates::cert_manager::Certificate;
use crate::labels::MANAGER;
use crate::tunnel_controller::build::Certificates;
use crate::tunnel_controller::build::certificates::pending;
use crate::tunnel_controller::cert_manager::missing;
use crate::tunnel_controller::holder::Holder;

/// Sends the requests. Adds their first problem to the state of the certificates, also before a
/// failure.
pub(super) async fn apply(
    cluster: &Cluster,
    holder: &Holder,
    certificates: &mut Certificates,
) -> Result<(), kube::Error> {
    let api: Api<Certificate> = Api::namespaced(cluster.client.clone(), &holder.namespace);
    for certificate in &certificates.superfluous {
        let name = certificate.name_any();
        info!(
            certificate = name,
            "deleting a certificate that is no longer requested"
        );
        if let Err(error) = delete_same(&api, certificate).await {
            // Ignores an error that a retry cannot resolve: without cert-manager, or without the
            // permission to use it, the operator cannot delete Certificates.
            missing(error)?;
        }
    }
    for wanted in &certificates.requests {
        let name = wanted.name_any();
        info!(
            certificate = name,
            "requesting a certificate from cert-manager"
        );
        let how = PatchParams::apply(MANAGER).force();
        let problem = match api.patch(&name, &how, &Patch::Apply(wanted)).await {
            Ok(applied) => pending(&applied),
            Err(error) => Some(missing(error)?),
        };
        let told = &mut certificates.told;
        told.problem = told.problem.take().or(problem);
    }
    Ok(())
}
