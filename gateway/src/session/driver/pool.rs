//! Retires a session's carriers, and publishes how many carriers each side could use.

use std::rc::Rc;

use muxtunnel_proto::CarrierId;

use super::{Carrier, Driver, SessionEnd};
use crate::session::mux::PoolState;

impl Driver {
    /// Ends `carrier` if it cannot be retired and is the only remaining carrier marked for
    /// replacement. A carrier cannot be retired while frames on other carriers depend on its
    /// frames. Another carrier retransmits the undelivered bytes.
    pub(super) fn end_outdated(&self, carrier: &Carrier) {
        let carriers = self.carriers.view();
        let mut others = carriers.values().filter(|other| other.id != carrier.id);
        let is_last = carrier.outdated.get()
            && carriers.len() > 1
            && others.all(|other| other.is_up() && !other.outdated.get());
        if is_last {
            let reason = "another carrier replaces it";
            carrier.distrust(SessionEnd::GivenUp(reason.to_owned()));
        }
    }

    /// Updates the number of carriers.
    pub(super) fn count_up(&self) {
        let up = self.carriers.up();
        let outdated = up.iter().filter(|carrier| carrier.outdated.get()).count();
        self.carriers.numbers.send_modify(|numbers| {
            numbers.up = up.len();
            numbers.outdated = outdated;
        });
    }

    /// Publishes how many carriers this side could use for the bytes that it sends.
    pub(super) fn want_carriers(self: &Rc<Self>, sends: usize) {
        let differs = |pool: &mut PoolState| std::mem::replace(&mut pool.sends, sends) != sends;
        if self.carriers.numbers.send_if_modified(differs) {
            let count = u32::try_from(sends).unwrap_or(u32::MAX);
            self.update(|session| session.want_carriers(count));
        }
    }

    /// Publishes how many carriers the peer could use.
    pub(super) fn carriers_wanted(&self, count: u32) {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        self.carriers
            .numbers
            .send_modify(|pool| pool.peer_sends = count);
    }

    /// Records that the session has completed the retirement of a carrier.
    pub(super) fn carrier_retired(&self, id: CarrierId) {
        if let Some(carrier) = self.carrier(id) {
            carrier.retired.set(true);
            carrier.close();
            self.count_up();
        }
    }
}

/// Logs the orderly end of a carrier.
pub(super) fn log_retired(carrier: &Carrier) {
    let peer = &carrier.stats.peer;
    let outdated = carrier.outdated.get();
    tracing::info!(%peer, carrier = carrier.id.number(), outdated, "Carrier is retired");
}
