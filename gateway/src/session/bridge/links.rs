//! The life of a session's links: they start, take streams, and end.

use std::cell::Cell;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use muxtunnel_gateway_config::SessionConfig;
use muxtunnel_proto::ListenEvent;
use tokio::sync::Mutex;

use super::Bridge;
use super::link::{Below, Hears, Link};
use super::room::Room;
use crate::base::closing::Reason;
use crate::base::memory_budget::Drawn;
use crate::io::carrier::Carrier;
use crate::session::end::SessionEnd;
use crate::session::handover::Place;
use crate::session::mux::{NoCarrier, PacketLimit, Progress};
use crate::session::shell::member::{Member as Carried, State};
use crate::session::shell::now;
use crate::session::shell::under::Under;

const LINKS_MAX: usize = 16;
/// How long a new link may search for the maximum packet size of its path; quinn needs 6 round
/// trips.
const SEARCH_MAX: Duration = Duration::from_secs(3);

/// One link, with its carrier.
pub(crate) struct Member<L: Link> {
    carrier: Carried,
    pub(super) link: L,
    /// [`Link::messages`] when an answer was requested; `None`: the peer has answered.
    asked: Cell<Option<u64>>,
    pub(super) room: Rc<Room>,
    /// The queue in which opens wait for room if they must use this link.
    pub(super) turns: Rc<Mutex<()>>,
    /// The link's part of the memory, until the link ends.
    memory: Cell<Option<Drawn>>,
}

impl<L: Link> Deref for Member<L> {
    type Target = Carried;

    fn deref(&self) -> &Carried {
        &self.carrier
    }
}

impl<L: Link> Member<L> {
    pub(super) fn owes_an_answer(&self) -> bool {
        self.asked.get() == Some(self.link.messages())
    }

    /// Requests an answer, if the protocol has such a request.
    pub(super) fn ask(&self) {
        let messages = self.link.messages();
        if self.link.probe() {
            self.asked.set(Some(messages));
        }
    }

    /// The packet size of the link; `None`: the link carries no packets.
    pub(super) fn packet_limit(&self) -> Option<PacketLimit> {
        Some(PacketLimit {
            bytes: self.link.packet_bytes_max()?,
            is_known: now().saturating_duration_since(self.since) >= SEARCH_MAX,
        })
    }

    /// Publishes the number of streams and the bytes of waiting payload.
    pub(super) fn publish(&self) {
        let streams = self.room.taken() as u64;
        self.stats.set_session(streams, self.link.held());
    }
}

impl<L: Link> Bridge<L> {
    /// Implements [`Engine::add`](crate::session::shell::Engine::add).
    ///
    /// # Errors
    /// [`NoCarrier`]; the session continues without the connection.
    pub(super) fn add_link(
        self: &Rc<Self>,
        carrier: Carrier,
        unread: Vec<u8>,
        place: Option<Place>,
    ) -> Result<Rc<Member<L>>, NoCarrier> {
        if self.carriers.view().len() >= LINKS_MAX {
            return Err(NoCarrier::Refused(carrier));
        }
        let under = Under::from(carrier);
        let carrier = Carried::new(self.number(), under.clone(), &self.telemetry, place)?;
        let below = Below {
            under,
            unread,
            stats: Arc::clone(&carrier.stats),
            unsent: Arc::clone(&self.engine.unsent),
            packets: Rc::clone(&self.packets),
        };
        let (budget, connections) = &self.engine.memory;
        let (memory, drawn) = budget.draw(self.config.memory, *connections);
        let config = SessionConfig {
            memory,
            ..self.config.clone()
        };
        let member = Rc::new(Member {
            carrier,
            link: (self.engine.make)(below, &config)?,
            asked: Cell::new(None),
            room: Rc::default(),
            turns: Rc::default(),
            memory: Cell::new(Some(drawn)),
        });
        self.added(&member);
        let (bridge, added) = (Rc::clone(self), Rc::clone(&member));
        tokio::task::spawn_local(async move {
            let link = Rc::clone(&added);
            let run = Rc::clone(&bridge);
            let task = async move { run.run_link(&link).await };
            Rc::clone(&bridge).guard(task).await;
            if added.state() != State::Gone {
                // The task has panicked.
                bridge.forget(&added);
                added.under.shut();
            }
        });
        Ok(member)
    }

    async fn run_link(self: Rc<Self>, member: &Rc<Member<L>>) {
        let hears = Hearing {
            bridge: &self,
            member,
        };
        let end = tokio::select! {
            biased;
            end = self.run_and_linger(member, &hears) => end,
            end = member.ends_at_once(&self.telemetry) => end,
            () = self.without_last_word() => SessionEnd::ShutDown,
        };
        if let SessionEnd::Refused(_) = end {
            member.under.key_refused();
        }
        self.link_ended(member, end);
    }

