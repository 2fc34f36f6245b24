//! What a client sends before its open is answered: where it is, in case nobody takes the open.
//!
//! Bound: the stream's first window, and as much that was read of it before, until the answer.

use std::cell::{Cell, RefCell};
use std::io::IoSliceMut;
use std::rc::Rc;

use muxtunnel_proto::Source;

use super::batch::Batch;
use crate::ingress::listener::answer::Answer;
use crate::io::local_end::LocalEnd;
use crate::stream::account::Local;

/// A client's connection that is to be led through the tunnel.
pub(crate) struct Connection {
    pub(crate) socket: Box<dyn LocalEnd>,
    pub(crate) local: Local,
    /// What has been read of it and came nowhere.
    pub(crate) early: Vec<u8>,
    /// How the client hears what becomes of the open.
    pub(crate) answer: Answer,
    /// What its target is to be told of it, if anything.
    pub(crate) source: Option<Source>,
}

impl Connection {
    /// Nothing comes of it, for a reason of this gateway's: the client is told, or reset.
    pub(crate) fn turn_away(self) {
        let answer = self.answer.refused(None);
        tokio::task::spawn_local(async move { self.socket.end_with(&answer).await });
    }
}

/// The early data of one stream.
#[derive(Debug, Default)]
pub(crate) struct Early {
    /// Not read again yet.
    unread: RefCell<Vec<u8>>,
    /// Batches that were transmitted, with their payload bytes.
    sent: RefCell<Vec<(Rc<Batch>, usize)>>,
    /// Payload bytes of the batch that waits.
    waiting: Cell<usize>,
    /// Some was transmitted and is not kept.
    lost: Cell<bool>,
}

impl Early {
    pub(crate) fn new(unread: Vec<u8>) -> Self {
        Self {
            unread: RefCell::new(unread),
            ..Self::default()
        }
    }

    /// Whether there is something to be read again.
    pub(crate) fn is_there(&self) -> bool {
        !self.unread.borrow().is_empty()
    }

    /// Reads again; returns how many bytes.
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

    /// A batch of `length` payload bytes waits.
    pub(crate) fn wait(&self, length: usize) {
        self.waiting.set(length);
    }

    /// It was transmitted; `None`: and is not kept.
    pub(crate) fn send(&self, batch: Option<&Rc<Batch>>, length: usize) {
        match batch {
            Some(batch) => self.sent.borrow_mut().push((Rc::clone(batch), length)),
            None => self.lost.set(true),
        }
    }

    /// The open is answered.
    pub(crate) fn forget(&self) {
        self.sent.take();
    }

    /// Whether all of it is there, so that it may go elsewhere.
    pub(crate) fn is_whole(&self) -> bool {
        !self.lost.get()
    }

    /// All of it, in order. `waiting`: the batch that was not transmitted.
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
