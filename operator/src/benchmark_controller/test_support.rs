//! Fixtures: a benchmark from YAML, and a runner that is the real board behind a fake network.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use muxbench::runner::board::Board;
use muxtunnel_bench_api::runner::{Offer, State};
use muxtunnel_crds::MuxBenchmark;
use serde_json::{Value, json};

use super::build::{self, results, runner};
use super::runner_client::{RunnerApi, RunnerError};
use crate::settings::Settings;
use crate::testing::FakeApi;

/// Name of the benchmark of all tests; unlike the product's and its parts' names.
pub(super) const NAME: &str = "probe";
pub(super) const NAMESPACE: &str = "site";
/// When everything happens.
pub(super) const NOON: &str = "2030-01-01T12:00:00Z";

/// A benchmark with the given spec, as the API server would send it (defaults filled in by serde).
pub(super) fn benchmark(spec: &str) -> MuxBenchmark {
    let spec: Value = serde_yaml::from_str(spec).unwrap();
    serde_json::from_value(json!({
        "apiVersion": "muxtunnel.dev/v1alpha1",
        "kind": "MuxBenchmark",
        "metadata": {"name": NAME, "namespace": NAMESPACE, "uid": "uid-of-probe", "generation": 1},
        "spec": spec,
    }))
    .unwrap()
}

pub(super) fn settings() -> Settings {
    Settings {
        gateway_image: "example.com/gateway:1".into(),
        netem_image: "example.com/netem:1".into(),
        bench_image: "example.com/bench:1".into(),
        image_pull_policy: "IfNotPresent".into(),
        wan_emulation: true,
        pod_metadata: crate::settings::default_pod_metadata(),
        network_policy: None,
        namespace: "operators".to_owned(),
        service_account: "operator".to_owned(),
        ca_secret: "authorities".to_owned(),
        trust_domain: "example.org".to_owned(),
        certificate_life: Duration::from_secs(24 * 3600),
        authority_life: Duration::from_secs(365 * 24 * 3600),
    }
}

/// All objects that are made for a benchmark of everything.
pub(crate) fn objects() -> Vec<Value> {
    let spec = "
tunnel: {carrier: {security: {mode: None}}}
delays: [50ms, 0ms]
tunings: [Wan]
";
    let valid = super::validate::validate(&benchmark(spec)).unwrap();
    let mut objects = vec![
        json!(runner::job(&settings(), &valid)),
        json!(runner::secret(&valid, "token")),
        json!(runner::operator_key(&valid, "hash".to_owned())),
        json!(results::config_map(&valid, &[], None)),
    ];
    for environment in &valid.environments {
        let made = build::environment(&settings(), &valid, environment).unwrap();
        objects.extend(made.tunnels.iter().map(|object| json!(object)));
        objects.extend(made.services.iter().map(|object| json!(object)));
        objects.extend(made.agents.iter().map(|object| json!(object)));
    }
    objects
}

/// The runner: the real board, reached without a network. It knows the operator by what the kubelet
/// last brought to its pod.
#[derive(Clone)]
pub(super) struct FakeRunner {
    pub(super) board: Arc<Mutex<Board>>,
    mounted_hash: Arc<Mutex<String>>,
}

impl FakeRunner {
    pub(super) fn new(benchmark: &MuxBenchmark) -> Self {
        let matrix = super::validate::validate(benchmark).unwrap().matrix;
        Self {
            board: Arc::new(Mutex::new(Board::new(matrix))),
            mounted_hash: Arc::default(),
        }
    }

    /// What the kubelet does within 90 seconds.
    pub(super) fn mount(&self, cluster: &FakeApi) {
        let published = cluster.get("configmaps/probe-operator").unwrap();
        let hash = published["data"]["sha256"].as_str().unwrap().to_owned();
        *self.mounted_hash.lock().unwrap() = hash;
    }

    fn admit(&self, token: &str) -> Result<MutexGuard<'_, Board>, RunnerError> {
        if *self.mounted_hash.lock().unwrap() == super::operator_key::published(token) {
            Ok(self.board.lock().unwrap())
        } else {
            Err(RunnerError::Unknown)
        }
    }
}

impl RunnerApi for FakeRunner {
    async fn state(&self, _: &str, token: &str) -> Result<State, RunnerError> {
        Ok(self.admit(token)?.state())
    }

    async fn offer(
        &self,
        _: &str,
        token: &str,
        index: usize,
        offer: &Offer,
    ) -> Result<State, RunnerError> {
        let mut board = self.admit(token)?;
        let taken = board.offer(index, offer.clone());
        taken.map_err(|error| RunnerError::Refused(error.to_string()))?;
        Ok(board.state())
    }

    async fn finish(&self, _: &str, token: &str) -> Result<State, RunnerError> {
        let mut board = self.admit(token)?;
        board.finish();
        Ok(board.state())
    }
}

pub(super) fn noon() -> Timestamp {
    NOON.parse().unwrap()
}
