//! Listeners that one side of the session asks the other for: who hears what is said of them.

use std::rc::Rc;

use muxtunnel_proto::{ListenEvent, Reason, Refusal};

use super::Driver;

impl Driver {
    pub(super) fn listener_event(self: &Rc<Self>, event: ListenEvent) {
        match (self.hears.get(), event) {
            (Some(hears), event) => hears(event),
            (None, ListenEvent::Asked { listen, .. }) => {
                let text = "this side does not listen for its peers";
                let refusal = Refusal::new(Reason::NotAllowed, text);
                self.update(|session| session.end_listen(listen, refusal));
            }
            (None, _) => {}
        }
    }
}
