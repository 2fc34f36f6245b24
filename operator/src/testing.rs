//! A small API server in memory, for tests of whole reconciliations: recorded requests, UIDs, resource
//! versions, server-side apply, preconditions, label selectors, and requests that fail when told to.

mod selector;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

/// One request as the server saw it.
#[derive(Debug, Clone)]
pub(crate) struct Recorded {
    pub(crate) method: Method,
    /// Path below the namespace, such as `configmaps/web-exit`.
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) content_type: String,
    pub(crate) body: Value,
}

/// How a request fails.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Failure {
    /// The answer is an error and nothing was done.
    Before(u16),
    /// It was done, and the answer got lost.
    After(u16),
}

#[derive(Default)]
struct World {
    /// By path below the namespace.
    objects: BTreeMap<String, Value>,
    requests: Vec<Recorded>,
    /// Failures by the number of the writing request, counted from 0.
    failures: BTreeMap<usize, Failure>,
    writes: usize,
    version: u64,
    /// Paths that every request is refused with this.
    denied: BTreeMap<String, u16>,
    /// Nobody answers.
    away: bool,
    /// Objects that server-side apply made: what is in others belongs to another manager.
    applied: BTreeSet<String>,
}

/// The server. Clones share one state.
#[derive(Clone, Default)]
pub(crate) struct FakeApi(Arc<Mutex<World>>);

impl FakeApi {
    pub(crate) fn client(&self) -> Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let api = api.clone();
            async move {
                if api.lock().away {
                    return Err(std::io::Error::other("nobody answers"));
                }
                Ok(api.answer(request).await)
            }
        });
        Client::new(service, "default")
    }

    /// Puts an object there, as somebody else would.
    pub(crate) fn put(&self, path: &str, mut object: Value) {
        let mut world = self.lock();
        world.version += 1;
        let version = world.version;
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = json!(format!("uid-{version}"));
        }
        object["metadata"]["resourceVersion"] = json!(version.to_string());
        world.objects.insert(path.to_owned(), object);
    }

    /// Removes an object, as somebody else would.
    pub(crate) fn remove(&self, path: &str) {
        self.lock().objects.remove(path);
    }

    pub(crate) fn get(&self, path: &str) -> Option<Value> {
        self.lock().objects.get(path).cloned()
    }

    /// All objects without what differs from run to run.
    pub(crate) fn snapshot(&self) -> BTreeMap<String, Value> {
        let mut objects = self.lock().objects.clone();
        objects.retain(|path, _| !path.starts_with("events/"));
        for object in objects.values_mut() {
            let metadata = object["metadata"].as_object_mut().unwrap();
            metadata.remove("resourceVersion");
            metadata.remove("uid");
            for condition in object["status"]["conditions"]
                .as_array_mut()
                .into_iter()
                .flatten()
            {
                condition["lastTransitionTime"] = Value::Null;
            }
        }
        objects
    }

    /// The requests since the last call.
    pub(crate) fn take_requests(&self) -> Vec<Recorded> {
        std::mem::take(&mut self.lock().requests)
    }

    /// The writing requests since the last call, as `METHOD path`, without Events.
    pub(crate) fn take_writes(&self) -> Vec<String> {
        self.take_requests()
            .into_iter()
            .filter(|request| request.method != Method::GET && !request.path.starts_with("events"))
            .map(|request| format!("{} {}", request.method, request.path))
            .collect()
    }

    /// Lets the `number`th writing request from now on fail.
    pub(crate) fn fail_write(&self, number: usize, failure: Failure) {
        let mut world = self.lock();
        let number = world.writes + number;
        world.failures.insert(number, failure);
    }

    /// Refuses every request to `path` with `code`, as an API server does where a right or a definition is missing.
    pub(crate) fn deny(&self, path: &str, code: u16) {
        self.lock().denied.insert(path.to_owned(), code);
    }

    /// Whether nobody answers from now on.
    pub(crate) fn go_away(&self, away: bool) {
        self.lock().away = away;
    }

    fn lock(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap()
    }

    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let path = parts.uri.path();
        let below = path
            .split_once("/namespaces/")
            .and_then(|(_, rest)| rest.split_once('/'))
            .map_or(path, |(_, below)| below);
        let recorded = Recorded {
            method: parts.method,
            path: below.to_owned(),
            query: parts.uri.query().unwrap_or_default().to_owned(),
            content_type: parts
                .headers
                .get("content-type")
                .map(|value| value.to_str().unwrap().to_owned())
                .unwrap_or_default(),
            body: serde_json::from_slice(&body).unwrap_or(Value::Null),
        };
        let (status, answer) = self.lock().handle(&recorded);
        Response::builder()
            .status(status)
            .body(Body::from(serde_json::to_vec(&answer).unwrap()))
            .unwrap()
    }
}

impl World {
    fn handle(&mut self, request: &Recorded) -> (StatusCode, Value) {
        self.requests.push(request.clone());
        if let Some(code) = self.denied.get(&request.path) {
            return error(*code, "denied");
        }
        if request.method == Method::GET {
            return self.read(request);
        }
        let failure = self.failures.remove(&self.writes);
        self.writes += 1;
        match failure {
            Some(Failure::Before(code)) => error(code, "failed before"),
            Some(Failure::After(code)) => {
                self.write(request);
                error(code, "failed after")
            }
            None => self.write(request),
        }
    }

