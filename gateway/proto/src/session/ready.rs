//! Streams with a control frame to transmit: each stream at most once, in order of arrival.

use std::collections::{BTreeSet, VecDeque};

use super::StreamId;

#[derive(Debug, Default)]
pub(crate) struct ReadyList {
    order: VecDeque<StreamId>,
    members: BTreeSet<StreamId>,
}

impl ReadyList {
    pub(crate) fn push(&mut self, stream: StreamId) {
        if self.members.insert(stream) {
            self.order.push_back(stream);
        }
    }

    pub(crate) fn front(&self) -> Option<StreamId> {
        self.order.front().copied()
    }

    pub(crate) fn pop(&mut self) {
        if let Some(stream) = self.order.pop_front() {
            self.members.remove(&stream);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }
}
