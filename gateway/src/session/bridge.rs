//! The links: connect local ends to the streams of a protocol that has its own.
//!
//! The protocol's library does framing and flow control ([`link`]). This module is the [`Engine`]
//! that all such protocols share: dialling, refusals, and the places of streams on their links. A
//! session has one or more [`link::Link`]s; a stream stays on one link and ends with that link.
//! Each stream has one task. Only this task waits for the stream's local end, so a stalled stream
//! does not delay other streams.
//!
//! Memory: the library bounds received bytes by the windows that the link sets. Each link draws its
//! part of the process's memory, and returns it at its end. Bytes to send count
//! against the session's [`Share`](crate::stream::buffers::Share) of the worker's buffers. Packets
//! wait in the session's [`PacketQueue`](super::packets::PacketQueue) for a link that carries
//! packets. See docs/limits.md.

mod choice;
mod incoming;
pub(crate) mod link;
mod links;
mod listeners;
mod opening;
mod room;
mod stream;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use muxtunnel_gateway_config::SessionConfig;
use muxtunnel_proto::{Assignment, ListenId, Priority};
use tokio::sync::{Mutex, Notify};
use tokio::task::AbortHandle;

use crate::base::closing::Reason;
use crate::base::memory_budget::MemoryBudget;
use crate::io::carrier::Carrier;
use crate::session::context::Context;
use crate::session::end::SessionEnd;
use crate::session::handover::Place;
use crate::session::mux::{Dialler, Listeners, NoCarrier, NotOpened, PacketLimit, Refused};
use crate::session::shell::{Engine, Shell};
use crate::stream::early_data::Connection;
use link::{Below, Link, Unsent};
use links::Member;
use listeners::Listened;
use stream::Joined;

/// Interval at which the session publishes its links' figures while streams are open.
const FIGURES_EVERY: Duration = Duration::from_millis(200);

pub(crate) type MakeLink<L> = Box<dyn Fn(Below, &SessionConfig) -> std::io::Result<L>>;

/// A session of a protocol that has its own streams.
pub(crate) type Bridge<L> = Shell<Links<L>>;

/// What the links have in addition to their shell.
pub(crate) struct Links<L: Link> {
    make: MakeLink<L>,
    /// Unanswered opens of both sides, by number. The handle stops the dial for an open of the
    /// peer; `None`: an open of this side.
    asking: RefCell<BTreeMap<u64, Option<AbortHandle>>>,
    /// The next number for a link, a stream or an open.
    next: Cell<u64>,
    unsent: Arc<Unsent>,
    /// Opens queue here until a link has room. Queued opens count as streams, so `limits.streams`
    /// bounds the queue.
    turns: Rc<Mutex<()>>,
    room_wake: Notify,
    /// Whether this side has told the peer to open no further streams.
    takes_none: Cell<bool>,
    /// The memory of the process, and the number of connections that the process expects.
    memory: (Arc<MemoryBudget>, u32),
    listeners: RefCell<BTreeMap<ListenId, Listened<L>>>,
    /// The number of the listener that this side requested last.
    listens: Cell<u32>,
}

impl<L: Link> Engine for Links<L> {
    type Carrier = Member<L>;
    type Stream = Joined;

    fn open(
        bridge: &Rc<Bridge<L>>,
        target: &str,
        priority: Priority,
        client: Connection,
        refused: Refused,
    ) -> Result<(), Box<NotOpened>> {
        bridge.open(target, priority, client, refused)
    }

    fn add(
        bridge: &Rc<Bridge<L>>,
        carrier: Carrier,
        unread: Vec<u8>,
        place: Option<Place>,
    ) -> Result<Rc<Member<L>>, NoCarrier> {
        bridge.add_link(carrier, unread, place)
    }

