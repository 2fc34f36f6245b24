//! Step 4: makes the children what was built. Client required.
//!
//! In: the built [`Resources`]. Out: the children as the API server has them. The order matters: a pod
//! needs its account and its configuration, an autoscaler what it scales, and who reaches a pod is decided before it is
//! there. Children of an end that is no longer asked for go here. While sysctls have not passed ([`probes`]), Deployments
//! and what goes with them stay as they are.

mod probes;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use kube::{Api, Client};

use super::build::{End, Resources};
use super::validate::ValidatedTunnel;
use crate::apply::{ApplyError, apply as apply_kind, is_owned};
use crate::labels;

/// The children that status is made from.
#[derive(Debug, Default)]
pub struct Applied {
    /// One an end.
    pub config_maps: Vec<ConfigMap>,
    /// One an end.
    pub services: Vec<Service>,
    /// One an end.
    pub deployments: Vec<Deployment>,
}

/// What came out.
#[derive(Debug)]
pub enum Outcome {
    /// All is applied.
    Applied(Applied),
    /// A needed name is taken; the sentence says by what.
    OwnedByOther(String),
}

/// Applies all children, and deletes those of ours that are no longer built.
///
/// # Errors
/// [`ApplyError`] where the API server refuses, or does not answer.
pub async fn apply(
    client: &Client,
    tunnel: &ValidatedTunnel,
    built: Resources,
) -> Result<Outcome, ApplyError> {
    match apply_in_order(client, tunnel, built).await {
        Ok(applied) => Ok(Outcome::Applied(applied)),
        Err(error @ ApplyError::OwnedByOther { .. }) => {
            Ok(Outcome::OwnedByOther(error.to_string()))
        }
        Err(error) => Err(error),
    }
}

async fn apply_in_order(
    client: &Client,
    tunnel: &ValidatedTunnel,
    built: Resources,
) -> Result<Applied, ApplyError> {
    let namespace = &tunnel.namespace;
    let owner = &tunnel.owner;
    let selector = &labels::children_of(&tunnel.name, &End::ALL.map(End::component));
    apply_kind(client, namespace, owner, selector, built.service_accounts).await?;
    apply_kind(client, namespace, owner, selector, built.network_policies).await?;
    let config_maps = apply_kind(client, namespace, owner, selector, built.config_maps).await?;
    let services = apply_kind(client, namespace, owner, selector, built.services).await?;
    probes::apply(client, tunnel, built.probe_jobs).await?;
    let deployments = if built.is_held {
        running(client, tunnel).await?
    } else {
        let deployments = built.deployments;
        let deployments = apply_kind(client, namespace, owner, selector, deployments).await?;
        let budgets = built.pod_disruption_budgets;
        apply_kind(client, namespace, owner, selector, budgets).await?;
        apply_kind(client, namespace, owner, selector, built.autoscalers).await?;
        deployments
    };
    Ok(Applied {
        config_maps,
        services,
        deployments,
    })
}

/// The Deployments of an earlier spec, as they are.
async fn running(client: &Client, tunnel: &ValidatedTunnel) -> Result<Vec<Deployment>, ApplyError> {
    let api: Api<Deployment> = Api::namespaced(client.clone(), &tunnel.namespace);
    let mut running = Vec::new();
    for end in End::ALL {
        if end.gateway(tunnel).is_none() {
            continue;
        }
        let name = end.child_name(tunnel);
        let found = api.get_opt(&name).await;
        let found = found.map_err(|source| ApplyError::Api {
            verb: "get",
            kind: "Deployment".to_owned(),
            name,
            source: Box::new(source),
        })?;
        running.extend(found.filter(|deployment| is_owned(deployment, &tunnel.owner)));
    }
    Ok(running)
}
