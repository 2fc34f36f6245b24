//! Applies the built objects. This module requires a client.
//!
//! The module creates the runner's Job and token once. It applies the objects of an environment,
//! and in the same step deletes the objects of all other environments.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::PostParams;
use kube::{Api, ResourceExt};

use super::build::EnvironmentObjects;
use super::names::{ENVIRONMENT_COMPONENTS, RESULTS};
use super::validate::ValidatedBenchmark;
use crate::apply::{ApplyError, Children, Pass, failed};
use crate::caches::Cluster;
use crate::labels::RUNNER;

/// Applies the built environment, and deletes all others. Returns the stored objects.
pub async fn environment(
    cluster: &Cluster,
    benchmark: &ValidatedBenchmark,
    built: EnvironmentObjects,
) -> Result<EnvironmentObjects, ApplyError> {
    let children = children(benchmark, &ENVIRONMENT_COMPONENTS);
    let mut pass = Pass::new(cluster);
    let stored = EnvironmentObjects {
        services: pass.apply(children, built.services).await?,
        agents: pass.apply(children, built.agents).await?,
        tunnels: pass.apply(children, built.tunnels).await?,
    };
    pass.end()?;
    Ok(stored)
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
    let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), &benchmark.namespace);
    match secrets.create(&PostParams::default(), secret).await {
        // The Secret belongs to this benchmark (see `muxbench::token`). An earlier start that
        // failed before the Job was created has created it.
        Err(kube::Error::Api(status)) if status.is_already_exists() => {}
        created => drop(created.map_err(failed::<Secret>("create", &secret.name_any()))?),
    }
    config_map(cluster, benchmark, RUNNER, key).await?;
    let mut pass = Pass::new(cluster);
    let children = Children {
        // A Job that nobody owns measured the matrix of another benchmark.
        adopts: false,
        ..children(benchmark, &[RUNNER])
    };
    pass.create(children, job).await?;
    pass.end()
}

/// Applies the only ConfigMap with this component: the hash of the operator's token, or the
/// results.
pub async fn config_map(
    cluster: &Cluster,
    benchmark: &ValidatedBenchmark,
    component: &str,
    config_map: ConfigMap,
) -> Result<(), ApplyError> {
    let (mut pass, components) = (Pass::new(cluster), [component]);
    let children = children(benchmark, &components);
    pass.apply(children, vec![config_map]).await?;
    pass.end()
}
