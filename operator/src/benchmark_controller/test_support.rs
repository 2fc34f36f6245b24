//! Fixtures: a benchmark from YAML, a fake API server that keeps what it is sent, and a runner that
//! is the real board behind a fake network.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::client::Body;
use muxbench::runner::board::Board;
use muxtunnel_bench_api::runner::{Offer, State};
use muxtunnel_crds::MuxBenchmark;
use serde_json::{Value, json};

use super::runner_client::{RunnerApi, RunnerError};
use crate::settings::Settings;

/// Name of the benchmark of all tests; unlike the product's and its parts' names.
pub(super) const NAME: &str = "probe";
pub(super) const NAMESPACE: &str = "lab";
/// Start of the fake API server's time.
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
        gateway_image: "example/gateway:1".into(),
        netem_image: "example/netem:1".into(),
        bench_image: "example/bench:1".into(),
        image_pull_policy: "IfNotPresent".into(),
        wan_emulation: true,
    }
}

/// The API server: objects by path, and the requests that changed something.
#[derive(Clone, Default)]
pub(super) struct Cluster(Arc<Mutex<Store>>);

#[derive(Default)]
struct Store {
    objects: BTreeMap<String, Value>,
    changes: Vec<String>,
    uids: u64,
}

impl Cluster {
    pub(super) fn client(&self) -> Client {
        let cluster = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let cluster = cluster.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
                let query = head.uri.query().unwrap_or_default().to_owned();
                let (status, answer) = cluster.answer(&head.method, head.uri.path(), &query, body);
                let answer = Body::from(serde_json::to_vec(&answer).unwrap());
                Ok::<_, std::convert::Infallible>(
                    Response::builder().status(status).body(answer).unwrap(),
                )
            }
        });
        Client::new(service, NAMESPACE)
    }

    /// Requests that changed something since the last call, `VERB kind/name`, without Events.
    pub(super) fn take_changes(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap().changes)
    }

    /// The object `plural/name`.
    pub(super) fn get(&self, plural: &str, name: &str) -> Option<Value> {
        let store = self.0.lock().unwrap();
        let end = format!("/{plural}/{name}");
        store
            .objects
            .iter()
            .find(|(path, _)| path.ends_with(&end))
            .map(|(_, object)| object.clone())
    }

    /// Names of all objects of a kind.
    pub(super) fn names(&self, plural: &str) -> Vec<String> {
        let store = self.0.lock().unwrap();
        let part = format!("/{plural}/");
        let names = store
            .objects
            .keys()
            .filter_map(|path| Some(path.split_once(&part)?.1.to_owned()));
        names.collect()
    }

    /// Puts an object there, or changes one, as others than the operator do.
    pub(super) fn put(&self, path: &str, object: Value) {
        self.0
            .lock()
            .unwrap()
            .objects
            .insert(path.to_owned(), object);
    }

    /// Sets the status of an object.
    pub(super) fn set_status(&self, plural: &str, name: &str, status: Value) {
        let mut store = self.0.lock().unwrap();
        let end = format!("/{plural}/{name}");
        let object = store
            .objects
            .iter_mut()
            .find(|(path, _)| path.ends_with(&end))
            .unwrap()
            .1;
        object["status"] = status;
    }

    /// Deletes an object, as others than the operator do.
    pub(super) fn remove(&self, plural: &str, name: &str) {
        let end = format!("/{plural}/{name}");
        self.0
            .lock()
            .unwrap()
            .objects
            .retain(|path, _| !path.ends_with(&end));
    }

    fn answer(&self, method: &Method, path: &str, query: &str, body: Value) -> (StatusCode, Value) {
        let store = &mut *self.0.lock().unwrap();
        let segments: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        let at = segments
            .iter()
            .position(|segment| *segment == "namespaces")
            .unwrap()
            + 2;
        let (plural, name) = (segments[at], segments.get(at + 1).copied());
        if plural == "events" {
            return (StatusCode::CREATED, body);
        }
        match (method.as_str(), name) {
            ("GET", Some(_)) => match store.objects.get(path) {
                Some(object) => (StatusCode::OK, object.clone()),
                None => failure(StatusCode::NOT_FOUND),
            },
            ("GET", None) => {
                let selector = selector(query);
                let prefix = format!("{path}/");
                let matching = store.objects.iter().filter(|(path, object)| {
                    path.starts_with(&prefix) && selected(object, &selector)
                });
                let items: Vec<Value> = matching.map(|(_, object)| object.clone()).collect();
                (StatusCode::OK, json!({"metadata": {}, "items": items}))
            }
            ("POST", None) => {
                let name = body["metadata"]["name"].as_str().unwrap().to_owned();
                let path = format!("{path}/{name}");
                if store.objects.contains_key(&path) {
                    return failure(StatusCode::CONFLICT);
                }
                store.changes.push(format!("create {plural}/{name}"));
                (StatusCode::CREATED, store.keep(path, body))
            }
            ("PATCH", Some(name)) if segments.last() == Some(&"status") => {
                store.changes.push(format!("status {plural}/{name}"));
                let object = path.trim_end_matches("/status");
                let object = store.objects.get_mut(object).unwrap();
                object["status"] = body["status"].clone();
                (StatusCode::OK, object.clone())
            }
            ("PATCH", Some(name)) => {
                store.changes.push(format!("apply {plural}/{name}"));
                (StatusCode::OK, store.keep(path.to_owned(), body))
            }
            ("DELETE", Some(name)) => {
                store.changes.push(format!("delete {plural}/{name}"));
                store.objects.remove(path);
                (
                    StatusCode::OK,
                    json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}),
                )
            }
            other => panic!("not a request that the operator makes: {other:?} {path}"),
        }
    }
}

