//! The API server and the runner of a benchmark.

use std::sync::{Arc, Mutex};

use k8s_openapi::jiff::Timestamp;
use kube::runtime::controller::Action;
use muxbench::runner::board::Board;
use muxtunnel_bench_api::Path;
use muxtunnel_bench_api::result::{Cell, Record, Spread, Summary};
use muxtunnel_bench_api::runner::Phase;
use muxtunnel_crds::{MuxBenchmark, MuxBenchmarkStatus};
use serde_json::{Value, json};

use super::SPEC;
use crate::apply::Settled;
use crate::backoff::Backoffs;
use crate::benchmark_controller::names::KIND;
use crate::benchmark_controller::operator_key::OperatorKey;
use crate::benchmark_controller::test_support::{FakeRunner, noon};
use crate::benchmark_controller::{Context, reconcile, validate};
use crate::caches::Cluster;
use crate::classes::tests::known;
use crate::clock::Clock;
use crate::events::Events;
use crate::testing::FakeApi;
use crate::testing::benchmark::{NAME, NAMESPACE, benchmark, class, settings};
use crate::testing::health::health;
use crate::testing::tunnel::class_json;
use crate::testing::watching::Watches;
use crate::undecoded::{self, Guarded};

/// The API server, the runner and one operator.
pub(super) struct World {
    pub(super) cluster: FakeApi,
    pub(super) runner: FakeRunner,
    pub(super) class: Value,
    pub(super) key: [u8; 32],
    pub(super) now: fn() -> Timestamp,
}

impl World {
    pub(super) fn new(spec: &str) -> Self {
        let benchmark = benchmark(spec);
        let cluster = FakeApi::default();
        cluster.put(
            &format!("muxbenchmarks/{NAME}"),
            serde_json::to_value(&benchmark).unwrap(),
        );
        let matrix = validate::validate(&benchmark, Ok(class()));
        let runner = match matrix {
            Ok(_) => FakeRunner::new(&benchmark),
            Err(_) => FakeRunner::new(&crate::testing::benchmark::benchmark(SPEC)),
        };
        Self {
            cluster,
            runner,
            class: class_json(),
            key: [1; 32],
            now: noon,
        }
    }

    /// Starts another operator process with another key and without the state of the first process.
    pub(super) fn restarted(self) -> Self {
        let key = [self.key[0] + 1; 32];
        Self { key, ..self }
    }

    /// One reconciliation.
    pub(super) async fn reconcile(&self) -> Action {
        let client = self.cluster.client();
        let mut watches = Watches::new();
        watches.deliver(&self.cluster);
        let context = Context {
            events: Events::new(client.clone(), Clock::of(self.now)),
            cluster: Cluster {
                client,
                caches: watches.caches(),
                settled: Settled::default(),
            },
            classes: known([self.class.clone()]).classes,
            settings: Arc::new(settings()),
            runner: self.runner.clone(),
            key: OperatorKey(self.key),
            backoffs: Backoffs::default(),
            clock: Clock::of(self.now),
        };
        let object = self.cluster.get(&format!("muxbenchmarks/{NAME}")).unwrap();
        let object: Guarded<MuxBenchmark> = serde_json::from_value(object).unwrap();
        let benchmark = undecoded::decoded(object).unwrap();
        reconcile(Arc::new(benchmark), Arc::new(context))
            .await
            .unwrap()
    }

    /// Names of all objects of a kind.
    pub(super) fn names(&self, plural: &str) -> Vec<String> {
        let prefix = format!("{plural}/");
        let objects = self.cluster.snapshot();
        let names = objects.keys().filter_map(|path| path.strip_prefix(&prefix));
        names.map(str::to_owned).collect()
    }

    /// Sets the status of an object, as another controller does.
    pub(super) fn set_status(&self, plural: &str, name: &str, status: Value) {
        let path = format!("{plural}/{name}");
        let mut object = self.cluster.get(&path).unwrap();
        object["status"] = status;
        self.cluster.put(&path, object);
    }

    pub(super) fn status(&self) -> MuxBenchmarkStatus {
        let object = self.cluster.get(&format!("muxbenchmarks/{NAME}")).unwrap();
        serde_json::from_value(object["status"].clone()).unwrap()
    }

    /// The health that Argo CD shows.
    pub(super) fn health(&self) -> String {
        let object = self.cluster.get(&format!("muxbenchmarks/{NAME}")).unwrap();
        health(&object).0
    }

