//! A mux for a protocol with its own streams. The mux connects local ends to the protocol's
//! streams.
//!
//! The protocol's library does framing and flow control ([`link`]). This module does the work that
//! all such protocols share: dialling, refusals, the [`Account`](crate::stream::account::Account)
//! of each stream, timeouts, trust and the end of a session. A session has one or more
//! [`link::Link`]s; a stream stays on one link and ends with that link. Like the
//! [driver](super::driver), the bridge is single-threaded. Each stream has one task. Only this task
//! waits for the stream's local end, so a stalled stream does not delay other streams.
//!
//! Memory: the library bounds received bytes by the windows that the link sets. Each link draws its
//! part of the process's memory, and returns it at its end. Bytes to send count
//! against the session's [`Share`] of the worker's buffers. Packets wait in the session's
//! [`PacketQueue`] for a link that carries packets. See docs/limits.md.

mod incoming;
pub(crate) mod link;
mod links;
mod listeners;
mod mux;
mod opening;
mod room;
mod sink;
mod source;
mod stream;
mod trust;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use muxtunnel_codes::Code;
use muxtunnel_gateway_config::{Reloadable, SessionConfig};
use muxtunnel_proto::ListenId;
use tokio::sync::{Mutex, Notify, watch};
use tokio::task::AbortHandle;

use crate::base::closing::Reason;
use crate::base::memory_budget::MemoryBudget;
use crate::base::telemetry::Telemetry;
use crate::base::unwind;
use crate::session::end::SessionEnd;
use crate::session::mux::{Dialler, Hears, PoolState, Progress};
use crate::session::packets::PacketQueue;
use crate::stream::buffers::{Pool, Share};
use crate::stream::timeouts;
use link::{Below, Link, Unsent};
use links::Member;
use listeners::Listened;
use stream::Joined;

/// How long links may take to send their close frames.
const LAST_WORD_MAX: Duration = Duration::from_secs(1);
/// Interval at which the session publishes its links' figures while streams are open.
const FIGURES_EVERY: Duration = Duration::from_millis(200);
/// How long the process waits, before it exits, for streams to reset their sockets. Kubernetes
/// kills the process 5 s after the end of the drain time, so this time is shorter.
const RESETS_MAX: Duration = Duration::from_secs(3);

pub(crate) type MakeLink<L> = Box<dyn Fn(Below, &SessionConfig) -> std::io::Result<L>>;

pub(crate) struct Bridge<L: Link> {
    make: MakeLink<L>,
    links: RefCell<BTreeMap<u64, Rc<Member<L>>>>,
    latest: RefCell<links::Latest>,
    numbers: watch::Sender<PoolState>,
    streams: RefCell<BTreeMap<u64, Rc<Joined>>>,
    /// Unanswered opens of both sides, by number. The handle stops the dial for an open of the
    /// peer; `None`: an open of this side.
    asking: RefCell<BTreeMap<u64, Option<AbortHandle>>>,
    /// The next number for a link, a stream or an open.
    next: Cell<u64>,
    share: Share,
    unsent: Arc<Unsent>,
    packets: Rc<PacketQueue>,
    progress: watch::Sender<Progress>,
    end: RefCell<Option<SessionEnd>>,
    ended: watch::Sender<bool>,
    /// Notified when a stream begins, or when a stream or a link ends.
    idle_wake: Notify,
    /// Opens queue here until a link has room. Queued opens count as streams, so `limits.streams`
    /// bounds the queue.
    turns: Rc<Mutex<()>>,
    room_wake: Notify,
    config: SessionConfig,
    telemetry: Arc<Telemetry>,
    reloadable: watch::Receiver<Arc<Reloadable>>,
    /// The memory of the process, and the number of connections that the process expects.
    memory: (Arc<MemoryBudget>, u32),
    dialler: Dialler,
    hears: OnceCell<Hears>,
    listeners: RefCell<BTreeMap<ListenId, Listened<L>>>,
    /// The number of the listener that this side requested last.
    listens: Cell<u32>,
}

impl<L: Link> Bridge<L> {
    pub(crate) fn new(
        make: MakeLink<L>,
        buffers: Rc<Pool>,
        (config, reloadable, memory): (
            SessionConfig,
            watch::Receiver<Arc<Reloadable>>,
            (Arc<MemoryBudget>, u32),
        ),
        telemetry: Arc<Telemetry>,
        dialler: Dialler,
    ) -> Rc<Self> {
        let packets = memory.0.share(config.memory, memory.1).receive.0;
        Rc::new(Self {
            make,
            links: RefCell::default(),
            latest: RefCell::default(),
            numbers: watch::Sender::default(),
            streams: RefCell::default(),
            asking: RefCell::default(),
            next: Cell::new(0),
            share: Share::new(buffers),
            unsent: Arc::default(),
            packets: Rc::new(PacketQueue::new(Arc::clone(&telemetry.packets), packets)),
            progress: watch::Sender::new(Progress::Hello),
            end: RefCell::default(),
            ended: watch::Sender::new(false),
            idle_wake: Notify::new(),
            turns: Rc::default(),
            room_wake: Notify::new(),
            config,
            telemetry,
            reloadable,
            memory,
            dialler,
            hears: OnceCell::new(),
            listeners: RefCell::default(),
            listens: Cell::new(0),
        })
    }

