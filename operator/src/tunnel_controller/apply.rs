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
use tracing::warn;

use super::access::Outputs;
use super::build::{Built, Certified, Kept, Resources, bare};
use super::dereference;
use super::end::End;
use super::error::Error;
use super::hindrance::Hindrance;
use super::holder::Holder;
use super::problem::Problem;
use super::validate::ValidatedObject;
use crate::apply::{ApplyError, Pass};
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
    let mut certificates = built.certificates;
    let ended = cert_manager::apply(cluster, holder, &mut certificates).await;
    let certified = certificates.told;
    let mut children = match (children, ended) {
        (reached, Err(error)) => Hindrance::failed(reached, Error::Certify(error)),
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
    if is_as_it_was && let Err(error) = withdraw(cluster, holder, built.withdrawn).await {
        children = Hindrance::failed(children, error);
    }
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
            Error::Certify(_) | Error::Key(_) | Error::Certificate(_)
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
    let error = match apply_in_order(cluster, (holder, object), (built, taken)).await {
        Ok(applied) => return Ok(applied),
        Err(error) => error,
    };
    let problem = Problem::new(error.code(), failure::chain(&error));
    match error {
        ApplyError::OwnedByOther(_) | ApplyError::Immutable(..) => Err(Hindrance::Blocked(problem)),
        error if failure::is_reported(&error, failures) => {
            // The existing children, unchanged.
            let caches = &cluster.caches;
            Ok(Applied {
                config_maps: own(&caches.config_maps, object)?,
                services: own(&caches.services, object)?,
                deployments: own(&caches.deployments, object)?,
                refusal: Some(problem),
            })
        }
        error => Err(error.into()),
    }
}

/// Removes unpermitted targets from the ConfigMaps of gateways. A ConfigMap that changed since it
/// was read stays unchanged.
async fn withdraw(
    cluster: &Cluster,
    holder: &Holder,
    withdrawn: Result<Vec<Kept>, grants::NotKnown>,
) -> Result<(), Error> {
    let withdrawn = withdrawn?;
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
    let mut pass = Pass::new(cluster);
    pass.apply(holder.children(&components), kept).await?;
    Ok(pass.end()?)
}

async fn apply_in_order(
    cluster: &Cluster,
    (holder, object): (&Holder, &ValidatedObject),
    (built, taken): (Resources, &BTreeSet<End>),
) -> Result<Applied, ApplyError> {
    let components = End::ALL.map(End::component);
    let children = holder.children(&components);
    let mut pass = Pass::new(cluster);
    pass.apply(children, built.service_accounts).await?;
    pass.apply(children, built.network_policies).await?;
    let config_maps = pass.apply(children, built.config_maps).await?;
    for dropped in &built.dropped {
        warn!(
            "the configuration {dropped} is removed, because newer ones need its place; its pods keep their present \
             configuration until they end, and get no further denials"
        );
    }
    let services = pass.apply(children, built.services).await?;
    probes::apply(&mut pass, children, object, &built.probe_jobs).await?;
    // With an obstacle, the rest of the pass only finds further obstacles.
    let mut deployments = match pass.is_blocked() {
        true => Vec::new(),
        false => own(&cluster.caches.deployments, object)?,
    };
    if !built.is_held {
        // The Deployments of the ends in `taken` stay unchanged.
        let is_kept = |deployment: &Deployment| {
            let name = deployment.name_any();
            taken.iter().any(|end| name == object.child(*end))
        };
        let others = End::ALL.into_iter().filter(|end| !taken.contains(end));
        let components: Vec<_> = others.map(End::component).collect();
        let mut wanted = built.deployments;
        wanted.retain(|deployment| !is_kept(deployment));
        deployments.retain(is_kept);
        deployments.extend(pass.apply(holder.children(&components), wanted).await?);
        pass.apply(children, built.pod_disruption_budgets).await?;
        pass.apply(children, built.autoscalers).await?;
    }
    pass.end()?;
    Ok(Applied {
        config_maps,
        services,
        deployments,
        refusal: None,
    })
}

/// The existing children of one kind, one per end.
fn own<K: Cached>(known: &Cache<K>, object: &ValidatedObject) -> Result<Vec<K>, NotKnown> {
    let mut found = dereference::own(known, &object.holder)?;
    found.retain(|end, _| object.gateway(*end).is_some());
    Ok(found.into_values().map(Arc::unwrap_or_clone).collect())
}