    fn read(&self, request: &Recorded) -> (StatusCode, Value) {
        if let Some(object) = self.objects.get(&request.path) {
            return (StatusCode::OK, object.clone());
        }
        if request.path.contains('/') {
            return error(404, "not found");
        }
        let selector = selector::parse(&request.query);
        let prefix = format!("{}/", request.path);
        let items: Vec<_> = self
            .objects
            .iter()
            .filter(|(path, object)| {
                path.starts_with(&prefix) && selector.matches(&object["metadata"]["labels"])
            })
            .map(|(_, object)| object.clone())
            .collect();
        let list = json!({
            "kind": "List", "apiVersion": "v1",
            "metadata": {"resourceVersion": self.version.to_string()},
            "items": items,
        });
        (StatusCode::OK, list)
    }

    fn write(&mut self, request: &Recorded) -> (StatusCode, Value) {
        match request.method {
            Method::PATCH => self.apply(request),
            Method::DELETE => self.delete(request),
            Method::PUT => self.replace(request),
            Method::POST => {
                let name = request.body["metadata"]["name"].as_str().unwrap();
                let path = format!("{}/{name}", request.path);
                if self.objects.contains_key(&path) {
                    return error(409, "exists");
                }
                let mut object = request.body.clone();
                object["metadata"]["uid"] = json!(format!("uid-{path}-{}", self.version));
                self.store(&path, object)
            }
            _ => error(405, "method not allowed"),
        }
    }

    /// RFC 7386, as far as patches go that remove nothing.
    fn merge(&mut self, request: &Recorded) -> (StatusCode, Value) {
        fn merge(into: &mut Value, patch: &Value) {
            match (into, patch) {
                (Value::Object(into), Value::Object(patch)) => {
                    for (key, patch) in patch {
                        merge(into.entry(key).or_insert(Value::Null), patch);
                    }
                }
                (into, patch) => *into = patch.clone(),
            }
        }
        let Some(mut object) = self.objects.get(&request.path).cloned() else {
            return error(404, "not found");
        };
        let wanted = &request.body["metadata"]["uid"];
        if !wanted.is_null() && *wanted != object["metadata"]["uid"] {
            return error(409, "the UID in the patch does not match");
        }
        merge(&mut object, &request.body);
        self.store(&request.path, object)
    }

    fn apply(&mut self, request: &Recorded) -> (StatusCode, Value) {
        if request.content_type == "application/merge-patch+json" {
            return self.merge(request);
        }
        if let Some(path) = request.path.strip_suffix("/status") {
            let Some(mut object) = self.objects.get(path).cloned() else {
                return error(404, "not found");
            };
            object["status"] = request.body["status"].clone();
            return self.store(path, object);
        }
        let mut object = request.body.clone();
        if self.objects.contains_key(&request.path)
            && !self.applied.contains(&request.path)
            && !request.query.contains("force=true")
        {
            return error(
                409,
                "Apply failed with 1 conflict: conflict with \"somebody\"",
            );
        }
        self.applied.insert(request.path.clone());
        if let Some(old) = self.objects.get(&request.path) {
            for kept in ["uid", "generation", "resourceVersion"] {
                object["metadata"][kept] = old["metadata"][kept].clone();
            }
            object["status"] = old["status"].clone();
            if object["spec"] != old["spec"] {
                let generation = old["metadata"]["generation"].as_i64().unwrap_or(1);
                object["metadata"]["generation"] = json!(generation + 1);
            }
        } else {
            let kind = request.path.split('/').next().unwrap();
            let name = request.path.split('/').next_back().unwrap();
            object["metadata"]["name"] = json!(name);
            object["metadata"]["uid"] = json!(format!("uid-{kind}-{name}"));
            object["metadata"]["generation"] = json!(1);
        }
        self.store(&request.path, object)
    }

    fn replace(&mut self, request: &Recorded) -> (StatusCode, Value) {
        let Some(old) = self.objects.get(&request.path) else {
            return error(404, "not found");
        };
        let read = &request.body["metadata"]["resourceVersion"];
        if !read.is_null() && *read != old["metadata"]["resourceVersion"] {
            return error(409, "the object has been modified");
        }
        self.store(&request.path, request.body.clone())
    }

    fn store(&mut self, path: &str, mut object: Value) -> (StatusCode, Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.objects.insert(path.to_owned(), object.clone());
        (StatusCode::OK, object)
    }

    fn delete(&mut self, request: &Recorded) -> (StatusCode, Value) {
        let Some(object) = self.objects.get(&request.path) else {
            return error(404, "not found");
        };
        let wanted = &request.body["preconditions"]["uid"];
        if !wanted.is_null() && *wanted != object["metadata"]["uid"] {
            return error(409, "the UID in the precondition does not match");
        }
        self.objects.remove(&request.path);
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Success"});
        (StatusCode::OK, status)
    }
}

fn error(code: u16, message: &str) -> (StatusCode, Value) {
    let reason = match code {
        404 => "NotFound",
        409 => "Conflict",
        _ => "InternalError",
    };
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure",
        "code": code, "reason": reason, "message": message,
    });
    (StatusCode::from_u16(code).unwrap(), status)
}
