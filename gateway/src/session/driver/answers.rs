//! Whether the peer answers on the carriers of the session, for the choice among the sessions of one
//! peer. [`super::liveness`] and the transports end carriers without answers, which takes longer.

use std::rc::Rc;

use super::{Carrier, Driver};

impl Driver {
    /// Implements [`Mux::answers`](crate::session::mux::Mux::answers).
    pub(super) fn answers(&self) -> bool {
        let carriers = self.carriers.view();
        let mut up = carriers
            .values()
            .filter(|carrier| carrier.is_up())
            .peekable();
        up.peek().is_some() && up.all(|carrier| carrier.answers())
    }

    /// Implements [`Mux::ask`](crate::session::mux::Mux::ask).
    pub(super) fn ask(self: &Rc<Self>) {
        for carrier in self.carriers.all() {
            let received = carrier.stats.received();
            if carrier.is_up() && self.update(|session| session.probe(carrier.id)) {
                carrier.asked.set(Some(received));
            }
        }
    }
}

impl Carrier {
    fn answers(&self) -> bool {
        if self.asked.get() == Some(self.stats.received()) {
            return false;
        }
        self.asked.set(None);
        let path = self.stats.path_info();
        !path.is_some_and(|path| path.is_overdue())
    }
}