    /// Runs the link to its end. If this side takes no further streams, waits until the peer has read
    /// the last frames, since the process may exit after the end of its sessions.
    async fn run_and_linger(&self, member: &Member<L>, hears: &dyn Hears<L>) -> SessionEnd {
        let end = member.link.run(hears).await;
        let takes_none = self.has_ended() || self.engine.takes_none.get();
        if takes_none && matches!(end, SessionEnd::Closed) {
            member.under.linger().await;
        }
        end
    }

    /// Waits until the session has ended and its links had the time to send their close frames.
    async fn without_last_word(&self) {
        self.ending.begun().await;
        tokio::time::sleep(self.ending.last_word_max()).await;
    }

    /// Handles the end of a link. The link's streams end. If this was the session's last link, the
    /// session also ends.
    fn link_ended(self: &Rc<Self>, member: &Rc<Member<L>>, end: SessionEnd) {
        if matches!(end, SessionEnd::Revoked(_)) {
            let streams = self.streams.all().into_iter();
            for io in streams.filter(|io| io.link == member.number) {
                io.abandon(Reason::Revoked, None);
            }
        }
        // If the peer is not revoked, each stream first delivers the received bytes, and then the
        // link reports the end to the stream.
        let text = end.to_string();
        self.forget(member);
        self.close(member, matches!(end, SessionEnd::Closed));
        let is_last = self.carriers.view().is_empty();
        if !is_last && !self.has_ended() {
            self.move_listeners(member);
        }
        if is_last && !member.retired.get() {
            self.end(end);
        } else if is_last {
            self.end(SessionEnd::Closed);
        } else if !member.retired.get() && !self.has_ended() {
            member.log_lost(&text);
        }
        self.has_room();
    }

    /// Removes a link that has ended.
    fn forget(&self, member: &Member<L>) {
        member.set_state(State::Gone);
        member.memory.take();
        self.remove(member);
    }

    /// Closes the carrier of a link that has ended. `in_order`: the library has ended it in order.
    /// Meanwhile the carrier keeps its place among the carriers of an exit.
    fn close(&self, member: &Rc<Member<L>>, in_order: bool) {
        if !in_order {
            return member.under.shut();
        }
        let (member, telemetry) = (Rc::clone(member), Arc::clone(&self.telemetry));
        tokio::task::spawn_local(async move {
            tokio::select! {
                biased;
                _ = member.ends_at_once(&telemetry) => {}
                () = member.under.linger() => {}
            }
            member.under.shut();
        });
    }

    /// Starts the orderly retirement of a link.
    pub(super) fn retire(self: &Rc<Self>, member: &Rc<Member<L>>) {
        member.retired.set(true);
        self.move_listeners(member);
        self.take_no_more(member);
        self.count_up();
    }

    /// Stops the link from taking further streams. A retired link then ends with its last open
    /// stream.
    pub(super) fn take_no_more(&self, member: &Rc<Member<L>>) {
        member.set_state(State::Leaving);
        member.link.go_away();
        self.end_empty(member);
    }

    /// Ends the link if this side has retired it and it has no open stream.
    pub(super) fn end_empty(&self, member: &Member<L>) {
        let leaves = member.state() == State::Leaving && member.retired.get();
        if leaves && member.room.taken() == 0 {
            member.link.shut_down();
        }
    }
}

/// Receives the events of one link.
struct Hearing<'a, L: Link> {
    bridge: &'a Rc<Bridge<L>>,
    member: &'a Rc<Member<L>>,
}

impl<L: Link> Hears<L> for Hearing<'_, L> {
    fn ready(&self) {
        let (bridge, member) = (self.bridge, self.member);
        if !member.rise(&bridge.telemetry) {
            return;
        }
        bridge.has_room();
        bridge.advance(Progress::Ready);
    }

    fn going_away(&self) {
        if self.member.is_up() {
            self.member.set_state(State::Leaving);
            self.bridge.move_listeners(self.member);
        }
        if self.bridge.carriers.up().is_empty() {
            self.bridge.leave();
        }
    }

    fn room(&self) {
        self.member.room.note_free();
        self.bridge.has_room();
    }

    fn asked(&self, ask: L::Ask) {
        self.bridge.asked(self.member, ask);
    }

    fn listened(&self, event: ListenEvent) {
        self.bridge.listened(self.member, event);
    }
}
