//! The state of the server, and the effects of requests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use http::{Method, StatusCode};
use rand::RngExt;
use rand::rngs::StdRng;
use serde_json::{Value, json};

use super::key::{is_at_or_below, is_in, key, name_in};
use super::managers::Managers;
use super::objects::Objects;
use super::refusal::{Judge, conflict, denied, refused};
use super::{Failure, Recorded, Trouble, kinds, selector};

/// The resource for reviews of a client's rights.
const REVIEWS: &str = "selfsubjectaccessreviews";

#[derive(Default)]
pub(super) struct World {
    /// The objects by their [`key`].
    pub(super) objects: Objects,
    pub(super) changes: Vec<Change>,
    pub(super) requests: Vec<Recorded>,
    /// Failures by the number of the writing request, counted from 0.
    pub(super) failures: BTreeMap<usize, Failure>,
    /// The share of writes that fail at random.
    pub(super) chaos: Option<(StdRng, f64)>,
    pub(super) troubles: BTreeMap<String, Trouble>,
    /// Denied paths, with the status of the refusal.
    pub(super) denied: BTreeMap<String, u16>,
    /// `verb resource` pairs that reviews deny.
    pub(super) rights_missing: BTreeSet<String>,
    /// Webhooks: the resource, the JSON pointer of a field, and the value that each write sets.
    pub(super) webhooks: Vec<(String, String, Value)>,
    /// Admission policies: the resource, and the judge of each write.
    pub(super) policies: Vec<(String, Judge)>,
    /// Whether the current request is a dry run, which stores nothing.
    pub(super) is_dry_run: bool,
    /// Whether the server does not answer.
    pub(super) away: bool,
    /// The status that every new request gets. Watches that are open stay open.
    pub(super) refuses_all: Option<u16>,
    /// Every watch that permits it is told this version, even if nothing changed for it.
    pub(super) bookmarked: u64,
    pub(super) writes: usize,
    pub(super) version: u64,
    /// Changes up to this version are discarded. An earlier watch gets 410.
    pub(super) forgotten: u64,
}

#[derive(Clone, Default, PartialEq)]
pub(super) struct Stored {
    pub(super) object: Value,
    pub(super) managers: Managers,
}

impl Stored {
    /// The object in the form that clients receive.
    pub(super) fn shown(&self) -> Value {
        let mut object = self.object.clone();
        object["metadata"]["managedFields"] = self.managers.fields();
        object
    }
}

/// A change of an object, for watches.
pub(super) struct Change {
    pub(super) version: u64,
    pub(super) path: String,
    pub(super) old: Option<Arc<Value>>,
    pub(super) new: Option<Arc<Value>>,
}

impl World {
    /// Returns an error if the server does not answer.
    pub(super) fn handle(
        &mut self,
        request: &Recorded,
    ) -> Result<(StatusCode, Value), std::io::Error> {
        let gone = || std::io::Error::other("the server does not answer");
        if self.away {
            return Err(gone());
        }
        if let Some(code) = self.denial(request) {
            self.requests.push(request.clone());
            return Ok(denied(code));
        }
        // A review writes no object, so it is not recorded.
        if request.path == REVIEWS {
            return Ok(self.review(&request.body));
        }
        if request.method == Method::GET {
            self.requests.push(request.clone());
            return Ok(self.read(request));
        }
        let failure = self.failures.remove(&self.writes).or_else(|| self.chance());
        self.requests.push(request.clone());
        self.writes += 1;
        match failure {
            Some(Failure::Before(code)) => Ok(refused(code, "Failed", "failed before")),
            Some(Failure::After(code)) => {
                self.write(request);
                Ok(refused(code, "Failed", "failed after"))
            }
            Some(Failure::Killed) => {
                self.write(request);
                self.away = true;
                Err(gone())
            }
            None => Ok(self.write(request)),
        }
    }

    fn denial(&self, request: &Recorded) -> Option<u16> {
        let is_meant = |place: &str| {
            let paths = [&request.path, &request.uri];
            paths.iter().any(|path| is_at_or_below(path, place))
        };
        let mut denied = self.denied.iter();
        denied
            .find(|(place, _)| is_meant(place))
            .map(|(_, code)| *code)
    }

