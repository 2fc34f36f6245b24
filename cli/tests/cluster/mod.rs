//! A small API server that the program talks to as to a real one, over HTTP: objects by path, lists, Events, reviews
//! of rights, server-side apply, merge patches with their precondition, and requests that are refused when told to.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "shared by tests"
)]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tempfile::TempDir;

#[derive(Default)]
struct World {
    /// By path, such as `/api/v1/namespaces/shop/secrets/web-join`.
    objects: BTreeMap<String, Value>,
    /// Refusals by the beginning of a path.
    refused: BTreeMap<String, u16>,
    /// `verb resource` that a review says no to.
    rights_missing: Vec<String>,
    writes: Vec<(String, Value)>,
    made: u64,
}

/// The server and a kubeconfig that leads to it.
pub(crate) struct Cluster {
    world: Arc<Mutex<World>>,
    folder: TempDir,
    address: String,
}

impl Cluster {
    pub(crate) fn start() -> Self {
        let world = Arc::<Mutex<World>>::default();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let app = Router::new().fallback(answer).with_state(world.clone());
        // It ends with the test's process.
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                axum::serve(listener, app).await.unwrap();
            });
        });
        let cluster = Self {
            world,
            folder: tempfile::tempdir().unwrap(),
            address,
        };
        cluster.write_kubeconfig();
        cluster
    }

    fn write_kubeconfig(&self) {
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "contexts": [
                {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "shop"}},
                {"name": "far", "context": {"cluster": "c", "user": "u", "namespace": "backend"}},
                {"name": "nowhere", "context": {"cluster": "n", "user": "u"}},
            ],
            "clusters": [
                {"name": "c", "cluster": {"server": self.address}},
                // Nobody listens on the port of tcpmux.
                {"name": "n", "cluster": {"server": "http://127.0.0.1:1"}},
            ],
            "users": [{"name": "u", "user": {}}],
        });
        std::fs::write(self.file("kubeconfig"), config.to_string()).unwrap();
    }

    /// A file of the test.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap()
    }

    pub(crate) fn put(&self, path: &str, object: Value) {
        self.world().objects.insert(path.to_owned(), object);
    }

    pub(crate) fn get(&self, path: &str) -> Option<Value> {
        self.world().objects.get(path).cloned()
    }

    /// Puts a MuxTunnel of `tests/objects`, with a change.
    pub(crate) fn tunnel(&self, file: &str, change: impl FnOnce(&mut Value)) {
        let path = format!("{}/tests/objects/{file}", env!("CARGO_MANIFEST_DIR"));
        let mut object: Value =
            serde_yaml::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        change(&mut object);
        let metadata = &object["metadata"];
        let (namespace, name) = (
            metadata["namespace"].as_str().unwrap(),
            metadata["name"].as_str().unwrap(),
        );
        self.put(&tunnel_path(namespace, name), object.clone());
    }

    pub(crate) fn refuse(&self, path: &str, status: u16) {
        self.world().refused.insert(path.to_owned(), status);
    }

    pub(crate) fn take_right(&self, right: &str) {
        self.world().rights_missing.push(right.to_owned());
    }

    /// `METHOD path` and body of each write but reviews.
    pub(crate) fn writes(&self) -> Vec<(String, Value)> {
        self.world().writes.clone()
    }

    /// The program, called as `name`.
    pub(crate) fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_muxtunnel"));
        command
            .args(shlex::split(line).unwrap())
            .env("KUBECONFIG", self.file("kubeconfig"))
            .current_dir(self.folder.path())
            .stdin(Stdio::null());
        command
    }

    /// Runs it.
    pub(crate) fn run(&self, line: &str) -> Ran {
        Ran::from(self.command(line).output().unwrap())
    }
}

/// What a run came to.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) status: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            status: output.status.code().unwrap(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Ran {
    /// Standard output as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

pub(crate) fn tunnel_path(namespace: &str, name: &str) -> String {
    format!("/apis/muxtunnel.dev/v1alpha1/namespaces/{namespace}/muxtunnels/{name}")
}

async fn answer(
    State(world): State<Arc<Mutex<World>>>,
    method: Method,
    uri: Uri,
    body: Bytes,
) -> Response {
    let body: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let (status, answer) =
        world
            .lock()
            .unwrap()
            .handle(&method, uri.path(), uri.query().unwrap_or_default(), body);
    let headers = [("content-type", "application/json")];
    (status, headers, answer.to_string()).into_response()
}

