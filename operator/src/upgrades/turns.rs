//! The permissions to take the revision of a class. The class's controller gives them, and the
//! reconciliations of objects use them.
//!
//! Bounds: at most `rollout.maxConcurrent` open permissions per class. An object that does not use its
//! permission within [`OPEN_FOR`], for example because the API server refuses a child, gives its
//! place to the next object [`OCCUPIES_FOR`] after the permission began, and gets no other permission
//! for [`RESTS_FOR`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::plan::Permit;
use crate::watches::ObjectId;

/// How long an object may begin to take the revision.
pub const OPEN_FOR: Duration = Duration::from_secs(60);
/// How long a permission occupies a place. A reconciliation that has begun ends before.
pub const OCCUPIES_FOR: Duration = Duration::from_secs(120);
/// When an object whose permission was not used may get another one.
pub const RESTS_FOR: Duration = Duration::from_mins(10);

/// A permission to take a revision.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Given {
    /// The text of the revision.
    revision: Arc<str>,
    at: Instant,
}

/// The permissions of all classes. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Turns {
    given: Arc<watch::Sender<BTreeMap<ObjectId, Given>>>,
    changed: Arc<Notify>,
}

/// A change of an object or of its children. The class's controller plans again when it begins and
/// when it ends.
#[derive(Debug)]
pub struct Change(Arc<Notify>);

impl Drop for Change {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

impl Turns {
    /// Begins a change.
    #[must_use]
    pub fn change(&self) -> Change {
        self.changed.notify_one();
        Change(self.changed.clone())
    }

    /// Waits for a change since the last call.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Whether the object may take the revision with this text at `now`.
    pub fn permit(&self, object: &ObjectId, revision: &str, now: Instant) -> bool {
        let given = self.given.borrow();
        given.get(object).is_some_and(|given| {
            *given.revision == *revision && now.saturating_duration_since(given.at) < OPEN_FOR
        })
    }

    /// Permits `objects` to take the revision with this text.
    pub fn give(&self, objects: &[ObjectId], revision: &Arc<str>, now: Instant) {
        if objects.is_empty() {
            return;
        }
        let given = |object: &ObjectId| {
            let revision = revision.clone();
            (object.clone(), Given { revision, at: now })
        };
        self.given
            .send_modify(|all| all.extend(objects.iter().map(given)));
    }

    /// The unused permissions for this revision of a class. `waits`: whether an object of the class
    /// has not taken the revision, or `None` for an object of another class. Drops the used permissions
    /// of the class, and those that have ended.
    pub fn unused(
        &self,
        waits: impl Fn(&ObjectId) -> Option<bool>,
        revision: &str,
        now: Instant,
    ) -> BTreeMap<ObjectId, Permit> {
        let mut permits = BTreeMap::new();
        self.given.send_if_modified(|all| {
            all.retain(|object, given| {
                let age = now.saturating_duration_since(given.at);
                let is_unused = waits(object)
                    .is_none_or(|waits| waits && *given.revision == *revision)
                    && age < RESTS_FOR;
                if is_unused && waits(object).is_some() {
                    let permit = match age < OCCUPIES_FOR {
                        true => Permit::Open,
                        false => Permit::Unused,
                    };
                    permits.insert(object.clone(), permit);
                }
                is_unused
            });
            // Nobody waits for the end of a permission.
            false
        });
        permits
    }

    /// Drops all permissions. The next leader's permissions depend on the Deployments alone.
    pub fn clear(&self) {
        self.given.send_modify(BTreeMap::clear);
    }

    /// The objects with a permission, whenever a permission is given.
    pub fn wakes(&self) -> BoxStream<'static, ObjectId> {
        let next = |mut given: watch::Receiver<BTreeMap<ObjectId, Given>>| async move {
            given.changed().await.ok()?;
            let objects: Vec<_> = given.borrow_and_update().keys().cloned().collect();
            Some((stream::iter(objects), given))
        };
        stream::unfold(self.given.subscribe(), next)
            .flatten()
            .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(name: &str) -> ObjectId {
        ObjectId {
            namespace: "site".to_owned(),
            kind: "MuxTunnel".to_owned(),
            name: name.to_owned(),
        }
    }

    #[tokio::test]
    async fn a_permission_is_for_one_revision_and_a_time() {
        let (turns, begin) = (Turns::default(), Instant::now());
        let mut wakes = turns.wakes();
        let (first, second): (Arc<str>, Arc<str>) = ("1".into(), "2".into());
        turns.give(&[id("a"), id("b")], &first, begin);
        let woken = [wakes.next().await.unwrap(), wakes.next().await.unwrap()];
        assert_eq!(woken, [id("a"), id("b")]);
        assert!(turns.permit(&id("a"), &first, begin));
        assert!(!turns.permit(&id("a"), &second, begin));
        assert!(!turns.permit(&id("c"), &first, begin));
        assert!(!turns.permit(&id("a"), &first, begin + OPEN_FOR));
        let unused = |waits: fn(&ObjectId) -> bool, after| {
            let unused = turns.unused(|object| Some(waits(object)), &first, begin + after);
            let unused = unused.into_iter().map(|(id, permit)| (id.name, permit));
            unused.collect::<Vec<_>>()
        };
        let is_a = |object: &ObjectId| object.name == "a";
        let a = |permit| vec![("a".to_owned(), permit)];
        // The object b has used its permission.
        assert_eq!(unused(is_a, OPEN_FOR), a(Permit::Open));
        assert_eq!(unused(|_| true, OCCUPIES_FOR), a(Permit::Unused));
        assert_eq!(unused(|_| true, RESTS_FOR), []);
        turns.give(&[id("a")], &second, begin);
        assert_eq!(unused(|_| true, Duration::ZERO), [], "another revision");
    }
}
