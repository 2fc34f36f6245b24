//! A runner with the real board and a fake network.

use std::sync::{Arc, Mutex, MutexGuard};

use k8s_openapi::jiff::Timestamp;
use muxbench::runner::board::Board;
use muxtunnel_bench_api::runner::State;
use muxtunnel_crds::MuxBenchmark;

use super::runner_client::{Ask, RunnerApi, RunnerError};
use crate::testing::FakeApi;
use crate::testing::benchmark::class;

/// The time of all tests.
pub(super) const NOON: &str = "2030-01-01T12:00:00Z";

/// The runner: its real board without a network. The runner accepts the operator's token whose hash
/// the kubelet wrote to the runner's pod most recently.
#[derive(Clone)]
pub(super) struct FakeRunner {
    pub(super) board: Arc<Mutex<Board>>,
    mounted_hash: Arc<Mutex<String>>,
}

impl FakeRunner {
    pub(super) fn new(benchmark: &MuxBenchmark) -> Self {
        let matrix = super::validate::validate(benchmark, Ok(class()))
            .unwrap()
            .matrix;
        Self {
            board: Arc::new(Mutex::new(Board::new(matrix))),
            mounted_hash: Arc::default(),
        }
    }

    /// Updates the mounted ConfigMap, as the kubelet does within 90 seconds.
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
    async fn ask(&self, _: &str, token: &str, ask: Ask<'_>) -> Result<State, RunnerError> {
        let mut board = self.admit(token)?;
        match ask {
            Ask::State => {}
            Ask::Offer(index, offer) => {
                let taken = board.offer(index, offer.clone());
                taken.map_err(|error| RunnerError::Refused(error.to_string()))?;
            }
            Ask::Finish => board.finish(),
        }
        Ok(board.state())
    }
}

pub(super) fn noon() -> Timestamp {
    NOON.parse().unwrap()
}
