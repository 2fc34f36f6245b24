//! An API server in memory, for tests of whole reconciliations: UIDs, resource versions, generations,
//! server-side apply with field managers (`managers`), defaults and quantities as the real one writes
//! them (`kinds`), fields that do not change, preconditions, label selectors, collection by owner
//! reference, and watches, which lag behind as far as a test wants. Also over HTTP, for
//! another process ([`FakeApi::router`]).
//!
//! It records requests, and fails when told to: before or after a write is done, by dying at any write,
//! by chance, for one resource alone, or altogether.

mod controllers;
mod kinds;
mod loopback;
mod managers;
mod quantity;
mod selector;
mod watching;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use kube::Client;
use kube::client::Body;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use tokio::sync::watch;

use managers::Managers;

/// One request as the server saw it.
#[derive(Debug, Clone)]
pub struct Recorded {
    /// What is to be done.
    pub method: Method,
    /// A [`key`] where it names an object, such as `configmaps/web-exit`; otherwise the path below the namespace.
    pub path: String,
    /// Behind the `?`.
    pub query: String,
    /// Which sort of patch it is.
    pub content_type: String,
    /// `Null`: none.
    pub body: Value,
    namespace: Option<String>,
}

/// How a request fails.
#[derive(Debug, Clone, Copy)]
pub enum Failure {
    /// The answer is an error and nothing was done.
    Before(u16),
    /// It was done, and the answer got lost.
    After(u16),
    /// The operator dies once this write is done, before it has the answer: it sends nothing more.
    Killed,
}

/// What becomes of all requests for one resource.
#[derive(Debug, Clone, Copy)]
pub enum Trouble {
    /// They are answered so.
    Status(u16),
    /// They are never answered, so the client's read time-out ends them.
    Hangs,
}

/// That of the operator's client.
const READ_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(60);

#[derive(Default)]
struct World {
    /// By [`key`].
    objects: BTreeMap<String, Stored>,
    changes: Vec<Change>,
    requests: Vec<Recorded>,
    /// Failures by the number of the writing request, counted from 0.
    failures: BTreeMap<usize, Failure>,
    /// The share of writes that fail by chance.
    chaos: Option<(StdRng, f64)>,
    troubles: BTreeMap<String, Trouble>,
    /// Paths that every request is refused with this.
    denied: BTreeMap<String, u16>,
    /// By resource: what a webhook sets at each write.
    webhooks: Vec<(String, String, Value)>,
    /// Nobody answers.
    away: bool,
    writes: usize,
    version: u64,
    /// Changes up to this version are forgotten: a watch from before is answered 410.
    forgotten: u64,
}

/// The namespace of paths that name none.
const NAMESPACE: &str = "site";

/// What an object is stored under: `configmaps/web-exit`, and behind it `@` and the namespace, unless that is `site`.
fn key(namespace: Option<&str>, path: &str) -> String {
    match namespace {
        Some(namespace) if namespace != NAMESPACE => {
            // Before a subresource.
            let mut parts = path.splitn(3, '/');
            let (resource, name) = (parts.next().unwrap(), parts.next());
            match (name, parts.next()) {
                (None, _) => resource.to_owned(),
                (Some(name), None) => format!("{resource}/{name}@{namespace}"),
                (Some(name), Some(rest)) => format!("{resource}/{name}@{namespace}/{rest}"),
            }
        }
        _ => path.to_owned(),
    }
}

/// The name and the namespace in the key of an object.
fn name_in(key: &str) -> (&str, &str) {
    let (_, name) = key.split_once('/').unwrap();
    name.split_once('@').unwrap_or((name, NAMESPACE))
}

/// Whether the object with that key is in `namespace`; `None`: in any.
fn is_in(key: &str, namespace: Option<&str>) -> bool {
    namespace.is_none_or(|namespace| name_in(key).1 == namespace)
}

#[derive(Clone, Default, PartialEq)]
struct Stored {
    object: Value,
    managers: Managers,
}

impl Stored {
    /// As clients see it.
    fn shown(&self) -> Value {
        let mut object = self.object.clone();
        object["metadata"]["managedFields"] = self.managers.fields();
        object
    }
}

/// One step in the life of an object, for watches.
struct Change {
    version: u64,
    path: String,
    old: Option<Arc<Value>>,
    new: Option<Arc<Value>>,
}