    /// Publishes the figures of the links. The links end the session themselves.
    async fn run(bridge: &Rc<Bridge<L>>) -> SessionEnd {
        loop {
            let changed = bridge.idle_wake.notified();
            let links = bridge.carriers.all();
            links.iter().for_each(|member| member.publish());
            if bridge.stream_count() > 0 {
                tokio::time::sleep(FIGURES_EVERY).await;
            } else {
                changed.await;
            }
        }
    }

    fn end(bridge: &Rc<Bridge<L>>, end: SessionEnd) {
        if !bridge.begin_end(end) {
            return;
        }
        bridge.engine.listeners.take();
        let dials = std::mem::take(&mut *bridge.engine.asking.borrow_mut());
        for dial in dials.into_values().flatten() {
            dial.abort();
        }
        // Without a reason of this side, nothing is cut here. Each stream first delivers the
        // received bytes, and then its link reports the end.
        if let Some(reason) = bridge.ending.reason() {
            let streams = bridge.streams.all();
            streams.iter().for_each(|io| io.abandon(reason, None));
        }
        for member in bridge.carriers.all() {
            member.link.shut_down();
        }
        bridge.idle_wake.notify_waiters();
    }

    fn go_away(bridge: &Rc<Bridge<L>>) {
        bridge.engine.takes_none.set(true);
        for member in bridge.carriers.all() {
            bridge.take_no_more(&member);
        }
    }

    fn stream_count(bridge: &Bridge<L>) -> usize {
        bridge.streams.len() + bridge.engine.asking.borrow().len()
    }

    fn is_idle(bridge: &Bridge<L>) -> bool {
        bridge.stream_count() == 0
    }

    async fn flushed(bridge: &Bridge<L>) {
        bridge.engine.unsent.none().await;
    }

    fn abandon(_: &Rc<Bridge<L>>, io: &Joined, reason: Reason, error: Option<ErrorKind>) {
        io.abandon(reason, error);
    }

    fn retire(bridge: &Rc<Bridge<L>>, member: &Rc<Member<L>>) -> bool {
        bridge.retire(member);
        true
    }

    fn count_up(bridge: &Bridge<L>) {
        bridge.count_up();
    }

    fn answers(member: &Member<L>) -> bool {
        member.link.answers() && !member.is_overdue()
    }

    fn ask(_: &Rc<Bridge<L>>, member: &Member<L>) {
        member.ask();
    }

    fn owes_an_answer(member: &Member<L>) -> bool {
        member.owes_an_answer()
    }

    fn listeners(bridge: &Rc<Bridge<L>>) -> &dyn Listeners {
        bridge
    }

    /// The limit of the link in use: the oldest link that carries packets.
    fn packet_limit(bridge: &Bridge<L>) -> Option<PacketLimit> {
        let links = bridge.carriers.view();
        links.values().find_map(|member| member.packet_limit())
    }

    fn assign(bridge: &Rc<Bridge<L>>, assignment: Assignment) -> bool {
        bridge.packets.assign(assignment);
        true
    }
}

impl<L: Link> Bridge<L> {
    pub(crate) fn new(make: MakeLink<L>, context: Context, dialler: Dialler) -> Rc<Self> {
        let (budget, connections) = &context.memory;
        let share = budget.share(context.config.memory, *connections);
        let links = Links {
            make,
            asking: RefCell::default(),
            next: Cell::new(0),
            unsent: Arc::default(),
            turns: Rc::default(),
            room_wake: Notify::new(),
            takes_none: Cell::new(false),
            memory: (Arc::clone(budget), *connections),
            listeners: RefCell::default(),
            listens: Cell::new(0),
        };
        Self::with(links, context, share.receive.0, dialler)
    }

    /// The longest round trip time of the links; zero: unknown.
    fn round_trip(&self) -> Duration {
        let links = self.carriers.view();
        let round_trips = links.values().map(|member| member.link.round_trip());
        round_trips.max().unwrap_or_default()
    }

    fn number(&self) -> u64 {
        self.engine.next.replace(self.engine.next.get() + 1)
    }
}

#[cfg(test)]
mod side;
#[cfg(test)]
pub(crate) mod tests;
