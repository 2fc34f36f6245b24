//! Step 4: applies the built objects.
//!
//! Input: the children and [`Built`]. Output: the stored children, and the state of certificates. The
//! order matters. A pod needs its account and its configuration to start. An autoscaler needs its
//! Deployment. The NetworkPolicy must exist before the pod. This step deletes
//! children of ends that the spec no longer has. While the test of sysctls has not passed
//! ([`probes`]), Deployments and the objects that belong to them stay unchanged. If an obstacle or
//! a refusal prevents the children from being applied, this step still removes unpermitted targets
//! from gateways. After any other failure, the next reconciliation does so.

mod cert_manager;
mod probes;

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use kube::ResourceExt;
use muxtunnel_codes::Code;
use tracing::warn;

use super::access::Outputs;
use super::build::{Built, Certified, Kept, Resources, bare};
use super::end::End;
use super::error::{DereferenceError, Error};
use super::hindrance::Hindrance;
use super::holder::Holder;
use super::problem::Problem;
use super::validate::ValidatedObject;
use crate::apply::{ApplyError, Obstacles, apply as apply_kind, is_owned, obstacles};
use crate::caches::{Cache, Cached, Cluster, NotKnown};
use crate::failure::{self, Coded};
use crate::grants;

/// The applied children that the status depends on.
#[derive(Debug, Default)]
pub struct Applied {
    /// One object per end.
    pub config_maps: Vec<ConfigMap>,
    /// One object per end.
    pub services: Vec<Service>,
    /// One object per end.
    pub deployments: Vec<Deployment>,
    /// The API server's refusal. Children after the refused child are unchanged.
    pub refusal: Option<Problem>,
}

/// The result of the step.
#[derive(Debug)]
pub struct Reached {
    /// The state of certificates.
    pub certified: Certified,
    /// The object and its children, or why the children are unchanged.
    pub children: Result<(Box<ValidatedObject>, Applied), Hindrance>,
}

/// Requests certificates, applies the children, and deletes own children that are no longer built.
/// `failures`: failed reconciliations in a row before this one.
pub async fn apply(
    Outputs { cluster, .. }: &Outputs,
    holder: &Holder,
    (children, built): (Result<(Box<ValidatedObject>, Resources), Hindrance>, Built),
    failures: u32,
) -> Reached {
    let (certified, ended) = cert_manager::apply(cluster, holder, built.certificates).await;
    let children = match (children, ended) {
        (reached, Err(error)) => Hindrance::failed(reached, error),
        (Err(hindrance), Ok(())) => Err(hindrance),
        (Ok((object, resources)), Ok(())) => {
            let resources = (resources, &certified.taken);
            let applied = apply_children(cluster, (holder, &object), failures, resources).await;
            applied.map(|applied| (object, applied))
        }
    };
    let is_as_it_was = match &children {
        Ok((_, applied)) => applied.refusal.is_some(),
        Err(hindrance) => withdraws(hindrance),
    };
    let withdrawn = match is_as_it_was {
        true => withdraw(cluster, holder, built.withdrawn).await,
        false => Ok(()),
    };
    let children = match withdrawn {
        Ok(()) => children,
        Err(error) => Hindrance::failed(children, error),
    };
    Reached {
        certified,
        children,
    }
}

/// Whether permissions are withdrawn although the children stay unchanged. After some failures, the
/// peers and the grants are not known.
const fn withdraws(hindrance: &Hindrance) -> bool {
    match hindrance {
        Hindrance::Failed(error) => matches!(
            error,
            Error::Build(_)
                | Error::Certify(_)
                | Error::Dereference(DereferenceError::Key(_) | DereferenceError::Certificate(_))
        ),
        _ => true,
    }
}

/// Applies all children. If another owner has the Certificate of an end (`taken`), the Deployment of
/// that end stays unchanged.
async fn apply_children(
    cluster: &Cluster,
    (holder, object): (&Holder, &ValidatedObject),
    failures: u32,
    (built, taken): (Resources, &BTreeSet<End>),
) -> Result<Applied, Hindrance> {
    match apply_in_order(cluster, (holder, object), (&built, taken)).await {
        Ok(applied) => Ok(applied),
        Err(ApplyError::OwnedByOther(first)) => {
            // If the other obstacles cannot be read, the first one is known.
            let all = all_obstacles(cluster, holder, &built).await.ok();
            let all = all.filter(|all| !all.0.is_empty()).unwrap_or(first);
            Err(Hindrance::Blocked(Problem {
                code: Code::NameTaken,
                detail: all.to_string(),
            }))
        }
        Err(error @ ApplyError::Immutable { .. }) => Err(Hindrance::Blocked(Problem {
            code: error.code(),
            detail: error.to_string(),
        })),
        Err(error) if failure::is_reported(&error, failures) => {
            let refusal = Problem {
                code: error.code(),
                detail: failure::chain(&error),
            };
            Ok(as_it_is(cluster, object, refusal)?)
        }
        Err(error) => Err(error.into()),
    }
}

