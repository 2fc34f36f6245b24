//! Listeners that one side of the session requests from the other side.

use std::rc::Rc;

use muxtunnel_proto::{ListenError, ListenEvent, ListenId, Priority, Reason, Refusal};

use super::Driver;
use crate::session::mux::{Hears, Listeners};

impl Driver {
    /// Passes an event of a listener to its receiver.
    pub(super) fn listener_event(self: &Rc<Self>, event: ListenEvent) {
        match (self.hears.get(), event) {
            (Some(hears), event) => hears(event),
            (None, ListenEvent::Asked { listen, .. }) => {
                let text = "this gateway opens no listeners for its peers";
                let refusal = Refusal::new(Reason::NotAllowed, text);
                self.update(|session| session.end_listen(listen, refusal));
            }
            (None, _) => {}
        }
    }
}

impl Listeners for Rc<Driver> {
    fn hear(&self, hears: Hears) {
        let _ = self.hears.set(hears);
    }

    fn listen(&self, address: &str, priority: Priority) -> Result<ListenId, ListenError> {
        self.update(|session| session.listen(address, priority))
    }

    fn unlisten(&self, listen: ListenId) {
        self.update(|session| session.unlisten(listen));
    }

    fn listening(&self, listen: ListenId, address: &str) {
        self.update(|session| session.listening(listen, address));
    }

    fn end_listen(&self, listen: ListenId, refusal: Refusal) {
        self.update(|session| session.end_listen(listen, refusal));
    }
}