    /// The status and the message of a condition, such as `True MT0502 ...`.
    pub(super) fn verdict(&self, type_: &str) -> Option<String> {
        let condition = self
            .status()
            .conditions
            .into_iter()
            .find(|c| c.type_ == type_)?;
        Some(format!("{} {}", condition.status, condition.message))
    }

    pub(super) fn board(&self) -> std::sync::MutexGuard<'_, Board> {
        let board: &Arc<Mutex<Board>> = &self.runner.board;
        board.lock().unwrap()
    }

    pub(super) fn phases(&self) -> Vec<Phase> {
        self.board().state().environments
    }

    /// Lines of the results ConfigMap.
    pub(super) fn saved(&self) -> Vec<Record> {
        let results = self.cluster.get("configmaps/probe-results").unwrap();
        let lines = results["data"]["results.jsonl"]
            .as_str()
            .unwrap()
            .to_owned();
        lines
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    pub(super) fn start_runner(&self) {
        self.pod("probe-x", (KIND, NAME), "runner", None, "10.0.0.9");
        self.runner.mount(&self.cluster);
    }

    /// Acts as the kubelet and the tunnel's controller for the environment `e<number>`.
    pub(super) fn bring_up(&self, number: usize) {
        self.bring_agents_up(number);
        self.bring_tunnel_up(number, "native", 5);
    }

    pub(super) fn bring_agents_up(&self, number: usize) {
        let environment = format!("e{number}");
        let agents = [
            "direct-client",
            "direct-server",
            "tunnel-client",
            "tunnel-server",
        ];
        for (index, component) in agents.iter().enumerate() {
            let ip = format!("10.0.{number}.{}", index + 1);
            let name = format!("probe-{environment}-{component}-x");
            self.pod(&name, (KIND, NAME), component, Some(&environment), &ip);
        }
    }

    /// Creates the gateways of a tunnel and makes the tunnel ready. The entry has the address
    /// `10.0.<number>.<address>`, and the exit has the next address.
    pub(super) fn bring_tunnel_up(&self, number: usize, protocol: &str, address: usize) {
        let tunnel = format!("probe-e{number}-{protocol}");
        for (index, component) in ["entry", "exit"].iter().enumerate() {
            let ip = format!("10.0.{number}.{}", index + address);
            self.pod(
                &format!("{tunnel}-{component}-x"),
                ("MuxTunnel", &tunnel),
                component,
                None,
                &ip,
            );
        }
        self.tunnel_condition(
            &tunnel,
            "Ready",
            "True",
            "Reconciled",
            "MT0301 All objects match the spec.",
        );
    }

    pub(super) fn tunnel_condition(
        &self,
        tunnel: &str,
        type_: &str,
        status: &str,
        reason: &str,
        message: &str,
    ) {
        let condition = json!({
            "type": type_, "status": status, "reason": reason, "message": message,
            "observedGeneration": 1, "lastTransitionTime": "2030-01-01T12:00:00Z",
        });
        let name = format!("{tunnel}-entry");
        let service = json!({"name": name, "host": format!("{name}.site.svc"), "ports": []});
        self.set_status(
            "muxtunnels",
            tunnel,
            json!({"conditions": [condition], "services": [service]}),
        );
    }

    pub(super) fn pod(
        &self,
        name: &str,
        (kind, owner): (&str, &str),
        component: &str,
        environment: Option<&str>,
        ip: &str,
    ) {
        let mut labels: Value =
            serde_json::to_value(crate::labels::child(kind, owner, component)).unwrap();
        if let Some(environment) = environment {
            labels["muxtunnel.dev/environment"] = json!(environment);
        }
        let pod = json!({
            "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels},
            "status": {"phase": "Running", "podIP": ip, "conditions": [{"type": "Ready", "status": "True"}]},
        });
        self.cluster.put(&format!("pods/{name}"), pod);
    }

    /// Acts as the runner in the environment `index`.
    pub(super) fn measure(&self, index: usize) {
        let mut board = self.board();
        for path in [Path::Direct, Path::Tunnel] {
            board.add_cell(cell(path));
        }
        board.end_environment(index);
    }

    pub(super) fn end(&self) {
        let mut board = self.board();
        let summary = Summary::of(board.cells(), 60);
        board.set_summary(summary);
    }
}

fn cell(path: Path) -> Cell {
    serde_json::from_value(json!({
        "path": path, "one_way_delay_ms": 50, "profile": "None", "connections": 1, "rounds": 3,
        "duration_s": 5, "warm_up_s": 2, "status": "ok", "ratio_to_direct": 1.0,
        "mbit_s": Spread { median: 221.0, min: 219.0, max: 223.0 },
    }))
    .unwrap()
}
