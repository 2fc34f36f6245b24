//! Step 4: makes the children what was built.
//!
//! In: the built [`Resources`]. Out: the children as the API server has them. The order matters: a pod
//! needs its account and its configuration, an autoscaler what it scales, and who reaches a pod is decided before it is
//! there. Children of an end that is no longer asked for go here. While sysctls have not passed ([`probes`]), Deployments
//! and what goes with them stay as they are.

mod probes;

use std::sync::Arc;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use muxtunnel_codes::Code;

use super::build::{End, Resources};
use super::validate::ValidatedTunnel;
use crate::apply::{ApplyError, Children, apply as apply_kind, is_owned};
use crate::caches::{Cluster, NotKnown};
use crate::failure::Coded;

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
    /// It cannot be, until a person does something; the sentence says what is in the way.
    Blocked(Code, String),
}

/// Applies all children, and deletes those of ours that are no longer built. `generation`: the spec's that they were
/// built from.
///
/// # Errors
/// [`ApplyError`] where the API server refuses, or does not answer.
pub async fn apply(
    cluster: &Cluster,
    tunnel: &ValidatedTunnel,
    generation: Option<i64>,
    built: Resources,
) -> Result<Outcome, ApplyError> {
    match apply_in_order(cluster, tunnel, generation, built).await {
        Ok(applied) => Ok(Outcome::Applied(applied)),
        Err(error @ (ApplyError::OwnedByOther { .. } | ApplyError::Immutable { .. })) => {
            Ok(Outcome::Blocked(error.code(), error.to_string()))
        }
        Err(error) => Err(error),
    }
}

async fn apply_in_order(
    cluster: &Cluster,
    tunnel: &ValidatedTunnel,
    generation: Option<i64>,
    built: Resources,
) -> Result<Applied, ApplyError> {
    let children = Children {
        namespace: &tunnel.namespace,
        instance: &tunnel.name,
        components: &End::ALL.map(End::component),
        owner: &tunnel.owner,
        generation,
    };
    apply_kind(cluster, children, built.service_accounts).await?;
    apply_kind(cluster, children, built.network_policies).await?;
    let config_maps = apply_kind(cluster, children, built.config_maps).await?;
    let services = apply_kind(cluster, children, built.services).await?;
    probes::apply(cluster, tunnel, built.probe_jobs).await?;
    let deployments = if built.is_held {
        running(cluster, tunnel)?
    } else {
        let deployments = apply_kind(cluster, children, built.deployments).await?;
        apply_kind(cluster, children, built.pod_disruption_budgets).await?;
        apply_kind(cluster, children, built.autoscalers).await?;
        deployments
    };
    Ok(Applied {
        config_maps,
        services,
        deployments,
    })
}

/// The Deployments of an earlier spec, as they are.
fn running(cluster: &Cluster, tunnel: &ValidatedTunnel) -> Result<Vec<Deployment>, NotKnown> {
    let known = &cluster.caches.deployments;
    let mut running = Vec::new();
    for end in End::ALL {
        if end.gateway(tunnel).is_none() {
            continue;
        }
        let found = known.get(&tunnel.namespace, &end.child_name(tunnel))?;
        let ours = found.filter(|deployment| is_owned(deployment.as_ref(), &tunnel.owner));
        running.extend(ours.map(Arc::unwrap_or_clone));
    }
    Ok(running)
}