/// An object before and after a change.
pub type Changed = (Option<Arc<Value>>, Option<Arc<Value>>);

/// The server. Clones share one state.
#[derive(Clone)]
pub struct FakeApi {
    world: Arc<Mutex<World>>,
    /// The newest version, for watches.
    newest: Arc<watch::Sender<u64>>,
}

impl Default for FakeApi {
    fn default() -> Self {
        Self {
            world: Arc::default(),
            newest: Arc::new(watch::Sender::new(0)),
        }
    }
}

/// What a client is answered.
pub type Answer = Response<UnsyncBoxBody<Bytes, std::io::Error>>;

impl FakeApi {
    /// A client of it within this process.
    #[must_use]
    pub fn client(&self) -> Client {
        Client::new(self.service(), "default")
    }

    /// What a client sends its requests to, to put layers around.
    pub fn service(
        &self,
    ) -> impl tower::Service<
        Request<Body>,
        Response = Answer,
        Error = std::io::Error,
        Future: Send + 'static,
    > + Clone
    + Send
    + 'static {
        let api = self.clone();
        tower::service_fn(move |request: Request<Body>| {
            let api = api.clone();
            async move { api.answer(request).await }
        })
    }

    /// Puts an object there, as somebody else would.
    pub fn put(&self, path: &str, mut object: Value) {
        let mut world = self.lock();
        let metadata = &mut object["metadata"];
        let (name, namespace) = name_in(path);
        if metadata["name"].is_null() {
            metadata["name"] = json!(name);
        }
        if metadata["namespace"].is_null() {
            metadata["namespace"] = json!(namespace);
        }
        // The object says where it is.
        let own = metadata["namespace"].as_str().unwrap().to_owned();
        let path = &match namespace {
            NAMESPACE => key(Some(&own), path),
            _ => path.to_owned(),
        };
        let old = world.objects.get(path).cloned();
        let metadata = &mut object["metadata"];
        if metadata["uid"].is_null() {
            metadata["uid"] = match &old {
                Some(old) => old.object["metadata"]["uid"].clone(),
                None => json!(format!("uid-{}", world.version + 1)),
            };
        }
        metadata.as_object_mut().unwrap().remove("managedFields");
        let mut managers = old.clone().unwrap_or_default().managers;
        let before = old.map(|old| old.object).unwrap_or(Value::Null);
        managers.updated("somebody", "", &before, &object);
        world.store(path, Stored { object, managers });
        self.wake(&world);
    }

    /// The objects of a resource, as clients see them.
    #[must_use]
    pub fn list(&self, resource: &str) -> Vec<Value> {
        let prefix = format!("{resource}/");
        let world = self.lock();
        let objects = world.objects.iter();
        objects
            .filter(|(path, _)| path.starts_with(&prefix))
            .map(|(_, stored)| stored.shown())
            .collect()
    }

    /// What became of the objects of a resource after the version `after` and until `until`: each as it was before a
    /// change and behind it.
    #[must_use]
    pub fn changes(&self, resource: &str, after: u64, until: u64) -> Vec<Changed> {
        let prefix = format!("{resource}/");
        let world = self.lock();
        let changes = world.changes.iter();
        changes
            .filter(|change| change.version > after && change.version <= until)
            .filter(|change| change.path.starts_with(&prefix))
            .map(|change| (change.old.clone(), change.new.clone()))
            .collect()
    }

    /// Removes an object, as somebody else would.
    pub fn remove(&self, path: &str) {
        let mut world = self.lock();
        world.forget(path);
        self.wake(&world);
    }

    /// An object without its `managedFields`.
    #[must_use]
    pub fn get(&self, path: &str) -> Option<Value> {
        self.lock()
            .objects
            .get(path)
            .map(|stored| stored.object.clone())
    }

    /// All objects without what differs from run to run.
    pub fn snapshot(&self) -> BTreeMap<String, Value> {
        let world = self.lock();
        let objects = world
            .objects
            .iter()
            .filter(|(path, _)| !path.starts_with("events/"));
        let same = |(path, stored): (&String, &Stored)| {
            let mut object = stored.object.clone();
            let metadata = object["metadata"].as_object_mut().unwrap();
            for differs in ["resourceVersion", "uid", "creationTimestamp", "generation"] {
                metadata.remove(differs);
            }
            let conditions = object["status"]["conditions"].as_array_mut();
            for condition in conditions.into_iter().flatten() {
                condition["lastTransitionTime"] = Value::Null;
            }
            (path.clone(), object)
        };
        objects.map(same).collect()
    }

    /// The requests since the last call.
    pub fn take_requests(&self) -> Vec<Recorded> {
        std::mem::take(&mut self.lock().requests)
    }

    /// The writing requests since the last call, as `METHOD path`, without Events.
    pub fn take_writes(&self) -> Vec<String> {
        self.take_requests()
            .into_iter()
            .filter(|request| request.method != Method::GET && !request.path.starts_with("events"))
            .map(|request| format!("{} {}", request.method, request.path))
            .collect()
    }

    /// Writing requests since the beginning, Events included.
    pub fn writes(&self) -> usize {
        self.lock().writes
    }

    /// The newest version of anything.
    pub fn newest(&self) -> u64 {
        self.lock().version
    }

    /// Lets the `number`th writing request from now on fail.
    pub fn fail_write(&self, number: usize, failure: Failure) {
        let mut world = self.lock();
        let number = world.writes + number;
        world.failures.insert(number, failure);
    }

    /// Lets a share of all writes fail by chance: with 409, 429 or 500, before or after they are done.
    pub fn fail_by_chance(&self, seed: u64, share: f64) {
        self.lock().chaos = Some((StdRng::seed_from_u64(seed), share));
    }

    /// Forgets all changes so far: watches that were begun before have to list again.
    pub fn compact(&self) {
        let mut world = self.lock();
        world.forgotten = world.version;
    }

    /// Nothing fails any more; whoever was killed is begun again.
    pub fn heal(&self) {
        let mut world = self.lock();
        world.failures.clear();
        world.chaos = None;
        world.away = false;
    }

    /// Nobody answers, or somebody does again.
    pub fn go_away(&self, away: bool) {
        self.lock().away = away;
    }

    /// What becomes of all requests for `resource` from now on.
    pub fn trouble(&self, resource: &str, trouble: Option<Trouble>) {
        let mut world = self.lock();
        match trouble {
            Some(trouble) => world.troubles.insert(resource.to_owned(), trouble),
            None => world.troubles.remove(resource),
        };
    }

    /// Refuses every request to `path` with `code`, as an API server does where a right or a definition is missing.
    pub fn deny(&self, path: &str, code: u16) {
        self.lock().denied.insert(path.to_owned(), code);
    }

    /// A webhook sets a field at each write to a resource, whatever is asked for.
    pub fn always_sets(&self, resource: &str, pointer: &str, value: Value) {
        let webhook = (resource.to_owned(), pointer.to_owned(), value);
        self.lock().webhooks.push(webhook);
    }

    fn lock(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap()
    }

    fn wake(&self, world: &World) {
        self.newest.send_replace(world.version);
    }

    async fn answer(&self, request: Request<Body>) -> Result<Answer, std::io::Error> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let path = parts.uri.path();
        let (namespace, below) = match path.split_once("/namespaces/") {
            Some((_, rest)) => {
                let (namespace, below) = rest.split_once('/').unwrap();
                (Some(namespace.to_owned()), below)
            }
            None => (None, resource_of_all_namespaces(path)),
        };
        let recorded = Recorded {
            method: parts.method,
            path: key(namespace.as_deref(), below),
            query: parts.uri.query().unwrap_or_default().to_owned(),
            content_type: parts
                .headers
                .get("content-type")
                .map(|value| value.to_str().unwrap().to_owned())
                .unwrap_or_default(),
            body: serde_json::from_slice(&body).unwrap_or(Value::Null),
            namespace,
        };
        let resource = recorded.path.split('/').next().unwrap().to_owned();
        let trouble = self.lock().troubles.get(&resource).copied();
        match trouble {
            Some(Trouble::Hangs) => {
                tokio::time::sleep(READ_TIMEOUT).await;
                return Err(std::io::ErrorKind::TimedOut.into());
            }
            Some(Trouble::Status(code)) => {
                self.lock().requests.push(recorded);
                return Ok(respond(error(code, "Trouble", "in trouble")));
            }
            None => {}
        }
        if recorded.query.contains("watch=") && !self.lock().away {
            self.lock().requests.push(recorded.clone());
            return Ok(self.watch(&recorded));
        }
        let mut world = self.lock();
        let answer = world.handle(&recorded);
        self.wake(&world);
        answer.map(respond)
    }
}

