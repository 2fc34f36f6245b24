//! Passes events of listeners that one side of the session requests from the other to their
//! receiver.

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
