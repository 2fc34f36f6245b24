//! Streams that have something to transmit, each at most once, first come first served.

use std::collections::{BTreeSet, VecDeque};

use super::StreamId;

#[derive(Debug, Default)]
pub(super) struct ReadyList {
    order: VecDeque<StreamId>,
    members: BTreeSet<StreamId>,
}

impl ReadyList {
    pub(super) fn push(&mut self, stream: StreamId) {
        if self.members.insert(stream) {
            self.order.push_back(stream);
        }
    }

    pub(super) fn front(&self) -> Option<StreamId> {
        self.order.front().copied()
    }

    pub(super) fn pop(&mut self) {
        if let Some(stream) = self.order.pop_front() {
            self.members.remove(&stream);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }
}
