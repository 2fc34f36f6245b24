//! The life of a session's links: they start, take streams, and end.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use muxtunnel_codes::Code;
use muxtunnel_gateway_config::SessionConfig;
use muxtunnel_proto::ListenEvent;
use tokio::sync::{Mutex, Notify, watch};
use tokio::task::AbortHandle;

use super::Bridge;
use super::link::{Below, Hears, Link, Under};
use super::room::Room;
use crate::base::closing::Reason;
use crate::base::memory_budget::Drawn;
use crate::base::telemetry::CarrierStats;
use crate::io::carrier::Carrier;
use crate::io::transport::Proof;
use crate::session::end::SessionEnd;
use crate::session::handover::Place;
use crate::session::mux::{CarrierFigures, NoCarrier, PacketLimit, PoolState, Progress};

const LINKS_MAX: usize = 16;
/// How long a new link may search for the maximum packet size of its path; quinn needs 6 round
/// trips.
const SEARCH_MAX: Duration = Duration::from_secs(3);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// The peer has not answered.
    Hello,
    Up,
    /// The link takes no further streams. If this side has retired the link, the link ends with its
    /// last open stream.
    Leaving,
    Gone,
}

pub(super) struct Member<L: Link> {
    pub(super) id: u64,
    pub(super) link: L,
    pub(super) under: Under,
    stats: Arc<CarrierStats>,
    state: watch::Sender<State>,
    /// Whether the telemetry includes the link.
    counted: Cell<bool>,
    since: Instant,
    /// Whether another link is to replace this link.
    outdated: Cell<bool>,
    /// Whether this side has retired the link. The end of such a link is no failure.
    retired: Cell<bool>,
    /// [`Link::messages`] when an answer was requested; `None`: the peer has answered.
    asked: Cell<Option<u64>>,
    /// Why this side no longer trusts the link's peer.
    distrusted: Cell<Option<SessionEnd>>,
    distrusted_wake: Notify,
    place: Option<Place>,
    pub(super) room: Rc<Room>,
    /// The queue in which opens wait for room if they must use this link.
    pub(super) turns: Rc<Mutex<()>>,
    task: RefCell<Option<AbortHandle>>,
    /// The link's part of the memory.
    _memory: Drawn,
}

impl<L: Link> Member<L> {
    pub(super) fn state(&self) -> State {
        *self.state.borrow()
    }

    pub(super) fn is_up(&self) -> bool {
        self.state() == State::Up
    }

    fn figures(&self) -> CarrierFigures {
        CarrierFigures::of(&self.stats, self.since)
    }

    fn answers(&self) -> bool {
        let path = self.stats.path_info();
        self.link.answers() && !path.is_some_and(|path| path.is_overdue())
    }

    fn owes_an_answer(&self) -> bool {
        self.asked.get() == Some(self.link.messages())
    }

    /// Requests an answer, if the protocol has such a request.
    fn ask(&self) {
        let messages = self.link.messages();
        if self.link.probe() {
            self.asked.set(Some(messages));
        }
    }

    /// The peer's proof of identity; `None`: this gateway requested no proof.
    pub(super) fn proof(&self) -> Option<&Proof> {
        self.under.proof()
    }

    /// Ends the link at once, as a failure does.
    pub(super) fn distrust(&self, end: SessionEnd) {
        self.distrusted.set(Some(end));
        self.distrusted_wake.notify_one();
    }

    /// Records that the peer has opened a stream or a listener, so the link is not silent
    /// ([`Place::heard`]).
    pub(super) fn heard(&self) {
        if let Some(place) = &self.place {
            place.heard();
        }
    }

    async fn evicted(&self) {
        match &self.place {
            Some(place) => place.evicted().await,
            None => std::future::pending().await,
        }
    }

    pub(super) fn is_retired(&self) -> bool {
        self.retired.get()
    }

    pub(super) fn is_outdated(&self) -> bool {
        self.outdated.get()
    }

    /// Publishes the number of streams and the bytes of waiting payload.
    pub(super) fn publish(&self) {
        let streams = self.room.taken() as u64;
        self.stats.set_session(streams, self.link.held());
    }

    /// Waits until the peer has answered; returns whether the link is up.
    pub(super) async fn settled(&self) -> bool {
        let mut state = self.state.subscribe();
        // `wait_for` cannot fail: the sender is in `self`.
        let _ = state.wait_for(|state| *state != State::Hello).await;
        self.is_up()
    }
}

/// The newest link, which may have ended.
#[derive(Default)]
pub(super) struct Latest {
    peer: Option<Rc<str>>,
    proof: Option<Proof>,
    /// The identity that every peer has to prove, taken from the first link; `None`: the session
    /// has had no link.
    identity: Option<Option<Rc<str>>>,
}

