//! Step 5: makes the children what was built.
//!
//! In: the built [`Resources`]. Out: the children as the API server has them. The order matters: a pod
//! needs its account and its configuration, an autoscaler what it scales, and who reaches a pod is decided before it is
//! there. Children of an end that is no longer asked for go here. While sysctls have not passed ([`probes`]), Deployments
//! and what goes with them stay as they are.

mod probes;

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use kube::ResourceExt;
use muxtunnel_codes::Code;

use super::build::Resources;
use super::end::End;
use super::problem::Problem;
use super::validate::ValidatedTunnel;
use crate::apply::{ApplyError, Children, apply as apply_kind, is_owned};
use crate::caches::{Cache, Cached, Cluster, NotKnown};
use crate::failure::{self, Coded};

/// The children that status is made from.
#[derive(Debug, Default)]
pub struct Applied {
    /// One an end.
    pub config_maps: Vec<ConfigMap>,
    /// One an end.
    pub services: Vec<Service>,
    /// One an end.
    pub deployments: Vec<Deployment>,
    /// What the API server refused; children are as they were from there on.
    pub refusal: Option<Problem>,
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
/// built from. `failures`: reconciliations that failed in a row before. `taken`: ends whose Secret is somebody else's;
/// their Deployments stay as they are.
///
/// # Errors
/// [`ApplyError`] where the API server refuses, or does not answer.
pub async fn apply(
    cluster: &Cluster,
    tunnel: &ValidatedTunnel,
    generation: Option<i64>,
    failures: u32,
    (built, taken): (Resources, &BTreeSet<End>),
) -> Result<Outcome, ApplyError> {
    match apply_in_order(cluster, tunnel, generation, (built, taken)).await {
        Ok(applied) => Ok(Outcome::Applied(applied)),
        Err(error @ (ApplyError::OwnedByOther { .. } | ApplyError::Immutable { .. })) => {
            Ok(Outcome::Blocked(error.code(), error.to_string()))
        }
        Err(error) if failure::is_refusal(&error, failures) => {
            let refusal = Problem {
                code: error.code(),
                detail: failure::chain(&error),
            };
            Ok(Outcome::Applied(as_it_is(cluster, tunnel, refusal)?))
        }
        Err(error) => Err(error),
    }
}

/// The children that are there.
fn as_it_is(
    cluster: &Cluster,
    tunnel: &ValidatedTunnel,
    refusal: Problem,
) -> Result<Applied, NotKnown> {
    let caches = &cluster.caches;
    Ok(Applied {
        config_maps: own(&caches.config_maps, tunnel)?,
        services: own(&caches.services, tunnel)?,
        deployments: own(&caches.deployments, tunnel)?,
        refusal: Some(refusal),
    })
}

async fn apply_in_order(
    cluster: &Cluster,
    tunnel: &ValidatedTunnel,
    generation: Option<i64>,
    (mut built, taken): (Resources, &BTreeSet<End>),
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
        own(&cluster.caches.deployments, tunnel)?
    } else {
        let is_kept = |name: &String| taken.iter().any(|end| *name == end.child_name(tunnel));
        let mut kept = own(&cluster.caches.deployments, tunnel)?;
        kept.retain(|deployment| is_kept(&deployment.name_any()));
        built
            .deployments
            .retain(|deployment| !is_kept(&deployment.name_any()));
        let components: Vec<_> = End::ALL
            .into_iter()
            .filter(|end| !taken.contains(end))
            .map(End::component)
            .collect();
        let of_others = Children {
            components: &components,
            ..children
        };
        let mut deployments = apply_kind(cluster, of_others, built.deployments).await?;
        deployments.extend(kept);
        apply_kind(cluster, children, built.pod_disruption_budgets).await?;
        apply_kind(cluster, children, built.autoscalers).await?;
        deployments
    };
    Ok(Applied {
        config_maps,
        services,
        deployments,
        refusal: None,
    })
}

/// The children of one kind as they are, one an end.
fn own<K: Cached>(known: &Cache<K>, tunnel: &ValidatedTunnel) -> Result<Vec<K>, NotKnown> {
    let mut found = Vec::new();
    for end in End::ALL {
        if end.gateway(tunnel).is_none() {
            continue;
        }
        let live = known.get(&tunnel.namespace, &end.child_name(tunnel))?;
        let ours = live.filter(|live| is_owned(live.as_ref(), &tunnel.owner));
        found.extend(ours.map(Arc::unwrap_or_clone));
    }
    Ok(found)
}
