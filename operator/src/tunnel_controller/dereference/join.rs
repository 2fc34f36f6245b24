//! Reads the join bundle that a tunnel names. Client required.
//!
//! It is the one Secret of a user's that the operator ever reads: by its name, and only where somebody gave it the right.

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client, ResourceExt};
use muxtunnel_codes::Code;
use muxtunnel_crds::MuxTunnel;

use crate::certificates::join::Bundle;
use crate::settings::Settings;
use crate::tunnel_controller::error::JoinError;
use crate::tunnel_controller::problem::Problem;

/// The copied bundle that `tunnel` names, good or expired, or why it has none; `None`: it names none.
///
/// # Errors
/// [`JoinError`] where the API server does not answer; not where it refuses, or the Secret is missing.
pub async fn join(
    client: &Client,
    tunnel: &MuxTunnel,
    settings: &Settings,
) -> Result<Option<Result<Bundle, Problem>>, JoinError> {
    let carrier = tunnel.spec.carrier.as_ref();
    let Some(from) = carrier.and_then(|carrier| carrier.join_from.as_ref()) else {
        return Ok(None);
    };
    let namespace = tunnel.namespace().unwrap_or_default();
    let copy = copy(client, &namespace, &from.secret_name, settings).await?;
    Ok(Some(copy))
}

/// The bundle in the Secret `name`, good or expired, or why it has none.
///
/// # Errors
/// As of [`join`].
pub async fn copy(
    client: &Client,
    namespace: &str,
    name: &str,
    settings: &Settings,
) -> Result<Result<Bundle, Problem>, JoinError> {
    let problem = |code, detail| Ok(Err(Problem { code, detail }));
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let secret = match api.get_opt(name).await {
        Ok(Some(secret)) => secret,
        Ok(None) => {
            let detail = format!(
                "Secret {name} does not exist: copy the Secret NAME-join that the exit's operator publishes"
            );
            return problem(Code::JoinBundleMissing, detail);
        }
        Err(kube::Error::Api(status)) if status.code == 403 => {
            let detail = forbidden(settings, namespace, name);
            return problem(Code::JoinBundleForbidden, detail);
        }
        Err(source) => {
            let name = name.to_owned();
            return Err(JoinError { name, source });
        }
    };
    Ok(Bundle::read(&secret).map_err(|problem| Problem {
        code: problem.code,
        detail: format!("Secret {name} {}", problem.what),
    }))
}

/// The commands that give the right to read that one Secret.
fn forbidden(settings: &Settings, namespace: &str, name: &str) -> String {
    let (own, account) = (&settings.namespace, &settings.service_account);
    format!(
        "the operator may not read Secret {name}; allow it that one: kubectl -n {namespace} create role muxtunnel-join \
         --verb=get --resource=secrets --resource-name={name} && kubectl -n {namespace} create rolebinding \
         muxtunnel-join --role=muxtunnel-join --serviceaccount={own}:{account}; or name the namespace in the chart's \
         value join.namespaces"
    )
}