impl<L: Link> Bridge<L> {
    /// Adds a connection, as the first link or a further link.
    ///
    /// # Errors
    /// [`NoCarrier`]; the session continues without the connection.
    pub(super) fn add(
        self: &Rc<Self>,
        carrier: Carrier,
        unread: Vec<u8>,
        place: Option<Place>,
    ) -> Result<Rc<Member<L>>, NoCarrier> {
        if self.has_ended() || self.links.borrow().len() >= LINKS_MAX {
            return Err(NoCarrier::Refused(carrier));
        }
        let identity: Option<Rc<str>> = carrier.identity().map(Into::into);
        if !self.is_first_or_of(&identity) {
            return Err(NoCarrier::Stranger(carrier));
        }
        let peer = carrier.peer();
        let presented = carrier.proof().and_then(|proof| proof.presented);
        let under = Under::from(carrier);
        let probe = under.probe()?;
        let proved = identity.as_deref().map(str::to_owned);
        let stats =
            self.telemetry
                .carrier((peer.clone(), proved, presented), under.runs_on(), probe);
        let below = Below {
            under: under.clone(),
            unread,
            stats: Arc::clone(&stats),
            unsent: Arc::clone(&self.unsent),
            packets: Rc::clone(&self.packets),
        };
        let (budget, connections) = &self.memory;
        let (memory, drawn) = budget.draw(self.config.memory, *connections);
        let config = SessionConfig {
            memory,
            ..self.config.clone()
        };
        let link = (self.make)(below, &config)?;
        {
            let mut latest = self.latest.borrow_mut();
            latest.peer = Some(peer.into());
            latest.proof = under.proof().cloned();
            latest.identity.get_or_insert(identity);
        }
        let member = Rc::new(Member {
            id: self.number(),
            link,
            under,
            stats,
            state: watch::Sender::new(State::Hello),
            counted: Cell::new(false),
            since: Instant::now(),
            outdated: Cell::new(false),
            retired: Cell::new(false),
            asked: Cell::new(None),
            distrusted: Cell::new(None),
            distrusted_wake: Notify::new(),
            place,
            room: Rc::default(),
            turns: Rc::default(),
            task: RefCell::default(),
            _memory: drawn,
        });
        self.links
            .borrow_mut()
            .insert(member.id, Rc::clone(&member));
        self.share.suffice_for(self.links.borrow().len());
        let (bridge, added) = (Rc::clone(self), Rc::clone(&member));
        let task = Rc::clone(self).guard(async move { bridge.run_link(&added).await });
        let task = tokio::task::spawn_local(task);
        member.task.replace(Some(task.abort_handle()));
        Ok(member)
    }

    fn is_first_or_of(&self, identity: &Option<Rc<str>>) -> bool {
        let latest = self.latest.borrow();
        latest
            .identity
            .as_ref()
            .is_none_or(|known| known == identity)
    }

    async fn run_link(self: Rc<Self>, member: &Rc<Member<L>>) {
        let hears = Hearing {
            bridge: &self,
            member,
        };
        let end = tokio::select! {
            biased;
            end = member.link.run(&hears) => end,
            () = member.evicted() => {
                self.telemetry.streams.refused(Code::TooManyCarriers);
                SessionEnd::Evicted
            }
            () = member.distrusted_wake.notified() => {
                member.distrusted.take().unwrap_or(SessionEnd::ShutDown)
            }
        };
        if let SessionEnd::Refused(_) = end {
            member.under.key_refused();
        }
        self.link_ended(member, end);
    }

    /// Handles the end of a link. The link's streams end. If this was the session's last link, the
    /// session also ends.
    fn link_ended(&self, member: &Member<L>, end: SessionEnd) {
        member.state.send_replace(State::Gone);
        if matches!(end, SessionEnd::Revoked(_)) {
            let streams = self.all_streams().into_iter();
            for io in streams.filter(|io| io.link == member.id) {
                io.abandon(Reason::Revoked, None);
            }
        }
        // If the peer is not revoked, each stream first delivers the received bytes, and then the
        // link reports the end to the stream.
        let text = end.to_string();
        self.remove(member);
        let is_last = self.links.borrow().is_empty();
        if !is_last && !self.has_ended() {
            self.move_listeners(member);
        }
        if is_last && !member.retired.get() {
            self.end(end);
        } else if is_last {
            self.end(SessionEnd::Closed);
        } else if !member.retired.get() && !self.has_ended() {
            let (code, peer) = (Code::CarrierLost, &member.stats.peer);
            tracing::warn!(%code, %peer, carrier = member.id, reason = %text, "Carrier ended, but its session is still open");
        }
        self.has_room();
    }

    fn remove(&self, member: &Member<L>) {
        if member.counted.replace(false) {
            self.telemetry
                .remove_carrier(&member.stats, member.retired.get());
        }
        member.under.shut();
        self.links.borrow_mut().remove(&member.id);
        self.idle_wake.notify_waiters();
    }

