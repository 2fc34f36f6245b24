//! An API server in memory. The server has UIDs, resource versions, generations, server-side apply
//! with field managers (`managers`), and the real server's defaults and quantities (`kinds`). It
//! also has immutable fields, preconditions, selectors, garbage collection by owner reference, and
//! watches. For other processes, the server is available over HTTP ([`FakeApi::router`]).
//!
//! The server records requests and injects failures. A failure can happen before or after a write,
//! at random, for one resource, or for all requests. The client can also die at a write.

mod controllers;
mod key;
mod kinds;
mod loopback;
mod managers;
mod objects;
mod quantity;
mod refusal;
mod selector;
mod watching;
mod world;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use kube::Client;
use kube::client::Body;
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::{Value, json};
use tokio::sync::watch;

use key::{NAMESPACE, is_cluster_wide, key, name_in};
use refusal::refused;
use world::{Stored, World};

/// A recorded request.
#[derive(Debug, Clone)]
pub struct Recorded {
    /// HTTP method.
    pub method: Method,
    /// The `key` of the object, such as `configmaps/web-exit`. If the request is not for an object,
    /// the path below the namespace.
    pub path: String,
    /// The whole path.
    pub uri: String,
    /// The part after the `?`.
    pub query: String,
    /// Content type, which is the kind of a patch.
    pub content_type: String,
    /// `Null` without a body.
    pub body: Value,
    namespace: Option<String>,
}

/// The failure of a request.
#[derive(Debug, Clone, Copy)]
pub enum Failure {
    /// The server returns an error and does not execute the request.
    Before(u16),
    /// The server executes the request but returns an error.
    After(u16),
    /// The operator dies after this write, before it receives the answer. The operator sends no
    /// further requests.
    Killed,
}

/// The failure of all requests for one resource.
#[derive(Debug, Clone, Copy)]
pub enum Trouble {
    /// The server answers with this status.
    Status(u16),
    /// The server never answers. The client's read time-out ends the requests.
    Hangs,
}

/// Read time-out of the operator's client.
const READ_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(60);

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

/// An answer to a client.
pub type Answer = Response<UnsyncBoxBody<Bytes, std::io::Error>>;

impl FakeApi {
    /// A client of the server within this process.
    #[must_use]
    pub fn client(&self) -> Client {
        Client::new(self.service(), "default")
    }

    /// The service for clients, to which a test can add layers.
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