impl Store {
    fn keep(&mut self, path: String, mut object: Value) -> Value {
        let old = self.objects.get(&path);
        self.uids += 1;
        let uid = format!("uid-{}", self.uids);
        let kept = |field: &str, new: Value| old.map_or(new, |old| old["metadata"][field].clone());
        object["metadata"]["uid"] = kept("uid", json!(uid));
        object["metadata"]["creationTimestamp"] = kept("creationTimestamp", json!(NOON));
        object["metadata"]["generation"] = json!(1);
        if let Some(status) = old.and_then(|old| old.get("status")) {
            object["status"] = status.clone();
        }
        self.objects.insert(path, object.clone());
        object
    }
}

fn failure(status: StatusCode) -> (StatusCode, Value) {
    let code = status.as_u16();
    let reason = if code == 404 {
        "NotFound"
    } else {
        "AlreadyExists"
    };
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": reason,
        "reason": reason, "code": code,
    });
    (status, body)
}

/// `a=b,c in (d,e)` of the query as keys with their allowed values.
fn selector(query: &str) -> BTreeMap<String, Vec<String>> {
    let decoded = query
        .split('&')
        .find_map(|pair| pair.strip_prefix("labelSelector="))
        .unwrap_or_default()
        .replace('+', " ")
        .replace("%20", " ")
        .replace("%2F", "/")
        .replace("%2C", ",")
        .replace("%3D", "=")
        .replace("%28", "(")
        .replace("%29", ")");
    let mut wanted = BTreeMap::new();
    let (equalities, set) = decoded.split_once(" in (").unwrap_or((&decoded, ""));
    let mut equalities: Vec<&str> = equalities.split(',').collect();
    if !set.is_empty() {
        let key = equalities.pop().unwrap().to_owned();
        let values = set.trim_end_matches(')').split(',').map(str::to_owned);
        wanted.insert(key, values.collect());
    }
    for equality in equalities {
        if let Some((key, value)) = equality.split_once('=') {
            wanted.insert(key.to_owned(), vec![value.to_owned()]);
        }
    }
    wanted
}

fn selected(object: &Value, selector: &BTreeMap<String, Vec<String>>) -> bool {
    selector.iter().all(|(key, values)| {
        let label = object["metadata"]["labels"][key].as_str();
        label.is_some_and(|label| values.iter().any(|value| value == label))
    })
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
    pub(super) fn mount(&self, cluster: &Cluster) {
        let published = cluster.get("configmaps", "probe-operator").unwrap();
        let hash = published["data"]["sha256"].as_str().unwrap().to_owned();
        *self.mounted_hash.lock().unwrap() = hash;
    }

    fn admit(&self, token: &str) -> Result<MutexGuard<'_, Board>, RunnerError> {
        if *self.mounted_hash.lock().unwrap() == super::operator_key::published(token) {
            Ok(self.board.lock().unwrap())
        } else {
            Err(RunnerError::Refused("the bearer token is missing".into()))
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