    /// Drops the links that still exist after their close frames.
    pub(super) fn drop_links(&self) {
        for member in self.all_links() {
            if let Some(task) = member.task.take() {
                task.abort();
            }
            self.remove(&member);
        }
    }

    pub(super) async fn without_links(&self) {
        loop {
            let woken = self.idle_wake.notified();
            if self.links.borrow().is_empty() {
                break;
            }
            woken.await;
        }
    }

    pub(super) fn all_links(&self) -> Vec<Rc<Member<L>>> {
        self.links.borrow().values().cloned().collect()
    }

    /// Starts the orderly retirement of one link: of a link marked for replacement, otherwise of
    /// the newest link. Returns whether a link could be retired.
    pub(super) fn retire_one(&self) -> bool {
        let links = self.links.borrow();
        let up = links.values().filter(|member| member.is_up());
        let chosen = up.max_by_key(|member| (member.outdated.get(), member.id));
        let Some(member) = chosen.cloned() else {
            return false;
        };
        drop(links);
        member.retired.set(true);
        self.move_listeners(&member);
        self.take_no_more(&member);
        self.count_up();
        true
    }

    /// Stops the link from taking further streams. A retired link then ends with its last open
    /// stream.
    pub(super) fn take_no_more(&self, member: &Rc<Member<L>>) {
        member.state.send_replace(State::Leaving);
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

    /// Counters of the links that are up.
    pub(super) fn figures(&self) -> Vec<CarrierFigures> {
        let links = self.links.borrow();
        let up = links.values().filter(|member| member.is_up());
        up.map(|member| member.figures()).collect()
    }

    /// Marks the links that match `which` for replacement.
    pub(super) fn outdate(&self, which: &dyn Fn(&CarrierFigures) -> bool) {
        for member in self.links.borrow().values() {
            let outdated = member.outdated.get() || which(&member.figures());
            member.outdated.set(outdated);
        }
        self.count_up();
    }

    /// Packet size of the link in use: the oldest link that carries packets.
    pub(super) fn packet_limit(&self) -> Option<PacketLimit> {
        let links = self.links.borrow();
        let mut carrying = links.values().filter_map(|member| {
            Some(PacketLimit {
                bytes: member.link.packet_bytes_max()?,
                is_known: member.since.elapsed() >= SEARCH_MAX,
            })
        });
        carrying.next()
    }

    /// Whether the peer answers on every link that is up, and a link is up.
    pub(super) fn answers(&self) -> bool {
        let links = self.links.borrow();
        let mut up = links.values().filter(|member| member.is_up()).peekable();
        up.peek().is_some() && up.all(|member| member.answers())
    }

    /// Requests an answer on every link that is up.
    pub(super) fn ask_all(&self) {
        let links = self.links.borrow();
        let up = links.values().filter(|member| member.is_up());
        up.for_each(|member| member.ask());
    }

    /// Whether the peer still owes the answer to a request of [`Self::ask_all`] on some link.
    pub(super) fn owes_an_answer(&self) -> bool {
        let links = self.links.borrow();
        let mut up = links.values().filter(|member| member.is_up());
        up.any(|member| member.owes_an_answer())
    }

    pub(super) fn peer(&self) -> Rc<str> {
        self.latest.borrow().peer.clone().unwrap_or_default()
    }

    pub(super) fn identity(&self) -> Option<Rc<str>> {
        self.latest.borrow().identity.clone().flatten()
    }

    /// Proof of the newest link's peer.
    pub(super) fn proof(&self) -> Option<Proof> {
        self.latest.borrow().proof.clone()
    }

    pub(super) fn numbers(&self) -> PoolState {
        *self.numbers.borrow()
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
        if member.state() != State::Hello {
            return;
        }
        member.state.send_replace(State::Up);
        member.counted.set(true);
        bridge.telemetry.add_carrier(&member.stats);
        let peer = &member.stats.peer;
        tracing::info!(%peer, carrier = member.id, "Carrier is up");
        bridge.has_room();
        bridge.advance(Progress::Ready);
    }

    fn going_away(&self) {
        if self.member.is_up() {
            self.member.state.send_replace(State::Leaving);
            self.bridge.move_listeners(self.member);
        }
        let links = self.bridge.links.borrow();
        if !links.values().any(|member| member.is_up()) {
            drop(links);
            self.bridge.advance(Progress::GoingAway);
        }
    }

    fn room(&self) {
        self.member.room.is_free();
        self.bridge.has_room();
    }

    fn asked(&self, ask: L::Ask) {
        self.bridge.asked(self.member, ask);
    }

    fn listened(&self, event: ListenEvent) {
        self.bridge.listened(self.member, event);
    }
}
