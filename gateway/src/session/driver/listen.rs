//! Listeners that one side of the session asks the other for: what is said of them, and who hears it.

use std::rc::Rc;

use muxtunnel_proto::{Event, ListenError, ListenId, Priority, Refusal};

use super::Driver;

/// Hears the events of listeners.
pub(crate) type Hears = Box<dyn Fn(&Rc<Driver>, Event)>;

impl Driver {
    /// `hears` gets the events of listeners from now on; the first one counts.
    pub(crate) fn hear_listeners(&self, hears: Hears) {
        let _ = self.hears.set(hears);
    }

    pub(super) fn listener_event(self: &Rc<Self>, event: Event) {
        match (self.hears.get(), event) {
            (Some(hears), event) => hears(self, event),
            (None, Event::ListenAsked { listen, .. }) => {
                let text = "this side does not listen for its peers";
                let refusal = Refusal::new(muxtunnel_proto::Reason::NotAllowed, text);
                self.end_listen(listen, refusal);
            }
            (None, _) => {}
        }
    }

    /// Asks the peer to listen on `address`.
    ///
    /// # Errors
    /// [`ListenError`]: it cannot be asked.
    pub(crate) fn listen(
        self: &Rc<Self>,
        address: &str,
        priority: Priority,
    ) -> Result<ListenId, ListenError> {
        self.update(|session| session.listen(address, priority))
    }

    /// The peer need not listen any more.
    pub(crate) fn unlisten(self: &Rc<Self>, listen: ListenId) {
        self.update(|session| session.unlisten(listen));
    }

    /// Tells the peer that this side listens.
    pub(crate) fn listening(self: &Rc<Self>, listen: ListenId, address: &str) {
        self.update(|session| session.listening(listen, address));
    }

    /// Tells the peer that this side does not listen, or not any more.
    pub(crate) fn end_listen(self: &Rc<Self>, listen: ListenId, refusal: Refusal) {
        self.update(|session| session.end_listen(listen, refusal));
    }
}
