//! How an exit sends assignments to its entries, and how an entry selects the assignment to apply.

use std::cell::OnceCell;
use std::convert::Infallible;
use std::rc::{Rc, Weak};

use muxtunnel_codes::Code;
use muxtunnel_proto::Assignment;

use super::Network;
use super::addresses::Joined;
use crate::session::mux::{Datagrams, HearsAssignment, Mux};

/// Belongs to a session. Dropping this value makes the entry select its assignment again.
pub(super) struct Reassigns(Weak<Network>);

impl Reassigns {
    pub(super) fn of(network: &Weak<Network>) -> Self {
        Self(Weak::clone(network))
    }
}

impl Drop for Reassigns {
    fn drop(&mut self) {
        if let Some(network) = self.0.upgrade() {
            network.reassigned.notify_one();
        }
    }
}

impl Network {
    /// Exit: sends an entry its addresses and resolvers.
    pub(super) fn assign(&self, joined: &Joined, mux: &dyn Mux, datagrams: &dyn Datagrams) {
        let assignment = Assignment {
            addresses: joined.addresses.clone(),
            dns_servers: self.resolvers.servers.clone(),
            dns_domains: self.resolvers.domains.clone(),
        };
        if assignment.is_empty() {
            return;
        }
        let (peer, identity) = (mux.peer(), mux.identity());
        let identity = identity.as_deref().unwrap_or_default();
        let addresses = &joined.addresses;
        match datagrams.assign(assignment) {
            true => tracing::info!(%peer, identity, ?addresses, "Assigned addresses to the entry"),
            false => tracing::warn!(
                code = %Code::NoPackets, %peer, identity, ?addresses,
                "The entry's version does not support assigned addresses: configure them at the entry, or update the entry"
            ),
        }
    }

    /// Entry: returns the function that stores the assignment of one session.
    pub(super) fn hearing_assignment(
        self: &Rc<Self>,
        assignment: Rc<OnceCell<Rc<Assignment>>>,
    ) -> HearsAssignment {
        let network = Rc::downgrade(self);
        Box::new(move |assigned| {
            let _ = assignment.set(Rc::clone(assigned));
            if let Some(network) = network.upgrade() {
                network.reassigned.notify_one();
            }
        })
    }

    /// Entry: applies the assignment of the oldest session that has a carrier and an assignment.
    /// Never ends.
    pub(super) async fn follow_assignments(&self) -> Infallible {
        loop {
            self.reassigned.notified().await;
            let sessions = self.sessions.borrow();
            let carried = sessions
                .iter()
                .filter(|session| session.carried().is_some());
            let assignment = carried
                .filter_map(|session| session.assignment.get())
                .next()
                .cloned();
            drop(sessions);
            if let (Some(assigned), Some(assignment)) = (&self.assigned, assignment)
                && let Some(assigned) = assigned.apply(&assignment, &self.addresses)
            {
                self.stats.set_assigned(assigned);
            }
        }
    }
}
