//! Listeners that one side requests from the other, for protocols that support them. Each listener
//! uses one link. If that link ends, a listener that this side requested moves to another link.

use std::rc::Rc;

use muxtunnel_proto::{
    LISTENS_MAX, ListenError, ListenEvent, ListenId, Priority, Reason, Refusal, listen_of_target,
};

use super::Bridge;
use super::link::{Link, Listens};
use super::links::Member;
use crate::session::mux::{Hears, Listeners};
use crate::session::shell::member::State;

/// A listener that one side requested.
pub(super) struct Listened<L: Link> {
    on: Rc<Member<L>>,
    /// The request of this side; `None`: the peer requested the listener.
    wanted: Option<(Rc<str>, Priority)>,
}

impl<L: Link> Bridge<L> {
    /// Handles an event of a listener on `member`.
    pub(super) fn listened(&self, member: &Rc<Member<L>>, event: ListenEvent) {
        if self.has_ended() {
            return;
        }
        match &event {
            ListenEvent::Asked { listen, .. } => match self.problem_of(*listen) {
                Some(problem) => {
                    let refusal = Refusal::new(Reason::General, problem);
                    if let Some(listens) = member.link.listens() {
                        listens.end_listen(*listen, &refusal);
                    }
                }
                None => {
                    let on = Rc::clone(member);
                    let listened = Listened { on, wanted: None };
                    self.engine.listeners.borrow_mut().insert(*listen, listened);
                    self.tell(event);
                }
            },
            ListenEvent::Ended { listen, .. } | ListenEvent::GivenUp { listen } => {
                // The listener may have moved to another link.
                if self.is_on(*listen, member) {
                    self.engine.listeners.borrow_mut().remove(listen);
                    self.tell(event);
                }
            }
            ListenEvent::Listening { listen, .. } => {
                if self.is_on(*listen, member) {
                    self.tell(event);
                }
            }
        }
    }

    /// The reason to refuse the peer's request for `listen`, if any.
    fn problem_of(&self, listen: ListenId) -> Option<&'static str> {
        let listeners = self.engine.listeners.borrow();
        if self.hears.get().is_none() {
            Some("this gateway opens no listeners for its peers")
        } else if listeners.contains_key(&listen) {
            Some("the session already has a listener with this number on another connection")
        } else if listeners.len() >= LISTENS_MAX {
            Some("the session has reached its limit of listeners")
        } else {
            None
        }
    }

    fn is_on(&self, listen: ListenId, member: &Member<L>) -> bool {
        let listeners = self.engine.listeners.borrow();
        let listened = listeners.get(&listen);
        listened.is_some_and(|listened| listened.on.number == member.number)
    }

    /// The link of the listener to which a stream with `target` belongs.
    pub(super) fn link_of_listener(&self, target: &str) -> Option<Rc<Member<L>>> {
        let listeners = self.engine.listeners.borrow();
        let listened = listeners.get(&listen_of_target(target)?);
        listened.map(|listened| Rc::clone(&listened.on))
    }

    /// Requests the listeners of `member` on another link, since `member` takes no further streams
    /// or has ended. A listener that no other link can request stays on `member`, and ends with
    /// `member`.
    pub(super) fn move_listeners(&self, member: &Member<L>) {
        let mut links = self.carriers.all().into_iter();
        let other = links.find(|other| other.is_up() && other.number != member.number);
        let mut ended = Vec::new();
        self.engine
            .listeners
            .borrow_mut()
            .retain(|listen, listened| {
                if listened.on.number != member.number {
                    return true;
                }
                if let (Some(other), Some((address, priority))) = (&other, &listened.wanted)
                    && let Some(listens) = other.link.listens()
                    && listens.listen(*listen, address, *priority).is_ok()
                {
                    // The old listener ends only after the new request, so that the port remains open.
                    if let Some(listens) = member.link.listens() {
                        listens.unlisten(*listen);
                    }
                    listened.on = Rc::clone(other);
                    return true;
                }
                let stays = member.state() != State::Gone;
                ended.extend((!stays).then_some(*listen));
                stays
            });
        for listen in ended {
            // The requester retries once a link is up.
            self.tell(ListenEvent::GivenUp { listen });
        }
    }

    fn tell(&self, event: ListenEvent) {
        if let Some(hears) = self.hears.get() {
            hears(event);
        }
    }

    fn on_its_link(&self, listen: ListenId, say: impl FnOnce(&dyn Listens)) {
        let listeners = self.engine.listeners.borrow();
        let member = listeners
            .get(&listen)
            .map(|listened| Rc::clone(&listened.on));
        drop(listeners);
        if let Some(listens) = member.as_ref().and_then(|member| member.link.listens()) {
            say(listens);
        }
    }
}

impl<L: Link> Listeners for Rc<Bridge<L>> {
    fn hear(&self, hears: Hears) {
        // Only the first call has an effect.
        let _ = self.hears.set(hears);
    }

    fn listen(&self, address: &str, priority: Priority) -> Result<ListenId, ListenError> {
        let mut links = self.carriers.all().into_iter();
        let member = links.find(|member| member.is_up());
        let member = member.ok_or(ListenError::NotReady)?;
        let listens = member.link.listens().ok_or(ListenError::Unsupported)?;
        if self.engine.listeners.borrow().len() >= LISTENS_MAX {
            return Err(ListenError::TooMany);
        }
        let number = self.engine.listens.get().wrapping_add(1);
        let listen = ListenId::from_number(number).ok_or(ListenError::TooMany)?;
        listens.listen(listen, address, priority)?;
        self.engine.listens.set(number);
        let wanted = Some((address.into(), priority));
        let listened = Listened { on: member, wanted };
        self.engine.listeners.borrow_mut().insert(listen, listened);
        Ok(listen)
    }

    fn unlisten(&self, listen: ListenId) {
        self.on_its_link(listen, |listens| listens.unlisten(listen));
        self.engine.listeners.borrow_mut().remove(&listen);
    }

    fn listening(&self, listen: ListenId, address: &str) {
        self.on_its_link(listen, |listens| listens.listening(listen, address));
    }

    fn end_listen(&self, listen: ListenId, refusal: Refusal) {
        self.on_its_link(listen, |listens| listens.end_listen(listen, &refusal));
        self.engine.listeners.borrow_mut().remove(&listen);
    }
}