/// Removes unpermitted targets from the ConfigMaps of gateways. A ConfigMap that changed since it
/// was read stays unchanged.
async fn withdraw(
    cluster: &Cluster,
    holder: &Holder,
    withdrawn: Result<Vec<Kept>, grants::NotKnown>,
) -> Result<(), Error> {
    let withdrawn = withdrawn.map_err(DereferenceError::from)?;
    if withdrawn.is_empty() {
        return Ok(());
    }
    let mut kept = Vec::new();
    for Kept {
        version,
        config_map,
    } in withdrawn
    {
        let known = &cluster.caches.config_maps;
        let live = known.get(&holder.namespace, &config_map.name_any())?;
        let newer = live.filter(|live| live.resource_version() != version);
        kept.push(newer.map_or(config_map, |newer| bare(&newer)));
    }
    let components = End::ALL.map(End::component);
    apply_kind(cluster, holder.children(&components), kept).await?;
    Ok(())
}

/// The existing children, unchanged.
fn as_it_is(
    cluster: &Cluster,
    object: &ValidatedObject,
    refusal: Problem,
) -> Result<Applied, NotKnown> {
    let caches = &cluster.caches;
    Ok(Applied {
        config_maps: own(&caches.config_maps, object)?,
        services: own(&caches.services, object)?,
        deployments: own(&caches.deployments, object)?,
        refusal: Some(refusal),
    })
}

async fn apply_in_order(
    cluster: &Cluster,
    (holder, object): (&Holder, &ValidatedObject),
    (built, taken): (&Resources, &BTreeSet<End>),
) -> Result<Applied, ApplyError> {
    let components = End::ALL.map(End::component);
    let children = holder.children(&components);
    apply_kind(cluster, children, built.service_accounts.clone()).await?;
    apply_kind(cluster, children, built.network_policies.clone()).await?;
    let config_maps = apply_kind(cluster, children, built.config_maps.clone()).await?;
    for dropped in &built.dropped {
        warn!(
            "the configuration {dropped} is removed, because newer ones need its place; its pods keep their present \
             configuration until they end, and get no further denials"
        );
    }
    let services = apply_kind(cluster, children, built.services.clone()).await?;
    probes::apply(cluster, object, &built.probe_jobs).await?;
    let deployments = if built.is_held {
        own(&cluster.caches.deployments, object)?
    } else {
        let wanted = built.deployments.clone();
        let deployments = deployments(cluster, (holder, object), (wanted, taken)).await?;
        apply_kind(cluster, children, built.pod_disruption_budgets.clone()).await?;
        apply_kind(cluster, children, built.autoscalers.clone()).await?;
        deployments
    };
    Ok(Applied {
        config_maps,
        services,
        deployments,
        refusal: None,
    })
}

/// All obstacles for `built`, so that a user can remove them at once.
async fn all_obstacles(
    cluster: &Cluster,
    holder: &Holder,
    built: &Resources,
) -> Result<Obstacles, ApplyError> {
    let components = End::ALL.map(End::component);
    let children = holder.children(&components);
    let mut all = obstacles(cluster, children, &built.service_accounts).await?;
    all.extend(obstacles(cluster, children, &built.network_policies).await?);
    all.extend(obstacles(cluster, children, &built.config_maps).await?);
    all.extend(obstacles(cluster, children, &built.services).await?);
    all.extend(obstacles(cluster, children, &built.probe_jobs).await?);
    all.extend(obstacles(cluster, children, &built.deployments).await?);
    all.extend(obstacles(cluster, children, &built.pod_disruption_budgets).await?);
    all.extend(obstacles(cluster, children, &built.autoscalers).await?);
    Ok(Obstacles(all))
}

/// Applies the Deployments. The Deployments of the ends in `taken` stay unchanged.
async fn deployments(
    cluster: &Cluster,
    (holder, object): (&Holder, &ValidatedObject),
    (built, taken): (Vec<Deployment>, &BTreeSet<End>),
) -> Result<Vec<Deployment>, ApplyError> {
    let is_kept = |deployment: &Deployment| {
        let name = deployment.name_any();
        taken.iter().any(|end| name == object.child(*end))
    };
    let kept = own(&cluster.caches.deployments, object)?.into_iter();
    let kept = kept.filter(&is_kept);
    let others = End::ALL.into_iter().filter(|end| !taken.contains(end));
    let components: Vec<_> = others.map(End::component).collect();
    let mut wanted = built;
    wanted.retain(|deployment| !is_kept(deployment));
    let mut applied = apply_kind(cluster, holder.children(&components), wanted).await?;
    applied.extend(kept);
    Ok(applied)
}

/// The existing children of one kind, one per end.
fn own<K: Cached>(known: &Cache<K>, object: &ValidatedObject) -> Result<Vec<K>, NotKnown> {
    let mut found = Vec::new();
    for end in End::ALL {
        if object.gateway(end).is_none() {
            continue;
        }
        let live = known.get(&object.holder.namespace, &object.child(end))?;
        let ours = live.filter(|live| is_owned(live.as_ref(), &object.holder.owner));
        found.extend(ours.map(Arc::unwrap_or_clone));
    }
    Ok(found)
}
