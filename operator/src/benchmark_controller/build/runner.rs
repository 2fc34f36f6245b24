//! The runner: its Job, and the Secret with the token that operator, runner and agents share.

use k8s_openapi::ByteString;
use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::api::core::v1::{PodSpec, PodTemplateSpec, Secret};
use kube::api::ObjectMeta;

use super::agents::{TOKEN_FILE, container, pod};
use crate::benchmark_controller::names::{self, RUNNER};
use crate::benchmark_controller::validate::ValidatedBenchmark;
use crate::labels;
use crate::settings::Settings;

/// Key of the token in its Secret.
pub const TOKEN_KEY: &str = "token";

/// The Secret. `token`: text that nobody can guess.
#[must_use]
pub fn secret(benchmark: &ValidatedBenchmark, token: &str) -> Secret {
    Secret {
        metadata: metadata(benchmark, names::token(&benchmark.name)),
        data: Some([(TOKEN_KEY.to_owned(), ByteString(token.as_bytes().to_vec()))].into()),
        immutable: Some(true),
        type_: Some("Opaque".to_owned()),
        ..Secret::default()
    }
}

/// The Job. One pod, once: a second one would not know what the first had measured.
#[must_use]
pub fn job(settings: &Settings, benchmark: &ValidatedBenchmark) -> Job {
    let mut args = vec!["run".to_owned()];
    args.extend(benchmark.matrix.to_args());
    args.push(format!("--token-file={TOKEN_FILE}"));
    args.push("--termination-log=/dev/termination-log".to_owned());
    Job {
        metadata: metadata(benchmark, names::job(&benchmark.name)),
        spec: Some(JobSpec {
            backoff_limit: Some(0),
            ttl_seconds_after_finished: benchmark.ttl_seconds_after_finished,
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta {
                    labels: Some(labels::child(&benchmark.name, RUNNER)),
                    ..ObjectMeta::default()
                }),
                spec: Some(PodSpec {
                    restart_policy: Some("Never".to_owned()),
                    containers: vec![container(settings, RUNNER, args)],
                    ..pod(benchmark)
                }),
            },
            ..JobSpec::default()
        }),
        status: None,
    }
}

fn metadata(benchmark: &ValidatedBenchmark, name: String) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: Some(benchmark.namespace.clone()),
        labels: Some(labels::child(&benchmark.name, RUNNER)),
        owner_references: Some(vec![benchmark.owner.clone()]),
        ..ObjectMeta::default()
    }
}
