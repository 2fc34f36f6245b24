//! Invariants that hold once nothing moves.

use std::rc::Rc;

use super::seen::Seen;
use crate::base::telemetry::Telemetry;
use crate::session::mux::Mux;
use crate::stream::buffers::Pool;

/// One side's session, with any engine.
pub(in crate::session) trait Side: Mux {
    fn telemetry(&self) -> &Telemetry;

    /// What the session holds although no stream is open, by name. Each number must become 0.
    fn left_over(&self) -> Vec<(&'static str, usize)>;

    /// What the session holds after its end, by name. Each number must become 0.
    fn remains(&self) -> Vec<(&'static str, usize)>;

    /// Reports the expected cases that the session covers at the moment.
    fn check(&self, see: &dyn Fn(Seen));
}

/// What a running session and its pool still hold although no stream is open; `None`: nothing.
pub(super) fn left_over(side: &dyn Side, pool: &Rc<Pool>) -> Option<String> {
    described([side.left_over(), of_pool(pool)].concat())
}

/// What an ended session and its pool still hold; `None`: nothing.
pub(super) fn remains(side: &dyn Side, pool: &Rc<Pool>) -> Option<String> {
    described([side.remains(), of_pool(pool)].concat())
}

fn described(counts: Vec<(&str, usize)>) -> Option<String> {
    let left: Vec<_> = counts.iter().filter(|(_, count)| *count > 0).collect();
    (!left.is_empty()).then(|| format!("{left:?}"))
}

/// The buffers and pipes that are in use. Without buffers in use, the pool has two references: one
/// of the world, one of the session's share.
fn of_pool(pool: &Rc<Pool>) -> Vec<(&'static str, usize)> {
    let buffers = Rc::strong_count(pool) - 2;
    vec![("buffers", buffers), ("pipes", pool.pipes.used())]
}
