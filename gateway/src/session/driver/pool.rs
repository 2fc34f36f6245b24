//! Retires a session's carriers, and publishes how many carriers each side could use.

use std::rc::Rc;

use muxtunnel_proto::CarrierId;

use super::carrier::State;
use super::{Carrier, Driver, SessionEnd};
use crate::session::mux::{CarrierFigures, PoolState};

impl Driver {
    /// Starts the orderly retirement of one carrier: of a carrier marked for replacement, otherwise
    /// of the newest carrier. Returns whether a carrier could be retired.
    pub(crate) fn retire_one(self: &Rc<Self>) -> bool {
        let carriers = self.carriers.view();
        let up = carriers.values().rev().filter(|carrier| carrier.is_up());
        let chosen = up.max_by_key(|carrier| (carrier.outdated.get(), carrier.id));
        let Some(carrier) = chosen.map(Rc::clone) else {
            return false;
        };
        drop(carriers);
        let begins = self.update(|session| {
            let begins = session.retire_carrier(carrier.id);
            if begins {
                carrier.set_state(State::Retiring);
            }
            begins
        });
        if begins {
            self.carriers.count_up();
        } else {
            self.end_outdated(&carrier);
        }
        begins
    }

    /// Ends `carrier` if it cannot be retired and is the only remaining carrier marked for
    /// replacement. A carrier cannot be retired while frames on other carriers depend on its
    /// frames. Another carrier retransmits the undelivered bytes.
    fn end_outdated(&self, carrier: &Carrier) {
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

    /// Figures of the carriers that are up.
    pub(super) fn figures(&self) -> Vec<CarrierFigures> {
        let carriers = self.carriers.view();
        let up = carriers.values().filter(|carrier| carrier.is_up());
        up.map(|carrier| carrier.figures()).collect()
    }

    /// Marks the carriers that match `which` for replacement.
    pub(super) fn outdate(&self, which: &dyn Fn(&CarrierFigures) -> bool) {
        for carrier in self.carriers.view().values() {
            let outdated = carrier.outdated.get() || which(&carrier.figures());
            carrier.outdated.set(outdated);
        }
        self.carriers.count_up();
    }

    /// Publishes how many carriers this side could use for the bytes that it sends.
    pub(super) fn want_carriers(self: &Rc<Self>, sends: usize) {
        let differs = |pool: &mut PoolState| std::mem::replace(&mut pool.sends, sends) != sends;
        if self.carriers.numbers().send_if_modified(differs) {
            let count = u32::try_from(sends).unwrap_or(u32::MAX);
            self.update(|session| session.want_carriers(count));
        }
    }

    /// Publishes how many carriers the peer could use.
    pub(super) fn carriers_wanted(&self, count: u32) {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        self.carriers
            .numbers()
            .send_modify(|pool| pool.peer_sends = count);
    }

    /// Records that the session has completed the retirement of a carrier.
    pub(super) fn carrier_retired(&self, id: CarrierId) {
        if let Some(carrier) = self.carriers.get(id) {
            carrier.retired.set(true);
            carrier.close();
            self.carriers.count_up();
        }
    }
}

/// Logs the orderly end of a carrier.
pub(super) fn log_retired(carrier: &Carrier) {
    let peer = &carrier.stats.peer;
    let outdated = carrier.outdated.get();
    tracing::info!(%peer, carrier = carrier.id.number(), outdated, "Carrier is retired");
}
