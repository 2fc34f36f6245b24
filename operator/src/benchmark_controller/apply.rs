//! Applies the built objects. This module requires a client.
//!
//! The module creates the runner's Job and token once. It applies the objects of an environment,
//! and in the same step deletes the objects of all other environments.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, Resource, ResourceExt};
use muxtunnel_crds::MuxTunnel;

use super::build::EnvironmentObjects;
use super::names::{ENVIRONMENT_COMPONENTS, RESULTS, RUNNER};
use super::validate::ValidatedBenchmark;
use crate::apply::{
    ApplyError, Child, Children, Obstacle, Obstacles, apply as apply_kind, is_owned, obstacles,
};
use crate::caches::{Cached, Cluster};

/// The stored objects of an environment.
#[derive(Debug, Default)]
pub struct AppliedEnvironment {
    /// The tunnels, with their status.
    pub tunnels: Vec<MuxTunnel>,
    /// The Deployments of the agents, with their status.
    pub agents: Vec<Deployment>,
    /// When the first object of the environment was created.
    pub created: Option<Timestamp>,
}

/// Applies the built environment, and deletes all others.
///
/// # Errors
/// [`ApplyError`].
pub async fn environment(
    cluster: &Cluster,
    benchmark: &ValidatedBenchmark,
    built: EnvironmentObjects,
) -> Result<AppliedEnvironment, ApplyError> {
    let children = children(benchmark, &ENVIRONMENT_COMPONENTS);
    let (services, agents, tunnels) = match in_order(cluster, children, &built).await {
        Err(ApplyError::OwnedByOther(first)) => {
            // If the other obstacles cannot be read, the first one is known.
            let all = all_obstacles(cluster, children, &built).await.ok();
            let all = all.filter(|all| !all.0.is_empty()).unwrap_or(first);
            return Err(ApplyError::OwnedByOther(all));
        }
        applied => applied?,
    };
    let created = created(&services)
        .chain(created(&agents))
        .chain(created(&tunnels))
        .min();
    Ok(AppliedEnvironment {
        tunnels,
        agents,
        created,
    })
}

type Stored = (Vec<Service>, Vec<Deployment>, Vec<MuxTunnel>);

async fn in_order(
    cluster: &Cluster,
    children: Children<'_>,
    built: &EnvironmentObjects,
) -> Result<Stored, ApplyError> {
    let services = apply_kind(cluster, children, built.services.clone()).await?;
    let agents = apply_kind(cluster, children, built.agents.clone()).await?;
    let tunnels = apply_kind(cluster, children, built.tunnels.clone()).await?;
    Ok((services, agents, tunnels))
}

/// All obstacles for `built`, so that a user can remove them at once.
async fn all_obstacles(
    cluster: &Cluster,
    children: Children<'_>,
    built: &EnvironmentObjects,
) -> Result<Obstacles, ApplyError> {
    let mut all = obstacles(cluster, children, &built.services).await?;
    all.extend(obstacles(cluster, children, &built.agents).await?);
    all.extend(obstacles(cluster, children, &built.tunnels).await?);
    Ok(Obstacles(all))
}

/// The children have no generation, because the spec is immutable. Results stay with nobody if
/// their benchmark is deleted without them: another benchmark of the same name must not overwrite
/// them.
fn children<'a>(benchmark: &'a ValidatedBenchmark, components: &'a [&'a str]) -> Children<'a> {
    Children {
        namespace: &benchmark.namespace,
        components,
        owner: &benchmark.owner,
        generation: None,
        adopts: !components.contains(&RESULTS),
    }
}

fn created<K: Resource>(objects: &[K]) -> impl Iterator<Item = Timestamp> {
    objects
        .iter()
        .filter_map(|object| Some(object.meta().creation_timestamp.as_ref()?.0))
}

/// Creates the token of runner and agents, the ConfigMap with the hash of the operator's token, and
/// the Job. An existing Job of the benchmark stays unchanged.
///
/// # Errors
/// [`ApplyError`]. The next call continues.
pub async fn runner(
    cluster: &Cluster,
    benchmark: &ValidatedBenchmark,
    secret: &Secret,
    key: ConfigMap,
    job: &Job,
) -> Result<(), ApplyError> {
    // An existing Secret with this name belongs to this benchmark (see `names::token`). An earlier
    // start that failed before the Job was created has created the Secret.
    create(cluster, benchmark, secret).await?;
    operator_key(cluster, benchmark, key).await?;
    if let Some(job) = create(cluster, benchmark, job).await? {
        Job::of(&cluster.caches).wrote(&job);
        return Ok(());
    }
    let api: Api<Job> = Api::namespaced(cluster.client.clone(), &benchmark.namespace);
    let name = job.name_any();
    let there = api
        .get(&name)
        .await
        .map_err(|source| failed::<Job>("get", &name, source))?;
    if is_owned(&there, &benchmark.owner) {
        return Ok(());
    }
    Err(Obstacle::of(&there).into())
}

/// Creates an object. Returns `None` if an object with this name exists.
async fn create<K: Child>(
    cluster: &Cluster,
    benchmark: &ValidatedBenchmark,
    object: &K,
) -> Result<Option<K>, ApplyError> {
    let api: Api<K> = Api::namespaced(cluster.client.clone(), &benchmark.namespace);
    match api.create(&PostParams::default(), object).await {
        Ok(created) => Ok(Some(created)),
        Err(kube::Error::Api(status)) if status.code == 409 && status.reason == "AlreadyExists" => {
            Ok(None)
        }
        Err(source) => Err(failed::<K>("create", &object.name_any(), source)),
    }
}

fn failed<K: Child>(verb: &'static str, name: &str, source: kube::Error) -> ApplyError {
    let kind = K::kind(&()).into_owned();
    ApplyError::Api {
        verb,
        kind,
        name: name.to_owned(),
        source: Box::new(source),
    }
}

/// Publishes the hash of this operator's token to the runner.
///
/// # Errors
/// [`ApplyError`].
pub async fn operator_key(
    cluster: &Cluster,
    benchmark: &ValidatedBenchmark,
    key: ConfigMap,
) -> Result<(), ApplyError> {
    apply_kind(cluster, children(benchmark, &[RUNNER]), vec![key]).await?;
    Ok(())
}

/// Writes the results.
///
/// # Errors
/// [`ApplyError`].
pub async fn results(
    cluster: &Cluster,
    benchmark: &ValidatedBenchmark,
    results: ConfigMap,
) -> Result<(), ApplyError> {
    apply_kind(cluster, children(benchmark, &[RESULTS]), vec![results]).await?;
    Ok(())
}