/// The resource of a collection over all namespaces; what is none, such as the list of a group's resources, is its path.
fn resource_of_all_namespaces(path: &str) -> &str {
    match path.split('/').collect::<Vec<_>>()[..] {
        ["", "api", _, resource] | ["", "apis", _, _, resource] => resource,
        _ => path,
    }
}

fn respond((status, answer): (StatusCode, Value)) -> Answer {
    let body = Full::new(Bytes::from(serde_json::to_vec(&answer).unwrap()));
    Response::builder()
        .status(status)
        .body(body.map_err(|never| match never {}).boxed_unsync())
        .unwrap()
}

impl World {
    /// An error: there is no answer.
    fn handle(&mut self, request: &Recorded) -> Result<(StatusCode, Value), std::io::Error> {
        let gone = || std::io::Error::other("nobody answers");
        if self.away {
            return Err(gone());
        }
        if let Some(code) = self.denied.get(&request.path).copied() {
            self.requests.push(request.clone());
            return Ok(error(code, "Denied", "denied"));
        }
        if request.method == Method::GET {
            self.requests.push(request.clone());
            return Ok(self.read(request));
        }
        let failure = self.failures.remove(&self.writes).or_else(|| self.chance());
        self.requests.push(request.clone());
        self.writes += 1;
        match failure {
            Some(Failure::Before(code)) => Ok(error(code, "Failed", "failed before")),
            Some(Failure::After(code)) => {
                self.write(request);
                Ok(error(code, "Failed", "failed after"))
            }
            Some(Failure::Killed) => {
                self.write(request);
                self.away = true;
                Err(gone())
            }
            None => Ok(self.write(request)),
        }
    }