impl World {
    fn handle(
        &mut self,
        method: &Method,
        path: &str,
        query: &str,
        body: Value,
    ) -> (StatusCode, Value) {
        let refused = self
            .refused
            .iter()
            .find(|(begin, _)| path.starts_with(begin.as_str()));
        if let Some((_, code)) = refused {
            return error(*code, "told to refuse");
        }
        if path == "/version" {
            let names = [
                "buildDate",
                "compiler",
                "gitCommit",
                "gitTreeState",
                "goVersion",
                "major",
                "minor",
                "platform",
            ];
            let mut info: Value = names
                .iter()
                .map(|name| ((*name).to_owned(), json!("")))
                .collect::<serde_json::Map<_, _>>()
                .into();
            info["gitVersion"] = json!("v1.33.1");
            return (StatusCode::OK, info);
        }
        if path.ends_with("/selfsubjectaccessreviews") {
            let asked = &body["spec"]["resourceAttributes"];
            let right = format!(
                "{} {}",
                asked["verb"].as_str().unwrap(),
                asked["resource"].as_str().unwrap()
            );
            let mut review = body.clone();
            review["status"] = json!({"allowed": !self.rights_missing.contains(&right)});
            return (StatusCode::CREATED, review);
        }
        match *method {
            Method::GET => self.read(path, query),
            Method::POST => {
                self.made += 1;
                let mut object = body.clone();
                let prefix = object["metadata"]["generateName"]
                    .as_str()
                    .unwrap()
                    .to_owned();
                let name = format!("{prefix}{}", self.made);
                object["metadata"]["name"] = json!(name);
                object["metadata"]["namespace"] = json!(path.split('/').nth(4).unwrap());
                object["status"] = self
                    .objects
                    .get("/probe-status")
                    .cloned()
                    .unwrap_or(Value::Null);
                self.writes.push((format!("POST {path}"), body));
                self.objects
                    .insert(format!("{path}/{name}"), object.clone());
                (StatusCode::CREATED, object)
            }
            Method::DELETE => {
                self.writes.push((format!("DELETE {path}"), Value::Null));
                match self.objects.remove(path) {
                    Some(object) => (StatusCode::OK, object),
                    None => error(404, "not found"),
                }
            }
            Method::PATCH => self.patch(path, query, body),
            _ => error(405, "method not allowed"),
        }
    }

    fn read(&self, path: &str, query: &str) -> (StatusCode, Value) {
        if let Some(object) = self.objects.get(path) {
            return (StatusCode::OK, object.clone());
        }
        let kinds = ["muxtunnels", "nodes", "deployments", "events", "namespaces"];
        let (place, kind) = path.rsplit_once('/').unwrap();
        if !kinds.contains(&kind) {
            return error(404, "not found");
        }
        let below = |stored: &str| match place.contains("/namespaces/") {
            true => stored.starts_with(&format!("{path}/")),
            false => stored.starts_with(place) && stored.split('/').rev().nth(1) == Some(kind),
        };
        let uid = query
            .split("involvedObject.uid%3D")
            .nth(1)
            .map(|rest| rest.split('&').next().unwrap());
        let selected =
            |object: &Value| uid.is_none_or(|uid| object["involvedObject"]["uid"] == uid);
        let items: Vec<_> = self
            .objects
            .iter()
            .filter(|(stored, object)| below(stored) && selected(object))
            .map(|(_, object)| object.clone())
            .collect();
        (
            StatusCode::OK,
            json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": items}),
        )
    }

    fn patch(&mut self, path: &str, query: &str, body: Value) -> (StatusCode, Value) {
        self.writes.push((format!("PATCH {path}"), body.clone()));
        if query.contains("fieldManager=") {
            self.objects.insert(path.to_owned(), body.clone());
            return (StatusCode::OK, body);
        }
        let Some(object) = self.objects.get_mut(path) else {
            return error(404, "not found");
        };
        let wanted = &body["metadata"]["resourceVersion"];
        if !wanted.is_null() && *wanted != object["metadata"]["resourceVersion"] {
            return error(409, "the object has been modified");
        }
        for (key, value) in body["metadata"]["annotations"].as_object().unwrap() {
            object["metadata"]["annotations"][key] = value.clone();
        }
        (StatusCode::OK, object.clone())
    }
}

fn error(code: u16, message: &str) -> (StatusCode, Value) {
    let reason = match code {
        403 => "Forbidden",
        404 => "NotFound",
        409 => "Conflict",
        _ => "InternalError",
    };
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "metadata": {},
        "code": code, "reason": reason, "message": message,
    });
    (StatusCode::from_u16(code).unwrap(), status)
}
