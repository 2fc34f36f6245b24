//! What the API server made of what was applied, where that is something else.
//!
//! A webhook, or a field that the server writes in another way, would otherwise be written again at each
//! reconciliation. Bounds: an entry a child that differs from what was built, at most [`SETTLED_MAX`]; forgetting
//! one costs a write.

use std::collections::BTreeMap;
use std::sync::Arc;

use muxtunnel_gateway_config::config_hash;
use parking_lot::Mutex;
use serde_json::Value;

use super::compare::{contains, projected};

/// Children that are remembered.
const SETTLED_MAX: usize = 4096;

/// By UID: hashes of what was applied, and of what it became. Clones share one table.
#[derive(Debug, Clone, Default)]
pub struct Settled(Arc<Mutex<BTreeMap<String, (String, String)>>>);

impl Settled {
    /// The API server answered an apply of `wanted` with `answer`.
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

    /// Whether `live` is what an apply of `wanted` became.
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