    fn chance(&mut self) -> Option<Failure> {
        let (random, share) = self.chaos.as_mut()?;
        random
            .random_bool(*share)
            .then(|| match random.random_range(0..4) {
                0 => Failure::Before(409),
                1 => Failure::Before(429),
                2 => Failure::Before(500),
                _ => Failure::After(500),
            })
    }

    fn read(&self, request: &Recorded) -> (StatusCode, Value) {
        if let Some(stored) = self.objects.get(&request.path) {
            return (StatusCode::OK, stored.shown());
        }
        if request.path.contains('/') {
            return error(404, "NotFound", "not found");
        }
        let selector = selector::parse(&request.query);
        let prefix = format!("{}/", request.path);
        let items: Vec<_> = self
            .objects
            .iter()
            .filter(|(path, stored)| {
                path.starts_with(&prefix)
                    && is_in(path, request.namespace.as_deref())
                    && selector.matches(&stored.object["metadata"]["labels"])
            })
            .map(|(_, stored)| stored.shown())
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
            Method::PATCH => self.patch(request),
            Method::DELETE => self.delete(request),
            Method::PUT => self.replace(request),
            Method::POST => {
                let name = request.body["metadata"]["name"].as_str().unwrap();
                let path = format!("{}/{name}", request.path);
                let path = key(request.namespace.as_deref(), &path);
                if self.objects.contains_key(&path) {
                    return error(409, "AlreadyExists", "exists");
                }
                let mut stored = self.born(request, &path);
                stored.object = merged_metadata(&request.body, &stored.object);
                stored
                    .managers
                    .updated("creator", "", &Value::Null, &request.body);
                self.finish(&path, None, stored)
            }
            _ => error(405, "MethodNotAllowed", "method not allowed"),
        }
    }

    /// An object that is nothing but new.
    fn born(&self, request: &Recorded, path: &str) -> Stored {
        let (name, _) = name_in(path);
        let object = json!({
            "apiVersion": request.body["apiVersion"],
            "kind": request.body["kind"],
            "metadata": {
                "name": name,
                "namespace": request.namespace,
                "uid": format!("uid-{}", self.version + 1),
                "generation": 1,
                "creationTimestamp": "2030-01-01T12:00:00Z",
            },
        });
        Stored {
            object,
            managers: Managers::default(),
        }
    }

    fn replace(&mut self, request: &Recorded) -> (StatusCode, Value) {
        if let Some(path) = request.path.strip_suffix("/scale") {
            return self.scale(path, &request.body);
        }
        let Some(old) = self.objects.get(&request.path).cloned() else {
            return error(404, "NotFound", "not found");
        };
        if let Some(conflict) = stale(&request.body["metadata"], &old) {
            return conflict;
        }
        let mut new = old.clone();
        new.object = merged_metadata(&request.body, &old.object);
        new.managers
            .updated("updater", "", &old.object, &new.object);
        self.finish(&request.path, Some(old), new)
    }

    /// What an autoscaler does.
    fn scale(&mut self, path: &str, scale: &Value) -> (StatusCode, Value) {
        let Some(old) = self.objects.get(path).cloned() else {
            return error(404, "NotFound", "not found");
        };
        let mut new = old.clone();
        new.object["spec"]["replicas"] = scale["spec"]["replicas"].clone();
        new.managers
            .updated("autoscaler", "scale", &old.object, &new.object);
        self.finish(path, Some(old), new)
    }

    fn patch(&mut self, request: &Recorded) -> (StatusCode, Value) {
        match request.content_type.as_str() {
            "application/apply-patch+yaml" => self.apply(request),
            "application/merge-patch+json" => self.merge(request),
            _ => error(415, "UnsupportedMediaType", "no such patch"),
        }
    }

    fn merge(&mut self, request: &Recorded) -> (StatusCode, Value) {
        let Some(old) = self.objects.get(&request.path).cloned() else {
            return error(404, "NotFound", "not found");
        };
        let wanted = &request.body["metadata"]["uid"];
        if !wanted.is_null() && *wanted != old.object["metadata"]["uid"] {
            return error(409, "Conflict", "the UID in the patch does not match");
        }
        if let Some(conflict) = stale(&request.body["metadata"], &old) {
            return conflict;
        }
        let mut new = old.clone();
        merge_patch(&mut new.object, &request.body);
        new.object = merged_metadata(&new.object, &old.object);
        new.managers
            .updated("patcher", "", &old.object, &new.object);
        self.finish(&request.path, Some(old), new)
    }

    fn apply(&mut self, request: &Recorded) -> (StatusCode, Value) {
        let parameter = |name: &str| {
            let pairs = request.query.split('&');
            pairs
                .filter_map(|pair| pair.split_once('='))
                .find(|(key, _)| *key == name)
                .map(|(_, value)| value.to_owned())
        };
        let manager = parameter("fieldManager").unwrap();
        let force = parameter("force").as_deref() == Some("true");
        let (path, subresource) = match request.path.strip_suffix("/status") {
            Some(path) => (path, "status"),
            None => (request.path.as_str(), ""),
        };
        let old = self.objects.get(path).cloned();
        if old.is_none() && subresource == "status" {
            return error(404, "NotFound", "not found");
        }
        if let Some(conflict) = old
            .as_ref()
            .and_then(|old| stale(&request.body["metadata"], old))
        {
            return conflict;
        }
        let mut new = old.clone().unwrap_or_else(|| self.born(request, path));
        let applied = kinds::appliable(&request.body, subresource);
        let Stored { object, managers } = &mut new;
        if let Err(conflicts) = managers.apply(&manager, subresource, force, object, &applied) {
            return conflict(&conflicts);
        }
        self.finish(path, old, new)
    }

    /// Checks, completes and stores what a write made of `old`.
    fn finish(&mut self, path: &str, old: Option<Stored>, mut new: Stored) -> (StatusCode, Value) {
        for (resource, pointer, value) in &self.webhooks {
            if path.starts_with(&format!("{resource}/")) {
                let (parent, field) = pointer.rsplit_once('/').unwrap();
                new.object.pointer_mut(parent).unwrap()[field] = value.clone();
            }
        }
        if let Some(refusal) = kinds::bad_quantity(&new.object["spec"]["template"], false) {
            return error(400, "BadRequest", &refusal);
        }
        kinds::complete(path, &mut new.object);
        if let Some(old) = old {
            if let Some(refusal) = kinds::refusal(path, &old.object, &new.object) {
                return error(422, "Invalid", &refusal);
            }
            if new.object["spec"] != old.object["spec"] {
                let generation = old.object["metadata"]["generation"].as_i64().unwrap_or(1);
                new.object["metadata"]["generation"] = json!(generation + 1);
            }
            if new == old {
                return (StatusCode::OK, old.shown());
            }
        }
        self.store(path, new);
        (StatusCode::OK, self.objects[path].shown())
    }

    fn store(&mut self, path: &str, mut stored: Stored) {
        self.version += 1;
        stored.object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let new = Some(Arc::new(stored.shown()));
        let old = self.objects.insert(path.to_owned(), stored);
        self.changes.push(Change {
            version: self.version,
            path: path.to_owned(),
            old: old.map(|old| Arc::new(old.object)),
            new,
        });
    }

    fn delete(&mut self, request: &Recorded) -> (StatusCode, Value) {
        let Some(stored) = self.objects.get(&request.path) else {
            return error(404, "NotFound", "not found");
        };
        let wanted = &request.body["preconditions"]["uid"];
        let uid = &stored.object["metadata"]["uid"];
        if !wanted.is_null() && wanted != uid {
            let text = format!(
                "Precondition failed: UID in precondition: {wanted}, UID in object meta: {uid}"
            );
            return error(409, "Conflict", &text);
        }
        if let Some(conflict) = stale(&request.body["preconditions"], stored) {
            return conflict;
        }
        self.forget(&request.path);
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Success"});
        (StatusCode::OK, status)
    }

    /// Removes an object, and what nobody owns any more then.
    fn forget(&mut self, path: &str) {
        let Some(stored) = self.objects.remove(path) else {
            return;
        };
        self.version += 1;
        let mut last = stored.object;
        let uid = last["metadata"]["uid"].clone();
        last["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.changes.push(Change {
            version: self.version,
            path: path.to_owned(),
            old: Some(Arc::new(last)),
            new: None,
        });
        let owners = |stored: &Stored| {
            let owners = stored.object["metadata"]["ownerReferences"].as_array();
            owners.cloned().unwrap_or_default()
        };
        let is_owner = |owner: &Value| owner["uid"] == uid;
        let owned = self.objects.iter();
        let owned = owned.filter(|(_, stored)| owners(stored).iter().any(is_owner));
        let owned: Vec<_> = owned
            .map(|(path, stored)| (path.clone(), stored.clone()))
            .collect();
        for (path, mut stored) in owned {
            let left: Vec<_> = owners(&stored)
                .into_iter()
                .filter(|owner| self.is_there(owner))
                .collect();
            if left.is_empty() {
                self.forget(&path);
            } else {
                stored.object["metadata"]["ownerReferences"] = json!(left);
                self.store(&path, stored);
            }
        }
    }

    fn is_there(&self, owner: &Value) -> bool {
        let mut objects = self.objects.values();
        objects.any(|stored| stored.object["metadata"]["uid"] == owner["uid"])
    }
}

