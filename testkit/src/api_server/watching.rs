//! Watches over HTTP.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use http::Response;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Bytes, Frame};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use super::key::is_in;
use super::refusal::refused;
use super::{Answer, FakeApi, READ_TIMEOUT, Recorded, Trouble, selector};

impl FakeApi {
    pub(super) fn watch(&self, request: &Recorded) -> Answer {
        let parameter = |name: &str| {
            let pairs = request.query.split('&');
            let mut values = pairs.filter_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
            values.next().and_then(|value| value.parse::<u64>().ok())
        };
        let from = parameter("resourceVersion").unwrap_or(0);
        let end = Instant::now() + Duration::from_secs(parameter("timeoutSeconds").unwrap_or(290));
        let (resource, query) = (request.path.clone(), request.query.clone());
        let namespace = request.namespace.clone();
        let newest = self.newest.subscribe();
        let has_bookmarks = request.query.contains("allowWatchBookmarks=true");
        let events = stream::unfold(
            (self.clone(), newest, (from, from)),
            move |(api, mut newest, (from, mut searched))| {
                let (resource, query) = (resource.clone(), query.clone());
                let namespace = namespace.clone();
                async move {
                    loop {
                        newest.borrow_and_update();
                        let trouble = api.lock().troubles.get(&resource).copied();
                        if matches!(trouble, Some(Trouble::Hangs)) {
                            tokio::time::sleep(READ_TIMEOUT).await;
                        }
                        if trouble.is_some() || api.lock().away || from == u64::MAX {
                            return None;
                        }
                        let scope = namespace.as_deref();
                        let seen = (from, searched);
                        let (next, until) = api.next_event((&resource, scope), &query, seen);
                        searched = until;
                        let bookmark = || api.bookmark_after(from).filter(|_| has_bookmarks);
                        if let Some((version, event)) = next.or_else(bookmark) {
                            let mut line = serde_json::to_vec(&event).unwrap();
                            line.push(b'\n');
                            let frame = Ok::<_, std::io::Error>(Frame::data(Bytes::from(line)));
                            return Some((frame, (api, newest, (version, searched))));
                        }
                        timeout_at(end, newest.changed()).await.ok()?.ok()?;
                    }
                }
            },
        );
        Response::new(StreamBody::new(events.boxed()).boxed_unsync())
    }

    /// The bookmark for a watch that has seen `from`, if one was sent since.
    fn bookmark_after(&self, from: u64) -> Option<(u64, Value)> {
        let version = self.lock().bookmarked;
        let metadata = json!({"resourceVersion": version.to_string(), "annotations": {}});
        let object = json!({"apiVersion": "v1", "kind": "Any", "metadata": metadata});
        let event = json!({"type": "BOOKMARK", "object": object});
        (version > from).then_some((version, event))
    }

    /// The first event of a watch after the version `from`. The versions up to `searched` have no
    /// further event. Also returns the version up to which this call has searched.
    fn next_event(
        &self,
        (resource, namespace): (&str, Option<&str>),
        query: &str,
        (from, searched): (u64, u64),
    ) -> (Option<(u64, Value)>, u64) {
        let selector = selector::parse(query);
        let prefix = format!("{resource}/");
        let world = self.lock();
        if from < world.forgotten {
            let text = format!("too old resource version: {from} ({})", world.forgotten);
            let (_, status) = refused(410, "Expired", &text);
            // This event ends the watch.
            let event = json!({"type": "ERROR", "object": status});
            return (Some((u64::MAX, event)), searched);
        }
        let begin = world
            .changes
            .partition_point(|change| change.version <= searched);
        let matches = |object: &Option<Arc<Value>>| {
            object
                .as_ref()
                .filter(|object| selector.matches(object))
                .cloned()
        };
        let next = world.changes[begin..]
            .iter()
            .filter(|change| change.path.starts_with(&prefix) && is_in(&change.path, namespace))
            .find_map(|change| {
                let (type_, object) = match (matches(&change.old), matches(&change.new)) {
                    (None, None) => return None,
                    (None, Some(new)) => ("ADDED", new),
                    (Some(_), Some(new)) => ("MODIFIED", new),
                    (Some(old), None) => ("DELETED", old),
                };
                let event = json!({"type": type_, "object": *object});
                Some((change.version, event))
            });
        let until = next.as_ref().map_or(world.version, |(version, _)| *version);
        (next, until)
    }
}
