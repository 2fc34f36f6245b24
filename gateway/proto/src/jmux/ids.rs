//! The numbers of new streams.
//!
//! When a stream ends abnormally, jetsocat frees its own id at once. jetsocat continues to send to
//! our id until it receives CLOSE. Therefore, numbers ascend through all 32 bits. A number is
//! assigned again only after the CLOSE for this number has arrived, or after the full quarantine
//! has dropped the number ([`QUARANTINE_MAX`]).

use std::collections::{BTreeSet, VecDeque};

use crate::session::StreamId;

/// Maximum number of ids that wait for the peer's CLOSE. Beyond this number, the oldest id is
/// removed. By then, 65,536 newer streams have closed, and numbers repeat only after 2^32 streams.
pub(super) const QUARANTINE_MAX: usize = 65_536;

#[derive(Debug, Default)]
pub(super) struct Ids {
    last: u32,
    quarantined: BTreeSet<StreamId>,
    order: VecDeque<StreamId>,
}

impl Ids {
    /// The next number that is neither in use nor in quarantine. A number is always found, because
    /// fewer than 2^32 numbers are in use or in quarantine.
    pub(super) fn allocate(&mut self, in_use: impl Fn(StreamId) -> bool) -> StreamId {
        loop {
            self.last = self.last.wrapping_add(1);
            let id = StreamId(self.last.into());
            if !in_use(id) && !self.quarantined.contains(&id) {
                return id;
            }
        }
    }

    /// Quarantines `id`, because the peer may still send frames to it.
    pub(super) fn quarantine(&mut self, id: StreamId) {
        if self.quarantined.insert(id) {
            self.order.push_back(id);
        }
        if self.order.len() > QUARANTINE_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.quarantined.remove(&oldest);
        }
    }

    /// The peer's CLOSE for `id` has arrived. The entry in `order` is removed later.
    pub(super) fn release(&mut self, id: StreamId) {
        if self.quarantined.remove(&id) {
            while self
                .order
                .front()
                .is_some_and(|front| !self.quarantined.contains(front))
            {
                self.order.pop_front();
            }
        }
    }

    /// Sets the last assigned number.
    pub(super) fn start_at(&mut self, last: u32) {
        self.last = last;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_ascend_and_come_round_past_those_in_use_and_in_quarantine() {
        let mut ids = Ids::default();
        ids.quarantine(StreamId(1));
        ids.start_at(u32::MAX - 1);
        let in_use = |id| id == StreamId(0);
        assert_eq!(ids.allocate(in_use), StreamId(u32::MAX.into()));
        assert_eq!(ids.allocate(in_use), StreamId(2));
        ids.release(StreamId(1));
        ids.start_at(0);
        assert_eq!(ids.allocate(in_use), StreamId(1));
    }

    #[test]
    fn the_quarantine_is_bounded() {
        let mut ids = Ids::default();
        for id in 0..QUARANTINE_MAX as u64 + 10 {
            ids.quarantine(StreamId(id));
        }
        assert_eq!(
            (ids.order.len(), ids.quarantined.len()),
            (QUARANTINE_MAX, QUARANTINE_MAX)
        );
    }

    #[test]
    fn released_ids_leave_no_trace() {
        let mut ids = Ids::default();
        for id in [3, 1, 2] {
            ids.quarantine(StreamId(id));
        }
        for id in [1, 2, 3] {
            ids.release(StreamId(id));
        }
        assert!(ids.order.is_empty() && ids.quarantined.is_empty());
    }
}
