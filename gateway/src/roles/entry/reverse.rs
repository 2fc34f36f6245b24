//! Reverse forwards, whose streams begin on the exit. This module manages the listeners that each
//! session requests, and the targets of their streams.
//!
//! Every session requests all listeners, and repeats refused requests after a pause. The exit
//! shares a port among the sessions that request it. A stream specifies its listener and never a
//! target, so an exit reaches only declared targets. Bounds: the forwards of the configuration, and
//! two events for each forward.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use muxtunnel_codes::Code;
use muxtunnel_gateway_config::{self as config, Direction, PeerRules, Rule};
use muxtunnel_proto::{ListenEvent, ListenId, Reason, Refusal, listen_of_target};
use tokio::sync::Notify;

use super::Entry;
use super::listen::priority;
use crate::base::forward::Forward;
use crate::ingress::listener::greeting::url_of;
use crate::net::dial::{self, Dialled};
use crate::net::policy::Authorizer;
use crate::roles::worker::Phase;
use crate::session::mux::{Listeners, Mux, Progress, is_failed_dial};

/// Pause before a refused listener is requested again.
const ASK_AGAIN: Duration = Duration::from_secs(15);

/// The listeners that one session has requested.
pub(super) struct Asked {
    /// Identifies the session in [`Outcomes`].
    number: u64,
    by_id: RefCell<BTreeMap<ListenId, Rc<Route>>>,
    news: RefCell<VecDeque<ListenEvent>>,
    wake: Notify,
}

/// A listener, and the targets of its streams.
struct Route {
    forward: Arc<Forward>,
    listen: String,
    priority: config::Priority,
    /// The URLs of the targets, in the order in which they are dialled.
    urls: Vec<Rc<str>>,
    /// The rules for the targets.
    allow: Vec<Rule>,
}

impl Route {
    fn of(entry: &Entry, wanted: &config::Listener) -> Rc<Self> {
        Rc::new(Self {
            forward: entry.telemetry.forwards.get(wanted),
            listen: wanted.listen.clone(),
            priority: wanted.priority,
            urls: wanted.targets.iter().map(url_of).collect(),
            allow: wanted.targets.iter().map(Rule::of_target).collect(),
        })
    }

    /// Whether the route requests the same listener as `wanted`.
    fn asks_for(&self, wanted: &config::Listener) -> bool {
        self.forward.name == wanted.name
            && self.listen == wanted.listen
            && self.priority == wanted.priority
    }
}

/// The result of each reverse forward in each session: `None` if the exit listens, otherwise the
/// reason why it does not.
#[derive(Default)]
pub(super) struct Outcomes(BTreeMap<(u64, String), Option<String>>);

impl Outcomes {
    /// Why no exit, or not every exit, listens for the forward.
    pub(super) fn problem(&self, forward: &str) -> Option<String> {
        let of_forward = self.0.iter().filter(|((_, name), _)| name == forward);
        let mut outcomes = of_forward.map(|(_, outcome)| outcome).peekable();
        if outcomes.peek().is_none() {
            return Some("no exit listens for this forward yet".to_owned());
        }
        outcomes.find_map(Clone::clone)
    }
}

impl Asked {
    pub(super) fn new(number: u64) -> Rc<Self> {
        Rc::new(Self {
            number,
            by_id: RefCell::default(),
            news: RefCell::default(),
            wake: Notify::new(),
        })
    }

    /// Handles events from the exit.
    pub(super) fn hear(self: &Rc<Self>, listeners: &dyn Listeners) {
        let asked = Rc::clone(self);
        listeners.hear(Box::new(move |event| {
            asked.news.borrow_mut().push_back(event);
            asked.wake.notify_one();
        }));
    }

