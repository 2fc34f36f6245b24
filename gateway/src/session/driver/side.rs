//! The driver in the simulated world.

use std::rc::Rc;

use super::{Carrier, Driver, Incoming};
use crate::base::telemetry::Telemetry;
use crate::session::simulation::{Seen, Side};

impl Side for Rc<Driver> {
    fn telemetry(&self) -> &Telemetry {
        &self.telemetry
    }

    fn left_over(&self) -> Vec<(&'static str, usize)> {
        let session = self.engine.session.view();
        let carriers = self.carriers.view();
        let is_queued = |carrier: &&Rc<Carrier>| !carrier.queue.borrow().is_empty();
        vec![
            ("streams", self.streams.len()),
            (
                "streams that are dialled",
                self.engine.incoming.borrow().len(),
            ),
            ("streams of the session", session.stream_count()),
            (
                "bytes of receive memory",
                session.receive_budget_used() as usize,
            ),
            ("bytes retained", session.retained_bytes() as usize),
            ("batches retained", self.engine.retention.len()),
            ("buffers in its share", self.share.lent()),
            ("words unsettled", usize::from(!session.is_settled())),
            ("queues", carriers.values().filter(is_queued).count()),
        ]
    }

    fn remains(&self) -> Vec<(&'static str, usize)> {
        vec![
            ("streams", self.streams.len()),
            (
                "streams that are dialled",
                self.engine.incoming.borrow().len(),
            ),
            ("carriers", self.carriers.view().len()),
            ("batches retained", self.engine.retention.len()),
            // Without tasks, only the world refers to the driver.
            ("tasks", Self::strong_count(self) - 1),
        ]
    }

    fn check(&self, see: &dyn Fn(Seen)) {
        let carriers = self.carriers.view();
        let up = || carriers.values().filter(|carrier| carrier.is_up());
        let is_lost = carriers.is_empty() && self.carriers.has_begun() && !self.has_ended();
        let resumes = self.telemetry.resumes.status();
        let splices = self.telemetry.splices.status();
        let holds = |io: &super::StreamIo| io.holds();
        let incoming = self.engine.incoming.borrow();
        let seen = [
            (
                self.streams.any(|io| holds(io).0 && io.is_open()),
                Seen::InboxHeld,
            ),
            (self.streams.any(|io| holds(io).1), Seen::OutOfOrder),
            (
                incoming.values().any(Incoming::holds),
                Seen::HeldWhileDialling,
            ),
            (up().count() > 1, Seen::SeveralCarriers),
            (is_lost, Seen::WithoutCarrier),
            (
                up().any(|carrier| carrier.id.number() > 0),
                Seen::CarrierJoined,
            ),
            (resumes.carriers_survived > 0, Seen::Resumed),
            (resumes.bytes_sent_again > 0, Seen::SentAgain),
            (
                self.telemetry.carriers_retired.get() > 0,
                Seen::CarrierRetired,
            ),
            (splices.bytes_sent > 0, Seen::SplicedOut),
            (splices.bytes_received > 0, Seen::SplicedIn),
        ];
        seen.into_iter()
            .filter(|(is, _)| *is)
            .for_each(|(_, seen)| see(seen));
    }
}
