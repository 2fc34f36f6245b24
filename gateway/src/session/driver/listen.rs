//! Passes the events of listeners to their receiver. One side of the session requests listeners
//! from the other side.

use std::rc::Rc;

use muxtunnel_proto::{ListenEvent, Reason, Refusal};

use super::Driver;

impl Driver {
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