    /// Requests the wanted listeners that are not paused, and cancels listeners that are no longer
    /// wanted. Returns the forwards whose listener could not be requested.
    fn ask(
        &self,
        entry: &Entry,
        listeners: &dyn Listeners,
        wanted: &[&config::Listener],
        paused: &BTreeMap<String, Instant>,
    ) -> Vec<(String, String)> {
        let mut given_up = Vec::new();
        self.by_id.borrow_mut().retain(|listen, route| {
            let stays = wanted.iter().find(|wanted| route.asks_for(wanted));
            match stays {
                Some(wanted) => *route = Route::of(entry, wanted),
                None => given_up.push(*listen),
            }
            stays.is_some()
        });
        given_up
            .iter()
            .for_each(|listen| listeners.unlisten(*listen));
        let mut failed = Vec::new();
        for wanted in wanted {
            let by_id = self.by_id.borrow();
            let is_asked = by_id.values().any(|route| route.asks_for(wanted));
            drop(by_id);
            if is_asked || paused.contains_key(&wanted.name) {
                continue;
            }
            match listeners.listen(&wanted.listen, priority(wanted.priority)) {
                Ok(listen) => {
                    let route = Route::of(entry, wanted);
                    self.by_id.borrow_mut().insert(listen, route);
                }
                Err(error) => failed.push((wanted.name.clone(), error.to_string())),
            }
        }
        failed
    }
}

