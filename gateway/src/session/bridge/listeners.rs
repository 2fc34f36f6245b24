//! Listeners that one side asks the other for, where the protocol has a word for them. Each is on one link, and ends with it.

use std::rc::Rc;

use muxtunnel_proto::{
    ListenError, ListenEvent, ListenId, Priority, Reason, Refusal, listen_of_target,
};

use super::Bridge;
use super::link::{Link, Listens};
use super::links::Member;
use crate::session::mux::{Hears, Listeners};

impl<L: Link> Bridge<L> {
    /// The peer speaks of a listener on `member`.
    pub(super) fn listened(&self, member: &Rc<Member<L>>, event: ListenEvent) {
        match &event {
            ListenEvent::Asked { listen, .. } => {
                let Some(hears) = self.hears.get() else {
                    let text = "this side does not listen for its peers";
                    let refusal = Refusal::new(Reason::General, text);
                    if let Some(listens) = member.link.listens() {
                        listens.end_listen(*listen, &refusal);
                    }
                    return;
                };
                let on = Rc::clone(member);
                self.listeners.borrow_mut().insert(*listen, on);
                hears(event);
            }
            ListenEvent::Ended { listen, .. } | ListenEvent::GivenUp { listen } => {
                self.listeners.borrow_mut().remove(listen);
                self.tell(event);
            }
            ListenEvent::Listening { .. } => self.tell(event),
        }
    }

    /// The listeners on `member` end with it.
    pub(super) fn listeners_ended(&self, member: &Member<L>) {
        let mut on_it = Vec::new();
        self.listeners.borrow_mut().retain(|listen, on| {
            let is_on_it = on.id == member.id;
            on_it.extend(is_on_it.then_some(*listen));
            !is_on_it
        });
        for listen in on_it {
            let refusal = Refusal::new(Reason::General, "its carrier has ended");
            self.tell(ListenEvent::Ended { listen, refusal });
        }
    }

    fn tell(&self, event: ListenEvent) {
        if let Some(hears) = self.hears.get() {
            hears(event);
        }
    }

    fn on_its_link(&self, listen: ListenId, say: impl FnOnce(&dyn Listens)) {
        let member = self.listeners.borrow().get(&listen).cloned();
        if let Some(listens) = member.as_ref().and_then(|member| member.link.listens()) {
            say(listens);
        }
    }
}

impl<L: Link> Listeners for Rc<Bridge<L>> {
    fn hear(&self, hears: Hears) {
        // The first one counts.
        let _ = self.hears.set(hears);
    }

    fn listen(&self, address: &str, priority: Priority) -> Result<ListenId, ListenError> {
        let mut links = self.all_links().into_iter();
        let member = links.find(|member| member.is_up());
        let member = member.ok_or(ListenError::NotReady)?;
        let listens = member.link.listens().ok_or(ListenError::Unsupported)?;
        let number = self.listens.get() + 1;
        let listen = listen_of_target(&format!("listen://{number}"));
        let listen = listen.ok_or(ListenError::TooMany)?;
        listens.listen(listen, address, priority)?;
        self.listens.set(number);
        self.listeners
            .borrow_mut()
            .insert(listen, Rc::clone(&member));
        Ok(listen)
    }

    fn unlisten(&self, listen: ListenId) {
        self.on_its_link(listen, |listens| listens.unlisten(listen));
        self.listeners.borrow_mut().remove(&listen);
    }

    fn listening(&self, listen: ListenId, address: &str) {
        self.on_its_link(listen, |listens| listens.listening(listen, address));
    }

    fn end_listen(&self, listen: ListenId, refusal: Refusal) {
        self.on_its_link(listen, |listens| listens.end_listen(listen, &refusal));
        self.listeners.borrow_mut().remove(&listen);
    }
}
