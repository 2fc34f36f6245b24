//! The figures of classes: their objects, by the state in the roll-out of the class.
//!
//! Only the leader plans roll-outs, so only the leader has figures. Bounds: four series for each
//! existing MuxClass.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::upgrades::plan::Plan;

/// The figures of all classes. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Figures(Arc<Mutex<BTreeMap<String, [i64; STATES.len()]>>>);

/// The values of the label `state`. The states do not exclude each other.
const STATES: [&str; 4] = ["total", "current", "rolling", "failed"];

impl Figures {
    /// Replaces the figures of all classes.
    pub fn set<'a>(&self, plans: impl IntoIterator<Item = (String, &'a Plan)>) {
        let counts = |plan: &Plan| {
            let counts = [plan.total, plan.current, plan.rolling, plan.failed.len()];
            counts.map(|count| i64::try_from(count).unwrap_or(i64::MAX))
        };
        let plans = plans.into_iter();
        *self.0.lock() = plans.map(|(class, plan)| (class, counts(plan))).collect();
    }

    /// Class, state and number of objects.
    pub(super) fn all(&self) -> Vec<(String, &'static str, i64)> {
        let all = self.0.lock();
        let of_class = |(class, counts): (&String, &[i64; STATES.len()])| {
            let states = STATES.into_iter().zip(*counts);
            let class = class.clone();
            states.map(move |(state, count)| (class.clone(), state, count))
        };
        all.iter().flat_map(of_class).collect()
    }
}
