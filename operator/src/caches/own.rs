//! The operator's own writes that a watch has not delivered yet. No function searches all writes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kube::{Resource, ResourceExt};
use tokio::time::Instant;

use super::Key;
use super::groups::{self, Group, Groups};
use crate::watches::Watched;

/// Maximum number of own writes of a kind. A further write drops the oldest write, which costs at
/// most one request.
pub(super) const OWN_WRITES_MAX: usize = 4096;
/// Longest time that an own write is kept. A watch restarts earlier, after 50 s.
pub(super) const OWN_WRITE_AGE_MAX: Duration = Duration::from_secs(60);

pub(super) struct OwnWrite<K> {
    /// `None` if the operator deleted the object.
    object: Option<Arc<K>>,
    uid: Option<String>,
    at: Instant,
}

/// The own writes of one kind.
pub(super) struct OwnWrites<K> {
    by_key: BTreeMap<Key, OwnWrite<K>>,
    groups: Groups,
    by_age: BTreeSet<(Instant, Key)>,
}

impl<K> Default for OwnWrites<K> {
    fn default() -> Self {
        Self {
            by_key: BTreeMap::new(),
            groups: Groups::new(),
            by_age: BTreeSet::new(),
        }
    }
}

impl<K: Watched> OwnWrites<K> {
    pub(super) fn get(&self, key: &Key) -> Option<&OwnWrite<K>> {
        self.by_key.get(key)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }

    /// The written objects of a group.
    pub(super) fn of<'a>(&'a self, group: &'a Group) -> impl Iterator<Item = &'a Key> {
        groups::of(&self.groups, group)
    }

    /// Keeps a write. `object` is `None` if the operator deleted the object with this UID.
    pub(super) fn keep(&mut self, key: Key, object: Option<Arc<K>>, uid: Option<String>) {
        let at = Instant::now();
        self.remove(&key);
        while let Some((oldest, _)) = self.by_age.first()
            && (at.duration_since(*oldest) >= OWN_WRITE_AGE_MAX
                || self.by_key.len() >= OWN_WRITES_MAX)
        {
            self.remove_oldest();
        }
        if let Some(object) = &object {
            groups::insert(&mut self.groups, groups::groups(object.as_ref()), &key);
        }
        self.by_age.insert((at, key.clone()));
        self.by_key.insert(key, OwnWrite { object, uid, at });
    }

    /// Drops the writes before `begin`.
    pub(super) fn drop_before(&mut self, begin: Instant) {
        while self.by_age.first().is_some_and(|(at, _)| *at < begin) {
            self.remove_oldest();
        }
    }

    /// Drops the write of an object that the watch has delivered as `watched`, unless the write is
    /// newer.
    pub(super) fn delivered(&mut self, key: &Key, watched: &K) {
        let is_old = |own: &OwnWrite<K>| match &own.object {
            Some(own) => version(watched) >= version(own.as_ref()),
            None => watched.uid() != own.uid,
        };
        if self.get(key).is_some_and(is_old) {
            self.remove(key);
        }
    }

    /// Drops the write of an object that the watch has delivered as deleted.
    pub(super) fn gone(&mut self, key: &Key, watched: &K) {
        if self.get(key).is_some_and(|own| own.uid == watched.uid()) {
            self.remove(key);
        }
    }

    fn remove_oldest(&mut self) {
        if let Some((_, key)) = self.by_age.pop_first() {
            self.remove(&key);
        }
    }

    fn remove(&mut self, key: &Key) {
        let Some(own) = self.by_key.remove(key) else {
            return;
        };
        self.by_age.remove(&(own.at, key.clone()));
        if let Some(object) = own.object {
            groups::remove(&mut self.groups, groups::groups(object.as_ref()), key);
        }
    }
}

/// Returns the newer object. Newer objects have higher resource versions.
pub(super) fn newest<K: Watched>(
    watched: Option<Arc<K>>,
    own: Option<&OwnWrite<K>>,
) -> Option<Arc<K>> {
    let Some(own) = own.filter(|own| own.at.elapsed() < OWN_WRITE_AGE_MAX) else {
        return watched;
    };
    match (&own.object, watched) {
        (Some(own), Some(watched)) if version(watched.as_ref()) >= version(own.as_ref()) => {
            Some(watched)
        }
        (Some(own), _) => Some(own.clone()),
        // The operator has deleted the object. The watched object is either a new object with the
        // same name, or the deleted object that a finalizer still keeps.
        (None, Some(watched)) => {
            let is_other = watched.uid() != own.uid;
            (is_other || watched.meta().deletion_timestamp.is_some()).then_some(watched)
        }
        (None, None) => None,
    }
}

pub(super) fn version<K: Resource>(object: &K) -> u64 {
    let version = object.meta().resource_version.as_deref();
    version.and_then(|text| text.parse().ok()).unwrap_or(0)
}
