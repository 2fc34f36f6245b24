//! The carriers that a session has, and who is at their other end.

use std::cell::{Cell, Ref, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use muxtunnel_proto::CarrierId;
use tokio::sync::{Notify, watch};

use super::Carrier;
use crate::io::transport::Proof;
use crate::session::mux::PoolState;

/// All that have been added and are not removed, by number.
#[derive(Default)]
pub(super) struct Carriers {
    by_id: RefCell<BTreeMap<CarrierId, Rc<Carrier>>>,
    /// The first one has been added.
    begun: Cell<bool>,
    /// Who the other end of each has to be, as the first one proved it.
    identity: RefCell<Option<Rc<str>>>,
    /// What the other end of the latest has proved.
    proof: RefCell<Option<Proof>>,
    /// The other end's address, of the latest.
    peer: RefCell<Option<Rc<str>>>,
    /// How many there are, and are to be.
    numbers: watch::Sender<PoolState>,
    gone: Notify,
}

impl Carriers {
    /// Returns how many there are with it.
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

    /// To be read, and let go before one is added or removed.
    pub(super) fn view(&self) -> Ref<'_, BTreeMap<CarrierId, Rc<Carrier>>> {
        self.by_id.borrow()
    }

    pub(super) fn get(&self, id: CarrierId) -> Option<Rc<Carrier>> {
        self.view().get(&id).cloned()
    }

    pub(super) fn all(&self) -> Vec<Rc<Carrier>> {
        self.view().values().cloned().collect()
    }

    /// Whether the first one has been added.
    pub(super) fn has_begun(&self) -> bool {
        self.begun.get()
    }

    /// Waits until there is none.
    pub(super) async fn all_gone(&self) {
        loop {
            let gone = self.gone.notified();
            if self.view().is_empty() {
                break;
            }
            gone.await;
        }
    }

    /// Who the other end is, as the first one proved it; `None`: it proved nothing.
    pub(super) fn identity(&self) -> Option<Rc<str>> {
        self.identity.borrow().clone()
    }

    /// What the other end of the latest has proved.
    pub(super) fn proof(&self) -> Ref<'_, Option<Proof>> {
        self.proof.borrow()
    }

    /// The other end's address, of the latest.
    pub(super) fn peer(&self) -> Rc<str> {
        self.peer.borrow().clone().unwrap_or_default()
    }

    /// How many there are, and are to be.
    pub(super) fn numbers(&self) -> &watch::Sender<PoolState> {
        &self.numbers
    }

    /// Counts them again.
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
