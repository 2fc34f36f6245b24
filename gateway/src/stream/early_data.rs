//! The bytes that a client sends before its open is answered. The gateway keeps these bytes in case
//! no peer takes the open.
//!
//! Until the answer, these are at most the bytes of the stream's first window, plus as many bytes
//! that a former session returned.

use std::cell::{Cell, RefCell};
use std::io::IoSliceMut;
use std::rc::Rc;

use muxtunnel_proto::Source;

use super::batch::Batch;
use crate::ingress::listener::answer::Answer;
use crate::io::local_end::LocalEnd;
use crate::stream::account::Local;

/// A client's connection that is to be forwarded through the tunnel.
pub(crate) struct Connection {
    pub(crate) socket: Box<dyn LocalEnd>,
    pub(crate) local: Local,
    /// Bytes that were read from the socket and not forwarded yet.
    pub(crate) early: Vec<u8>,
    /// How the client is told the outcome of the open.
    pub(crate) answer: Answer,
    /// Data about the client, which an exit passes to the target.
    pub(crate) source: Option<Source>,
    /// Whether the opener has another target. If the peer then cannot dial this one, the mux returns
    /// the connection.
    pub(crate) has_next: bool,
}

impl Connection {
    /// Rejects the connection for a reason of this gateway. The client gets an answer or a reset.
    pub(crate) fn turn_away(self) {
        let answer = self.answer.refused(None);
        tokio::task::spawn_local(async move { self.socket.end_with(&answer).await });
    }
}

/// The early data of one stream.
#[derive(Debug, Default)]
pub(crate) struct Early {
    /// Bytes to read again.
    unread: RefCell<Vec<u8>>,
    /// Batches that were transmitted, with the number of their payload bytes.
    sent: RefCell<Vec<(Rc<Batch>, usize)>>,
    /// Number of payload bytes in the waiting batch.
    waiting: Cell<usize>,
    /// Whether some bytes were transmitted but not kept.
    lost: Cell<bool>,
}

impl Early {
    pub(crate) fn new(unread: Vec<u8>) -> Self {
        Self {
            unread: RefCell::new(unread),
            ..Self::default()
        }
    }

    /// Whether there are bytes to read again.
    pub(crate) fn is_there(&self) -> bool {
        !self.unread.borrow().is_empty()
    }

    /// Reads kept bytes again; returns their number.
    pub(crate) fn read(&self, slots: &mut [IoSliceMut<'_>]) -> usize {
        let mut unread = self.unread.borrow_mut();
        let mut taken = 0;
        for slot in slots {
            let length = slot.len().min(unread.len() - taken);
            slot[..length].copy_from_slice(&unread[taken..taken + length]);
            taken += length;
        }
        unread.drain(..taken);
        taken
    }

    /// Records that a batch of `length` payload bytes waits.
    pub(crate) fn wait(&self, length: usize) {
        self.waiting.set(length);
    }

    /// Records that the batch was transmitted; `None`: the batch is not kept.
    pub(crate) fn send(&self, batch: Option<&Rc<Batch>>, length: usize) {
        match batch {
            Some(batch) => self.sent.borrow_mut().push((Rc::clone(batch), length)),
            None => self.lost.set(true),
        }
    }

    /// Drops the batches, since the open is answered.
    pub(crate) fn forget(&self) {
        self.sent.take();
    }

    /// Whether all bytes are kept, so that another session may take the connection.
    pub(crate) fn is_whole(&self) -> bool {
        !self.lost.get()
    }

    /// All bytes, in order. `waiting` is the batch that was not transmitted.
    pub(crate) fn into_bytes(self, waiting: Option<Batch>) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (batch, length) in self.sent.into_inner() {
            batch.payload(length).for_each(|part| bytes.extend(part));
        }
        if let Some(batch) = waiting {
            let length = self.waiting.get();
            batch.payload(length).for_each(|part| bytes.extend(part));
        }
        bytes.extend(self.unread.into_inner());
        bytes
    }
}
