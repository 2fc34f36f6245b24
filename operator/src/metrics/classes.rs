//! The figures of classes: their objects, by the state in the roll-out of the class.
//!
//! Only the leader plans roll-outs, so only the leader has figures. Bounds: four series for each
//! existing MuxClass.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::upgrades::plan::Plan;

/// Class, state in the roll-out, and number of objects. The states do not exclude each other.
pub(super) type Figure = (String, &'static str, i64);

/// The figures of all classes. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Figures(Arc<Mutex<Vec<Figure>>>);

impl Figures {
    /// Replaces the figures of all classes.
    pub fn set<'a>(&self, plans: impl IntoIterator<Item = (String, &'a Plan)>) {
        let of_class = |(class, plan): (String, &Plan)| {
            let counts = [
                ("total", plan.total),
                ("current", plan.current),
                ("rolling", plan.rolling),
                ("failed", plan.failed.len()),
            ];
            let number = |count| i64::try_from(count).unwrap_or(i64::MAX);
            counts.map(|(state, count)| (class.clone(), state, number(count)))
        };
        *self.0.lock() = plans.into_iter().flat_map(of_class).collect();
    }

    pub(super) fn all(&self) -> Vec<Figure> {
        self.0.lock().clone()
    }
}
