//! The links in the simulated world.

use std::rc::Rc;

use super::Bridge;
use super::link::Link;
use crate::base::telemetry::Telemetry;
use crate::session::simulation::{Seen, Side};

impl<L: Link> Side for Rc<Bridge<L>> {
    fn telemetry(&self) -> &Telemetry {
        &self.telemetry
    }

    fn left_over(&self) -> Vec<(&'static str, usize)> {
        let links = self.carriers.view();
        let held = links.values().map(|member| member.link.held()).sum::<u64>();
        let taken = links.values().map(|member| member.room.taken());
        vec![
            ("streams", self.streams.len()),
            ("opens without an answer", self.engine.asking.borrow().len()),
            ("places on links", taken.sum()),
            ("bytes received and not delivered", held as usize),
            ("buffers in its share", self.share.lent()),
            (
                "payload in the library",
                usize::from(!self.engine.unsent.is_none()),
            ),
        ]
    }

    fn remains(&self) -> Vec<(&'static str, usize)> {
        vec![
            ("streams", self.streams.len()),
            ("opens without an answer", self.engine.asking.borrow().len()),
            ("carriers", self.carriers.view().len()),
            // Without tasks, only the world refers to the session.
            ("tasks", Self::strong_count(self) - 1),
        ]
    }

    fn check(&self, _: &dyn Fn(Seen)) {}
}
