//! Objects that the API server stored differently from what the operator applied.
//!
//! A webhook may change a child, or the API server may normalize a field. Without this record, each
//! reconciliation would then write the child again. Bounds: one entry per child that differs from
//! the built object, at most [`SETTLED_MAX`]. A dropped entry costs one write.

use std::collections::BTreeMap;
use std::sync::Arc;

use muxtunnel_gateway_config::config_hash;
use parking_lot::Mutex;
use serde_json::Value;

use super::compare::{contains, projected};

/// Maximum number of remembered children.
const SETTLED_MAX: usize = 4096;

/// The hashes of the applied and of the stored object, by UID. Clones share one table.
#[derive(Debug, Clone, Default)]
pub struct Settled(Arc<Mutex<BTreeMap<String, (String, String)>>>);

impl Settled {
    /// Records that the API server answered an apply of `wanted` with `answer`.
    pub(super) fn answered(&self, uid: Option<String>, answer: &Value, wanted: &Value) {
        let Some(uid) = uid else { return };
        let mut table = self.0.lock();
        if contains(answer, wanted) {
            table.remove(&uid);
            return;
        }
        if table.len() >= SETTLED_MAX {
            table.pop_first();
        }
        table.insert(uid, hashes(answer, wanted));
    }

    /// Whether `live` is the stored result of an apply of `wanted`.
    pub(super) fn is_settled(&self, uid: Option<String>, live: &Value, wanted: &Value) -> bool {
        let table = self.0.lock();
        uid.and_then(|uid| table.get(&uid).cloned())
            .is_some_and(|known| known == hashes(live, wanted))
    }
}

fn hashes(live: &Value, wanted: &Value) -> (String, String) {
    let hash = |value: &Value| config_hash(&value.to_string());
    (hash(wanted), hash(&projected(live, wanted)))
}
