//! Which objects of a controller wait to be looked at.
//!
//! kube's scheduler keeps its queue to itself, so what is put into it and what comes out of it is noted here. What it
//! puts in by itself (another look after a time) is not known before it begins.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kube::Resource;
use kube::runtime::reflector::ObjectRef;

/// Namespaces and names: each object once, so as many as there are.
type Waiting = BTreeSet<(Option<String>, String)>;

/// What waits. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Queue(Arc<Mutex<Waiting>>);

impl Queue {
    /// A look at it was asked for.
    pub(crate) fn put<K: Resource>(&self, object: &ObjectRef<K>) {
        self.lock().insert(key(object));
    }

    /// The look at it has begun, or there is nothing to look at.
    pub(crate) fn take<K: Resource>(&self, object: &ObjectRef<K>) {
        self.lock().remove(&key(object));
    }

    pub(super) fn depth(&self) -> i64 {
        i64::try_from(self.lock().len()).unwrap_or(i64::MAX)
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn key<K: Resource>(object: &ObjectRef<K>) -> (Option<String>, String) {
    (object.namespace.clone(), object.name.clone())
}