/// The refusal of a write that asks for another version of `old` than it has.
fn stale(wanted: &Value, old: &Stored) -> Option<(StatusCode, Value)> {
    let wanted = &wanted["resourceVersion"];
    let is_stale = !wanted.is_null() && *wanted != old.object["metadata"]["resourceVersion"];
    is_stale.then(|| error(409, "Conflict", "the object has been modified"))
}

/// `object` with the identity and the status of `old`.
fn merged_metadata(object: &Value, old: &Value) -> Value {
    let mut object = object.clone();
    for kept in [
        "name",
        "namespace",
        "uid",
        "generation",
        "creationTimestamp",
        "resourceVersion",
    ] {
        object["metadata"][kept] = old["metadata"][kept].clone();
    }
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("managedFields");
        metadata.retain(|_, value| !value.is_null());
    }
    if let Some(status) = old.get("status") {
        object["status"] = status.clone();
    }
    object
}

fn merge_patch(object: &mut Value, patch: &Value) {
    let Some(fields) = patch.as_object() else {
        *object = patch.clone();
        return;
    };
    for (name, value) in fields {
        if value.is_null() {
            if let Some(object) = object.as_object_mut() {
                object.remove(name);
            }
        } else {
            merge_patch(&mut object[name], value);
        }
    }
}

fn conflict(conflicts: &[String]) -> (StatusCode, Value) {
    let (code, mut status) = error(409, "Conflict", &conflicts.join(", "));
    let causes = conflicts
        .iter()
        .map(|conflict| json!({"reason": "FieldManagerConflict", "message": conflict}));
    status["details"] = json!({"causes": causes.collect::<Vec<_>>()});
    (code, status)
}

fn error(code: u16, reason: &str, message: &str) -> (StatusCode, Value) {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure",
        "code": code, "reason": reason, "message": message,
    });
    (StatusCode::from_u16(code).unwrap(), status)
}

#[cfg(test)]
mod tests;