    /// Answers a review of a right.
    fn review(&self, asked: &Value) -> (StatusCode, Value) {
        let right = &asked["spec"]["resourceAttributes"];
        let [verb, resource] = ["verb", "resource"].map(|field| right[field].as_str().unwrap());
        let is_missing = self.rights_missing.contains(&format!("{verb} {resource}"));
        let mut review = asked.clone();
        review["status"] = json!({"allowed": !is_missing});
        (StatusCode::CREATED, review)
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
        if request.path == "/version" {
            return (StatusCode::OK, kinds::version());
        }
        if request.path.contains('/') {
            return refused(404, "NotFound", "not found");
        }
        let selector = selector::parse(&request.query);
        let parameter = |name| selector::parameter(&request.query, name);
        // All pages have the version of the first page, so a watch from this version misses nothing.
        let token = parameter("continue").unwrap_or_else(|| format!("{}~", self.version));
        let (version, after) = token.split_once('~').unwrap();
        let mut objects = self.objects.of(&request.path).filter(|(path, stored)| {
            path.as_str() > after
                && is_in(path, request.namespace.as_deref())
                && selector.matches(&stored.object)
        });
        let limit = parameter("limit").and_then(|limit| limit.parse().ok());
        let page = objects.by_ref().take(limit.unwrap_or(usize::MAX));
        let page: Vec<_> = page.collect();
        let last = objects.next().and(page.last());
        let items = page.iter().map(|(_, stored)| stored.shown());
        let mut list = json!({
            "kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": version},
            "items": items.collect::<Vec<_>>(),
        });
        if let Some((path, _)) = last {
            list["metadata"]["continue"] = json!(format!("{version}~{path}"));
        }
        (StatusCode::OK, list)
    }

    fn write(&mut self, request: &Recorded) -> (StatusCode, Value) {
        self.is_dry_run = request.query.split('&').any(|pair| pair == "dryRun=All");
        match request.method {
            Method::PATCH => self.patch(request),
            Method::DELETE => self.delete(request),
            Method::PUT => self.replace(request),
            Method::POST => {
                let name = self.name_of_new(&request.body["metadata"]);
                let path = format!("{}/{name}", request.path);
                let path = key(request.namespace.as_deref(), &path);
                if self.objects.get(&path).is_some() {
                    return refused(409, "AlreadyExists", "exists");
                }
                let manager = selector::parameter(&request.query, "fieldManager");
                let manager = manager.unwrap_or_else(|| "creator".to_owned());
                let mut stored = self.born(request, &path);
                stored.object = merged_metadata(&request.body, &stored.object);
                stored
                    .managers
                    .updated(&manager, "", &Value::Null, &request.body);
                self.finish(&path, None, stored)
            }
            _ => refused(405, "MethodNotAllowed", "method not allowed"),
        }
    }

    fn name_of_new(&self, metadata: &Value) -> String {
        match metadata["name"].as_str() {
            Some(name) => name.to_owned(),
            None => {
                let begin = metadata["generateName"].as_str().unwrap();
                format!("{begin}{}", self.version + 1)
            }
        }
    }

    /// A new object with only the metadata that the server sets.
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
            return refused(404, "NotFound", "not found");
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

    /// Applies a write of an autoscaler.
    pub(super) fn scale(&mut self, path: &str, scale: &Value) -> (StatusCode, Value) {
        let Some(old) = self.objects.get(path).cloned() else {
            return refused(404, "NotFound", "not found");
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
            _ => refused(415, "UnsupportedMediaType", "no such patch"),
        }
    }

    fn merge(&mut self, request: &Recorded) -> (StatusCode, Value) {
        let (path, subresource) = subresource_of(&request.path);
        let Some(old) = self.objects.get(path).cloned() else {
            return refused(404, "NotFound", "not found");
        };
        let wanted = &request.body["metadata"]["uid"];
        if !wanted.is_null() && *wanted != old.object["metadata"]["uid"] {
            return refused(409, "Conflict", "the UID in the patch does not match");
        }
        if let Some(conflict) = stale(&request.body["metadata"], &old) {
            return conflict;
        }
        let mut new = old.clone();
        merge_patch(&mut new.object, &request.body);
        new.object = merged_metadata(&new.object, &old.object);
        if subresource == "status" {
            new.object["spec"] = old.object["spec"].clone();
        }
        new.managers
            .updated("patcher", subresource, &old.object, &new.object);
        self.finish(path, Some(old), new)
    }

    fn apply(&mut self, request: &Recorded) -> (StatusCode, Value) {
        let manager = selector::parameter(&request.query, "fieldManager").unwrap();
        let force = selector::parameter(&request.query, "force").as_deref() == Some("true");
        let (path, subresource) = subresource_of(&request.path);
        let old = self.objects.get(path).cloned();
        if old.is_none() && subresource == "status" {
            return refused(404, "NotFound", "not found");
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

    /// Checks, completes and stores the result of a write to `old`.
    fn finish(&mut self, path: &str, old: Option<Stored>, mut new: Stored) -> (StatusCode, Value) {
        for (resource, pointer, value) in &self.webhooks {
            if path.starts_with(&format!("{resource}/")) {
                let (parent, field) = pointer.rsplit_once('/').unwrap();
                new.object.pointer_mut(parent).unwrap()[field] = value.clone();
            }
        }
        if let Some(refusal) = kinds::bad_quantity(&new.object["spec"]["template"], false) {
            return refused(400, "BadRequest", &refusal);
        }
        kinds::complete(path, &mut new.object);
        let stored = old.as_ref().map(|old| &old.object);
        for (resource, judge) in &self.policies {
            if path.starts_with(&format!("{resource}/"))
                && let Some((code, message)) = judge(stored, &new.object)
            {
                return refused(code, "Invalid", &message);
            }
        }
        if let Some(old) = old {
            if let Some(refusal) = kinds::refusal(path, &old.object, &new.object) {
                return refused(422, "Invalid", &refusal);
            }
            if new.object["spec"] != old.object["spec"] {
                let generation = old.object["metadata"]["generation"].as_i64().unwrap_or(1);
                new.object["metadata"]["generation"] = json!(generation + 1);
            }
            if new == old {
                return (StatusCode::OK, old.shown());
            }
        }
        if self.is_dry_run {
            return (StatusCode::OK, new.shown());
        }
        self.store(path, new);
        (StatusCode::OK, self.objects.get(path).unwrap().shown())
    }

    pub(super) fn store(&mut self, path: &str, mut stored: Stored) {
        self.version += 1;
        stored.object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let new = Some(Arc::new(stored.shown()));
        let old = self.objects.insert(path, stored);
        self.changes.push(Change {
            version: self.version,
            path: path.to_owned(),
            old: old.map(|old| Arc::new(old.object)),
            new,
        });
    }

    fn delete(&mut self, request: &Recorded) -> (StatusCode, Value) {
        let Some(stored) = self.objects.get(&request.path) else {
            return refused(404, "NotFound", "not found");
        };
        let wanted = &request.body["preconditions"]["uid"];
        let uid = &stored.object["metadata"]["uid"];
        if !wanted.is_null() && wanted != uid {
            let text = format!(
                "Precondition failed: UID in precondition: {wanted}, UID in object meta: {uid}"
            );
            return refused(409, "Conflict", &text);
        }
        if let Some(conflict) = stale(&request.body["preconditions"], stored) {
            return conflict;
        }
        self.forget(&request.path);
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Success"});
        (StatusCode::OK, status)
    }

    /// Removes an object, and the objects that lose their last owner.
    pub(super) fn forget(&mut self, path: &str) {
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
        for path in self.objects.owned_by(uid.as_str().unwrap_or_default()) {
            let Some(mut stored) = self.objects.get(&path).cloned() else {
                continue;
            };
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
        let uid = owner["uid"].as_str();
        uid.is_some_and(|uid| self.objects.has_uid(uid))
    }
}

/// The path of an object, and the subresource of a request.
fn subresource_of(path: &str) -> (&str, &'static str) {
    match path.strip_suffix("/status") {
        Some(path) => (path, "status"),
        None => (path, ""),
    }
}

/// The refusal of a write if its resource version differs from the version of `old`.
fn stale(wanted: &Value, old: &Stored) -> Option<(StatusCode, Value)> {
    let wanted = &wanted["resourceVersion"];
    let is_stale = !wanted.is_null() && *wanted != old.object["metadata"]["resourceVersion"];
    is_stale.then(|| refused(409, "Conflict", "the object has been modified"))
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
