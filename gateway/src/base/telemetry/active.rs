//! The exits that get new streams.

use std::collections::BTreeSet;

use super::Telemetry;

impl Telemetry {
    /// Sets the names of the exits that get the new streams of a worker.
    pub(crate) fn set_active(&self, worker: usize, exits: Vec<String>) {
        if let Some(worker) = self.workers.get(worker) {
            *worker.active.lock() = exits;
        }
    }

    /// The names of the exits that get new streams.
    pub(super) fn active(&self) -> Vec<String> {
        let workers = self.workers.iter();
        let active: BTreeSet<String> = workers
            .flat_map(|worker| worker.active.lock().clone())
            .collect();
        active.into_iter().collect()
    }
}
