//! The streams of a session: streams with a socket, and the peer's streams whose targets are being
//! dialled.

use std::cell::{RefCell, RefMut};
use std::collections::BTreeMap;
use std::rc::Rc;

use muxtunnel_proto::StreamId;

use super::incoming::Incoming;
use super::stream::StreamIo;

/// One table for each of the two kinds of streams. The session bounds both tables by
/// `limits.streams`.
#[derive(Default)]
pub(super) struct Streams {
    by_id: RefCell<BTreeMap<StreamId, Rc<StreamIo>>>,
    incoming: RefCell<BTreeMap<StreamId, Incoming>>,
}

impl Streams {
    pub(super) fn add(&self, io: StreamIo) -> Rc<StreamIo> {
        let io = Rc::new(io);
        self.by_id.borrow_mut().insert(io.id, Rc::clone(&io));
        io
    }

    pub(super) fn remove(&self, stream: StreamId) {
        self.by_id.borrow_mut().remove(&stream);
    }

    pub(super) fn get(&self, stream: StreamId) -> Option<Rc<StreamIo>> {
        self.by_id.borrow().get(&stream).cloned()
    }

    pub(super) fn all(&self) -> Vec<Rc<StreamIo>> {
        self.by_id.borrow().values().cloned().collect()
    }

    /// Whether a stream that this side opened has no answer yet.
    pub(super) fn is_one_unanswered(&self) -> bool {
        let by_id = self.by_id.borrow();
        by_id.values().any(|io| io.is_unanswered())
    }

    /// Whether a stream is open.
    pub(super) fn is_one_open(&self) -> bool {
        self.by_id.borrow().values().any(|io| io.is_open())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_id.borrow().is_empty()
    }

    /// The streams whose targets are dialled.
    pub(super) fn incoming(&self) -> RefMut<'_, BTreeMap<StreamId, Incoming>> {
        self.incoming.borrow_mut()
    }
}
