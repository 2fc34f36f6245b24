//! The carriers of a session, and the identity of its peer.

use std::cell::{Ref, RefCell};
use std::collections::BTreeMap;
use std::ops::Deref;
use std::rc::Rc;

use tokio::sync::{Notify, watch};

use super::member::Member;
use crate::io::proof::Proof;
use crate::session::mux::PoolState;

/// All carriers that were added and not yet removed, by number.
pub(crate) struct Carriers<C> {
    by_number: RefCell<BTreeMap<u64, Rc<C>>>,
    latest: RefCell<Latest>,
    /// The current and the requested number of carriers.
    pub(crate) numbers: watch::Sender<PoolState>,
    gone: Notify,
}

/// The newest carrier, which may have ended.
#[derive(Default)]
struct Latest {
    peer: Option<Rc<str>>,
    proof: Option<Proof>,
    /// The identity that the peer of every carrier has to prove: the identity that the peer of the
    /// first carrier proved; `None`: the session has had no carrier.
    identity: Option<Option<Rc<str>>>,
}

impl<C: Deref<Target = Member>> Carriers<C> {
    pub(super) fn new() -> Self {
        Self {
            by_number: RefCell::default(),
            latest: RefCell::default(),
            numbers: watch::Sender::default(),
            gone: Notify::new(),
        }
    }

    /// Adds a carrier; returns the number of carriers.
    pub(super) fn add(&self, carrier: &Rc<C>) -> usize {
        {
            let mut latest = self.latest.borrow_mut();
            latest.peer = Some(carrier.stats.peer.as_str().into());
            latest.proof = carrier.proof().cloned();
            let identity = || carrier.proof().map(|proof| proof.identity.as_str().into());
            latest.identity.get_or_insert_with(identity);
        }
        let mut by_number = self.by_number.borrow_mut();
        by_number.insert(carrier.number, Rc::clone(carrier));
        by_number.len()
    }

    pub(super) fn remove(&self, number: u64) {
        self.by_number.borrow_mut().remove(&number);
        self.gone.notify_waiters();
    }

    /// Borrows the carriers for reading. Drop the guard before you add or remove a carrier.
    pub(crate) fn view(&self) -> Ref<'_, BTreeMap<u64, Rc<C>>> {
        self.by_number.borrow()
    }

    pub(crate) fn get(&self, number: u64) -> Option<Rc<C>> {
        self.view().get(&number).cloned()
    }

    pub(crate) fn all(&self) -> Vec<Rc<C>> {
        self.view().values().cloned().collect()
    }

    /// The carriers that are up.
    pub(crate) fn up(&self) -> Vec<Rc<C>> {
        let mut carriers = self.all();
        carriers.retain(|carrier| carrier.is_up());
        carriers
    }

    /// Whether the first carrier has been added.
    pub(crate) fn has_begun(&self) -> bool {
        self.latest.borrow().identity.is_some()
    }

    /// Waits until there is no carrier.
    pub(crate) async fn all_gone(&self) {
        loop {
            let gone = self.gone.notified();
            if self.view().is_empty() {
                break;
            }
            gone.await;
        }
    }

    /// The peer's identity as the first carrier proved it; `None`: the peer proved no identity.
    pub(super) fn identity(&self) -> Option<Rc<str>> {
        self.latest.borrow().identity.clone().flatten()
    }

    /// The proof of identity of the latest carrier's peer.
    pub(super) fn proof(&self) -> Option<Proof> {
        self.latest.borrow().proof.clone()
    }

    /// The peer's address on the latest carrier.
    pub(super) fn peer(&self) -> Rc<str> {
        self.latest.borrow().peer.clone().unwrap_or_default()
    }
}