    /// Stores an object like another client would.
    pub fn put(&self, path: &str, mut object: Value) {
        let mut world = self.lock();
        let metadata = &mut object["metadata"];
        let (name, namespace) = name_in(path);
        if metadata["name"].is_null() {
            metadata["name"] = json!(name);
        }
        if metadata["namespace"].is_null() && !is_cluster_wide(path) {
            metadata["namespace"] = json!(namespace);
        }
        // The object's own metadata determines the namespace.
        let path = &match namespace {
            NAMESPACE => key(metadata["namespace"].as_str(), path),
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
        let world = self.lock();
        let objects = world.objects.of(resource);
        objects.map(|(_, stored)| stored.shown()).collect()
    }

    /// The changes of a resource's objects after the version `after` up to `until`: each object
    /// before and after the change.
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

    /// Removes an object like another client would.
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

    /// All objects, without the fields that differ from run to run.
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

    /// The requests since the last call of [`Self::take_requests`].
    #[must_use]
    pub fn requests(&self) -> Vec<Recorded> {
        self.lock().requests.clone()
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

    /// Number of writing requests since the start, including Events.
    pub fn writes(&self) -> usize {
        self.lock().writes
    }

    /// The newest resource version.
    pub fn newest(&self) -> u64 {
        self.lock().version
    }

    /// Makes the `number`th writing request from now on fail.
    pub fn fail_write(&self, number: usize, failure: Failure) {
        let mut world = self.lock();
        let number = world.writes + number;
        world.failures.insert(number, failure);
    }

    /// Makes a random share of all writes fail: with 409, 429 or 500, before or after their
    /// execution.
    pub fn fail_by_chance(&self, seed: u64, share: f64) {
        self.lock().chaos = Some((StdRng::seed_from_u64(seed), share));
    }

    /// Discards the history of changes, so that earlier watches must list again.
    pub fn compact(&self) {
        let mut world = self.lock();
        world.forgotten = world.version;
    }

    /// Ends all failures. Killed clients can send requests again.
    pub fn heal(&self) {
        let mut world = self.lock();
        world.failures.clear();
        world.chaos = None;
        world.away = false;
    }

    /// Sets whether the server does not answer (`away`).
    pub fn go_away(&self, away: bool) {
        self.lock().away = away;
    }

    /// Refuses every later request with this status, like an API server that does not know the
    /// client's account. Open watches stay open.
    pub fn refuse_all(&self, code: Option<u16>) {
        self.lock().refuses_all = code;
    }

    /// Sends a bookmark with the newest version to every open watch.
    pub fn bookmark(&self) {
        let mut world = self.lock();
        world.bookmarked = world.version;
        self.wake(&world);
    }

    /// Sets the failure of all later requests for `resource`.
    pub fn trouble(&self, resource: &str, trouble: Option<Trouble>) {
        let mut world = self.lock();
        match trouble {
            Some(trouble) => world.troubles.insert(resource.to_owned(), trouble),
            None => world.troubles.remove(resource),
        };
    }

    /// Refuses every request to `path` and below it with `code`, like an API server whose roles
    /// lack a right, or like an API server without the resource's definition. `path` is the path of
    /// the request, or an object's key.
    pub fn deny(&self, path: &str, code: u16) {
        self.lock().denied.insert(path.to_owned(), code);
    }

    /// Ends [`Self::deny`] for this path.
    pub fn permit(&self, path: &str) {
        self.lock().denied.remove(path);
    }

    /// Makes access reviews deny a right, such as `list nodes`.
    pub fn take_right(&self, right: &str) {
        self.lock().rights_missing.insert(right.to_owned());
    }

    /// Adds a webhook that sets a field at each write to a resource.
    pub fn always_sets(&self, resource: &str, pointer: &str, value: Value) {
        let webhook = (resource.to_owned(), pointer.to_owned(), value);
        self.lock().webhooks.push(webhook);
    }

    /// Adds an admission policy for a resource. `judge` gets the stored and the new object of each
    /// write, and returns the status and the message of a refusal.
    pub fn refuses(
        &self,
        resource: &str,
        judge: impl Fn(Option<&Value>, &Value) -> Option<(u16, String)> + Send + 'static,
    ) {
        let policy = (resource.to_owned(), Box::new(judge) as refusal::Judge);
        self.lock().policies.push(policy);
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
        let uri = parts.uri.path().to_owned();
        let (namespace, below) = place(&uri);
        let recorded = Recorded {
            method: parts.method,
            path: key(namespace.as_deref(), &below),
            uri,
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
        let refuses_all = self.lock().refuses_all.map(Trouble::Status);
        match trouble.or(refuses_all) {
            Some(Trouble::Hangs) => {
                tokio::time::sleep(READ_TIMEOUT).await;
                return Err(std::io::ErrorKind::TimedOut.into());
            }
            Some(Trouble::Status(code)) => {
                self.lock().requests.push(recorded);
                return Ok(respond(refused(code, "Trouble", "in trouble")));
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

/// The namespace in a request's path, and the part of the path below the namespace. For other
/// paths, such as the list of a group's resources, the part is the whole path.
fn place(uri: &str) -> (Option<String>, String) {
    match uri.split('/').collect::<Vec<_>>()[..] {
        ["", "api", _, "namespaces", namespace, ref below @ ..]
        | ["", "apis", _, _, "namespaces", namespace, ref below @ ..]
            if !below.is_empty() =>
        {
            (Some(namespace.to_owned()), below.join("/"))
        }
        ["", "api", _, ref below @ ..] | ["", "apis", _, _, ref below @ ..]
            if !below.is_empty() =>
        {
            (None, below.join("/"))
        }
        _ => (None, uri.to_owned()),
    }
}

fn respond((status, answer): (StatusCode, Value)) -> Answer {
    let body = Full::new(Bytes::from(serde_json::to_vec(&answer).unwrap()));
    Response::builder()
        .status(status)
        .body(body.map_err(|never| match never {}).boxed_unsync())
        .unwrap()
}

#[cfg(test)]
mod tests;