impl Entry {
    /// Maintains the listeners of reverse forwards on the exit of `mux`. Never returns.
    pub(super) async fn keep_listeners(&self, mux: &dyn Mux, asked: &Asked) -> Infallible {
        let Some(listeners) = mux.listeners() else {
            return std::future::pending().await;
        };
        let (mut reloadable, mut phase) = (self.reloadable.clone(), self.phase.clone());
        let mut paused: BTreeMap<String, Instant> = BTreeMap::new();
        loop {
            self.take_news(mux, asked, &mut paused);
            let closed = *phase.borrow_and_update() >= Phase::Closed;
            if closed || mux.progress() > Progress::Ready {
                self.stop_asking(listeners, asked);
                return std::future::pending().await;
            }
            let now = Instant::now();
            paused.retain(|_, until| *until > now);
            let in_force = Arc::clone(&reloadable.borrow_and_update());
            let wanted: Vec<_> = in_force.listeners.iter().filter(is_reverse).collect();
            for (name, problem) in asked.ask(self, listeners, &wanted, &paused) {
                self.not_listening(mux, asked, &mut paused, name, problem);
            }
            let again = paused.values().min().copied();
            let again = async {
                match again {
                    Some(again) => tokio::time::sleep_until(again.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                Ok(()) = reloadable.changed() => paused.clear(),
                Ok(()) = phase.changed() => {}
                () = asked.wake.notified() => {}
                () = mux.reached(Progress::GoingAway) => {}
                () = again => {}
            }
        }
    }

    pub(super) fn has_reverse_forwards(&self) -> bool {
        self.reloadable
            .borrow()
            .listeners
            .iter()
            .any(|forward| is_reverse(&forward))
    }

    fn take_news(&self, mux: &dyn Mux, asked: &Asked, paused: &mut BTreeMap<String, Instant>) {
        for event in asked.news.take() {
            match event {
                ListenEvent::Listening { listen, address } => {
                    let route = asked.by_id.borrow().get(&listen).cloned();
                    if let Some(route) = route {
                        let forward = &route.forward.name;
                        tracing::info!(forward, listen = %address, exit = %mux.peer(), "The exit listens");
                        self.note_outcome(asked, forward, None);
                    }
                }
                ListenEvent::Ended { listen, refusal } => {
                    let route = asked.by_id.borrow_mut().remove(&listen);
                    if let Some(route) = route {
                        let name = route.forward.name.clone();
                        self.not_listening(mux, asked, paused, name, refusal.description);
                    }
                }
                // The link of this listener has ended, and no other link has taken the listener.
                // The entry requests the listener again.
                ListenEvent::GivenUp { listen } => {
                    asked.by_id.borrow_mut().remove(&listen);
                }
                // An exit requests no listeners.
                ListenEvent::Asked { .. } => {}
            }
        }
    }

    fn not_listening(
        &self,
        mux: &dyn Mux,
        asked: &Asked,
        paused: &mut BTreeMap<String, Instant>,
        forward: String,
        problem: String,
    ) {
        let code = Code::ListenRefused;
        tracing::warn!(%code, forward, exit = %mux.peer(), reason = %problem, "The exit does not listen");
        self.note_outcome(asked, &forward, Some(format!("{code}: {problem}")));
        paused.insert(forward, Instant::now() + ASK_AGAIN);
    }

    fn note_outcome(&self, asked: &Asked, forward: &str, problem: Option<String>) {
        let key = (asked.number, forward.to_owned());
        self.outcomes.borrow_mut().0.insert(key, problem);
        self.publish_outcome(forward);
    }

    fn publish_outcome(&self, forward: &str) {
        let problem = self.outcomes.borrow().problem(forward);
        self.telemetry
            .set_listen_error(self.worker, forward, problem);
    }

    /// Cancels all listeners of the session. Streams that the exit opened continue.
    fn stop_asking(&self, listeners: &dyn Listeners, asked: &Asked) {
        let listens: Vec<ListenId> = asked.by_id.borrow().keys().copied().collect();
        listens
            .iter()
            .for_each(|listen| listeners.unlisten(*listen));
        self.forget_outcomes(asked);
    }

    /// Removes the outcomes of the session.
    pub(super) fn forget_outcomes(&self, asked: &Asked) {
        let mut forgotten = Vec::new();
        self.outcomes.borrow_mut().0.retain(|(number, name), _| {
            let stays = *number != asked.number;
            if !stays {
                forgotten.push(name.clone());
            }
            stays
        });
        for forward in forgotten {
            self.publish_outcome(&forward);
        }
    }

    /// Connects a stream from the exit to the target of its listener.
    pub(super) async fn dial(
        &self,
        asked: &Asked,
        target: &str,
        peer: Option<&str>,
    ) -> Result<Dialled, Refusal> {
        let listen = listen_of_target(target);
        let route = listen.and_then(|listen| asked.by_id.borrow().get(&listen).cloned());
        let Some(route) = route else {
            let code = Code::OpenRefused;
            self.telemetry.streams.refused(code);
            let text = format!("{code}: this entry did not request the listener");
            return Err(Refusal::new(Reason::NotAllowed, text));
        };
        let admission = route.forward.admit(Instant::now()).map_err(|code| {
            self.telemetry.streams.refused(code);
            route.forward.refused(code);
            Refusal::new(Reason::General, format!("{code}: {}", code.cause()))
        })?;
        // Declared targets require no rule. Deny rules and protected addresses still apply.
        let reloadable = Arc::clone(&self.reloadable.borrow());
        let authorizer = Authorizer {
            allow: &route.allow,
            policy: &reloadable.policy,
            protected: &self.protected,
            peer,
            of_peer: PeerRules::default(),
            is_portless: false,
        };
        let mut urls = route.urls.iter();
        loop {
            let url = urls.next().cloned().unwrap_or_default();
            match dial::dial(&url, authorizer).await {
                Ok(dialled) => {
                    return Ok(Dialled {
                        admission,
                        url: Some(url),
                        ..dialled
                    });
                }
                Err(error) if urls.len() > 0 && is_failed_dial(error.refusal.reason) => {
                    // The refusal of the last target is the answer.
                    error.report(&self.telemetry, &url);
                }
                Err(error) => {
                    route.forward.refused(error.code);
                    return Err(error.report(&self.telemetry, &url));
                }
            }
        }
    }
}

fn is_reverse(forward: &&config::Listener) -> bool {
    forward.direction == Direction::ExitToEntry
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forward_has_a_problem_while_any_session_has_one() {
        let mut outcomes = Outcomes::default();
        assert!(outcomes.problem("web").unwrap().contains("no exit"));
        outcomes.0.insert((1, "web".to_owned()), None);
        assert_eq!(outcomes.problem("web"), None);
        let problem = Some("in use".to_owned());
        outcomes.0.insert((2, "web".to_owned()), problem.clone());
        assert_eq!(outcomes.problem("web"), problem);
        assert!(outcomes.problem("db").is_some());
    }
}