    /// Runs the session to its end. When the function returns, every stream has been cut and every
    /// link is closed.
    async fn run(self: &Rc<Self>) -> SessionEnd {
        let mut ended = self.ended.subscribe();
        let loops = async {
            tokio::select! {
                biased;
                _ = ended.wait_for(|ended| *ended) => {}
                never = self.follow_timeouts() => match never {},
                never = self.publish_figures() => match never {},
            }
        };
        Self::guard(Rc::clone(self), loops).await;
        let _ = tokio::time::timeout(LAST_WORD_MAX, self.without_links()).await;
        self.drop_links();
        self.end.take().unwrap_or(SessionEnd::Closed)
    }

    async fn follow_timeouts(self: &Rc<Self>) -> Infallible {
        let look = |timeouts| {
            let now = tokio::time::Instant::now().into_std();
            for io in self.all_streams() {
                if let Some((reason, error)) = io.check(timeouts, now) {
                    io.abandon(reason, error);
                }
            }
        };
        timeouts::follow(self.reloadable.clone(), look).await
    }

    /// Publishes the links' figures periodically; never returns.
    async fn publish_figures(&self) -> Infallible {
        loop {
            let changed = self.idle_wake.notified();
            self.all_links().iter().for_each(|member| member.publish());
            if self.stream_count() > 0 {
                tokio::time::sleep(FIGURES_EVERY).await;
            } else {
                changed.await;
            }
        }
    }

    /// Ends the session: cuts every stream and closes every link. Only the first call sets the
    /// reason.
    fn end(&self, end: SessionEnd) {
        if self.has_ended() {
            return;
        }
        let reason = match end {
            SessionEnd::ShutDown => Some(Reason::Drained),
            SessionEnd::Revoked(_) => Some(Reason::Revoked),
            SessionEnd::Panicked => Some(Reason::Fault),
            SessionEnd::Closed
            | SessionEnd::Io(_)
            | SessionEnd::Refused(_)
            | SessionEnd::Protocol(_)
            | SessionEnd::Finished(_)
            | SessionEnd::GivenUp(_)
            | SessionEnd::Evicted => None,
        };
        self.end.replace(Some(end));
        self.ended.send_replace(true);
        self.share.close();
        self.listeners.take();
        let dials = std::mem::take(&mut *self.asking.borrow_mut());
        for dial in dials.into_values().flatten() {
            dial.abort();
        }
        // Without a reason of this side, nothing is cut here. Each stream first delivers the
        // received bytes, and then its link reports the end.
        if let Some(reason) = reason {
            let streams = self.all_streams();
            streams.iter().for_each(|io| io.abandon(reason, None));
        }
        for member in self.all_links() {
            member.link.shut_down();
        }
        self.idle_wake.notify_waiters();
    }

    /// The longest round trip time of the links; zero: unknown.
    fn round_trip(&self) -> Duration {
        let links = self.all_links();
        let round_trips = links.iter().map(|member| member.link.round_trip());
        round_trips.max().unwrap_or_default()
    }

    fn has_ended(&self) -> bool {
        *self.ended.borrow()
    }

    /// Runs a task of the session. A panic of the task ends only this session.
    async fn guard(self: Rc<Self>, task: impl Future<Output = ()>) {
        if let Err(panic) = unwind::unwound(task).await {
            let (code, peer) = (Code::SessionPanicked, self.peer());
            tracing::error!(%code, %peer, panic, "Session ended by a fault of this gateway");
            self.telemetry.count_session_panic();
            self.end(SessionEnd::Panicked);
        }
    }

    fn number(&self) -> u64 {
        self.next.replace(self.next.get() + 1)
    }

    fn all_streams(&self) -> Vec<Rc<Joined>> {
        self.streams.borrow().values().cloned().collect()
    }

    /// Number of streams that are open or being opened.
    fn stream_count(&self) -> usize {
        self.streams.borrow().len() + self.asking.borrow().len()
    }

    /// Waits until no stream is open and the kernel holds all bytes to send, or until the session
    /// has ended.
    async fn idle(&self) {
        loop {
            let woken = self.idle_wake.notified();
            if self.has_ended() || self.stream_count() == 0 {
                break;
            }
            woken.await;
        }
        let mut ended = self.ended.subscribe();
        tokio::select! {
            () = self.unsent.none() => {}
            _ = ended.wait_for(|ended| *ended) => {}
        }
    }

    /// Call after [`Self::run`]. Waits until every stream has delivered its received bytes and
    /// reset its socket, for at most [`RESETS_MAX`].
    async fn streams_gone(&self) {
        let gone = async {
            loop {
                let woken = self.idle_wake.notified();
                if self.streams.borrow().is_empty() {
                    break;
                }
                woken.await;
            }
        };
        let _ = tokio::time::timeout(RESETS_MAX, gone).await;
    }

    async fn reached(&self, wanted: Progress) {
        let mut progress = self.progress.subscribe();
        // `wait_for` cannot fail: the sender is in `self`.
        let _ = progress.wait_for(|progress| *progress >= wanted).await;
    }

    /// Raises the progress to at least `to`.
    fn advance(&self, to: Progress) {
        self.progress.send_if_modified(|progress| {
            let advances = *progress < to;
            *progress = (*progress).max(to);
            advances
        });
    }
}

#[cfg(test)]
pub(crate) mod tests;
