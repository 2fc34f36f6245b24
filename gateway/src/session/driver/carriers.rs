//! A session's carriers, and the identity of its peer.

use std::cell::{Cell, Ref, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use muxtunnel_proto::CarrierId;
use tokio::sync::{Notify, watch};

use super::Carrier;
use crate::io::transport::Proof;
use crate::session::mux::PoolState;

/// All carriers that were added and not yet removed, by number.
#[derive(Default)]
pub(super) struct Carriers {
    by_id: RefCell<BTreeMap<CarrierId, Rc<Carrier>>>,
    /// Whether the first carrier has been added.
    begun: Cell<bool>,
    /// The identity that the peer of every carrier has to prove: the identity that the peer of the
    /// first carrier proved.
    identity: RefCell<Option<Rc<str>>>,
    /// The proof of identity of the latest carrier's peer.
    proof: RefCell<Option<Proof>>,
    /// The peer's address on the latest carrier.
    peer: RefCell<Option<Rc<str>>>,
    /// The current and the requested number of carriers.
    numbers: watch::Sender<PoolState>,
    gone: Notify,
}

impl Carriers {
    /// Adds a carrier; returns the number of carriers.
    pub(super) fn add(&self, carrier: &Rc<Carrier>) -> usize {
        if !self.begun.replace(true) {
            let identity = carrier.transport.identity().map(Into::into);
            self.identity.replace(identity);
        }
        let peer = carrier.stats.peer.as_str().into();
        self.peer.replace(Some(peer));
        self.proof.replace(carrier.proof().cloned());
        let mut by_id = self.by_id.borrow_mut();
        by_id.insert(carrier.id, Rc::clone(carrier));
        by_id.len()
    }

    pub(super) fn remove(&self, id: CarrierId) {
        self.by_id.borrow_mut().remove(&id);
        self.gone.notify_waiters();
    }

    /// Borrows the carriers for reading. Drop the guard before you add or remove a carrier.
    pub(super) fn view(&self) -> Ref<'_, BTreeMap<CarrierId, Rc<Carrier>>> {
        self.by_id.borrow()
    }

    pub(super) fn get(&self, id: CarrierId) -> Option<Rc<Carrier>> {
        self.view().get(&id).cloned()
    }

    pub(super) fn all(&self) -> Vec<Rc<Carrier>> {
        self.view().values().cloned().collect()
    }

    /// Whether the first carrier has been added.
    pub(super) fn has_begun(&self) -> bool {
        self.begun.get()
    }

    /// Waits until there is no carrier.
    pub(super) async fn all_gone(&self) {
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
        self.identity.borrow().clone()
    }

    /// The proof of identity of the latest carrier's peer.
    pub(super) fn proof(&self) -> Ref<'_, Option<Proof>> {
        self.proof.borrow()
    }

    /// The peer's address on the latest carrier.
    pub(super) fn peer(&self) -> Rc<str> {
        self.peer.borrow().clone().unwrap_or_default()
    }

    /// The current and the requested number of carriers.
    pub(super) fn numbers(&self) -> &watch::Sender<PoolState> {
        &self.numbers
    }

    /// Updates the number of carriers.
    pub(super) fn count_up(&self) {
        let carriers = self.view();
        let up = carriers.values().filter(|carrier| carrier.is_up());
        let (up, outdated) = (
            up.clone().count(),
            up.filter(|carrier| carrier.outdated.get()).count(),
        );
        self.numbers.send_modify(|numbers| {
            numbers.up = up;
            numbers.outdated = outdated;
        });
    }
}
