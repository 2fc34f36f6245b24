//! The runner: its Job, the Secret with the token that it shares with the agents, and the ConfigMap
//! that authenticates the operator.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::api::core::v1::{ConfigMap, LocalObjectReference, PodSpec, Secret};
use kube::api::ObjectMeta;
use muxtunnel_crds::BenchmarkContainerName;

use super::agents::pod;
use super::{owned, template};
use crate::benchmark_controller::names::{self, KIND};
use crate::benchmark_controller::validate::ValidatedBenchmark;
use crate::labels::{self, RUNNER};
use crate::muxbench::{self, TOKEN_FILE, container};
use crate::pods;

/// Key of the token in its Secret.
const TOKEN_KEY: &str = "token";

/// Key of the hash in its ConfigMap.
const HASH_KEY: &str = "sha256";
/// Mount point of the directory with the published hash of the operator's token. The pod mounts the
/// whole directory, because the kubelet never updates a file that is mounted by subPath.
const OPERATOR_DIRECTORY: &str = "/etc/muxbench-operator";
const OPERATOR_VOLUME: &str = "operator";

/// The ConfigMap. `hash`: the published hash of the operator's token.
pub fn operator_key(benchmark: &ValidatedBenchmark, hash: String) -> ConfigMap {
    ConfigMap {
        metadata: metadata(benchmark, names::operator(&benchmark.name)),
        data: Some([(HASH_KEY.to_owned(), hash)].into()),
        ..ConfigMap::default()
    }
}

/// The Secret. `token`: a random text.
pub fn secret(benchmark: &ValidatedBenchmark, token: &str) -> Secret {
    Secret {
        metadata: metadata(
            benchmark,
            muxbench::token(&benchmark.name, &benchmark.owner.uid),
        ),
        data: Some([(TOKEN_KEY.to_owned(), ByteString(token.as_bytes().to_vec()))].into()),
        immutable: Some(true),
        type_: Some("Opaque".to_owned()),
        ..Secret::default()
    }
}

/// The Job. The Job runs one pod once, because a second pod would not know the measurements of the
/// first pod.
pub fn job(benchmark: &ValidatedBenchmark) -> Job {
    let mut args = vec!["run".to_owned()];
    args.extend(benchmark.matrix.to_args());
    args.push(format!("--token-file={TOKEN_FILE}"));
    args.push("--termination-log=/dev/termination-log".to_owned());
    args.push(format!(
        "--operator-hash-file={OPERATOR_DIRECTORY}/{HASH_KEY}"
    ));
    let resources = benchmark.resources(BenchmarkContainerName::Runner);
    let mut container = container(&benchmark.class, RUNNER, args, resources);
    container
        .volume_mounts
        .get_or_insert_default()
        .push(pods::read_only(OPERATOR_VOLUME, OPERATOR_DIRECTORY));
    let mut asked = benchmark.template.clone();
    let own = asked.spec.get_or_insert_default();
    if own.image_pull_secrets.is_empty() {
        own.image_pull_secrets = pull_secrets(benchmark);
    }
    let asked = benchmark.class.common(&asked).spec.unwrap_or_default();
    let mut pod = PodSpec {
        restart_policy: Some("Never".to_owned()),
        containers: vec![container],
        ..pod(benchmark, pods::of_template(asked))
    };
    let hash = pods::config_map_volume(OPERATOR_VOLUME, names::operator(&benchmark.name), None);
    pod.volumes.get_or_insert_default().push(hash);
    Job {
        metadata: metadata(benchmark, benchmark.name.clone()),
        spec: Some(JobSpec {
            backoff_limit: Some(0),
            ttl_seconds_after_finished: benchmark.ttl_seconds_after_finished,
            template: template(benchmark, own_labels(benchmark), pod),
            ..JobSpec::default()
        }),
        status: None,
    }
}

/// The Secrets for images of both ends, because the runner belongs to no end.
fn pull_secrets(benchmark: &ValidatedBenchmark) -> Vec<LocalObjectReference> {
    let ends = [&benchmark.tunnel.entry, &benchmark.tunnel.exit];
    let ends = ends.into_iter().flatten();
    let templates = ends.filter_map(|end| end.template.as_ref()?.spec.as_ref());
    let mut secrets = Vec::new();
    for secret in templates.flat_map(|template| &template.image_pull_secrets) {
        if !secrets.contains(secret) {
            secrets.push(secret.clone());
        }
    }
    secrets
}

fn metadata(benchmark: &ValidatedBenchmark, name: String) -> ObjectMeta {
    owned(benchmark, name, own_labels(benchmark))
}

fn own_labels(benchmark: &ValidatedBenchmark) -> BTreeMap<String, String> {
    labels::child(KIND, &benchmark.name, RUNNER)
}
