//! A mux of a protocol that has streams of its own: it joins local ends to them.
//!
//! Framing and flow control are the protocol's, and its library's ([`link`]); here is what is the same for all of them:
//! dialling, refusals, accounts, time-outs, trust, and ends. A session has one [`link::Link`] or several; a stream lives and ends
//! with the one that it is on. Single-threaded, as the [driver](super::driver). Two tasks a stream at most: none but its own
//! waits for its local end, so a stalled one holds up no other.
//!
//! Memory: what a peer may send is the library's to bound, by the windows that it is given; what waits to be sent is in the
//! session's [`Share`] of the worker's buffers. Packets wait in the session's [`PacketQueue`], of which a link takes them that
//! carries them. See docs/limits.md.

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
use crate::base::telemetry::Telemetry;
use crate::base::unwind;
use crate::session::end::SessionEnd;
use crate::session::mux::{Dialler, Hears, PoolState, Progress};
use crate::session::packets::PacketQueue;
use crate::stream::buffers::{Pool, Share};
use crate::stream::timeouts::{self, verdict};
use link::{Below, Link, Unsent};
use links::Member;
use listeners::Listened;
use stream::Joined;

/// How long links have to say their last word.
const LAST_WORD_MAX: Duration = Duration::from_secs(1);
/// Between two looks at what the links hold, while there are streams.
const FIGURES_EVERY: Duration = Duration::from_millis(200);
/// How long the end of the process waits for the resets of streams: it comes 5 s before the kill.
const RESETS_MAX: Duration = Duration::from_secs(3);

/// Makes a link.
pub(crate) type MakeLink<L> = Box<dyn Fn(Below, &SessionConfig) -> std::io::Result<L>>;

/// One session.
pub(crate) struct Bridge<L: Link> {
    make: MakeLink<L>,
    links: RefCell<BTreeMap<u64, Rc<Member<L>>>>,
    latest: RefCell<links::Latest>,
    numbers: watch::Sender<PoolState>,
    streams: RefCell<BTreeMap<u64, Rc<Joined>>>,
    /// Opens that are not answered, and the dials for those of the peer's.
    asking: RefCell<BTreeMap<u64, Option<AbortHandle>>>,
    /// The next number of a link, a stream or an open.
    next: Cell<u64>,
    share: Share,
    unsent: Arc<Unsent>,
    packets: Rc<PacketQueue>,
    progress: watch::Sender<Progress>,
    end: RefCell<Option<SessionEnd>>,
    ended: watch::Sender<bool>,
    /// A stream has begun, or a stream or a link has ended.
    idle_wake: Notify,
    /// Opens wait here for room on any link; `limits.streams` of them at most, for they count as streams.
    turns: Rc<Mutex<()>>,
    room_wake: Notify,
    config: SessionConfig,
    telemetry: Arc<Telemetry>,
    reloadable: watch::Receiver<Arc<Reloadable>>,
    dialler: Dialler,
    /// Hears of listeners.
    hears: OnceCell<Hears>,
    /// The listeners of either side.
    listeners: RefCell<BTreeMap<ListenId, Listened<L>>>,
    /// The last number of a listener that this side asked for.
    listens: Cell<u32>,
}

impl<L: Link> Bridge<L> {
    /// A session without a link.
    pub(crate) fn new(
        make: MakeLink<L>,
        buffers: Rc<Pool>,
        (config, reloadable): (SessionConfig, watch::Receiver<Arc<Reloadable>>),
        telemetry: Arc<Telemetry>,
        dialler: Dialler,
    ) -> Rc<Self> {
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
            packets: Rc::new(PacketQueue::new(Arc::clone(&telemetry.packets))),
            progress: watch::Sender::new(Progress::Hello),
            end: RefCell::default(),
            ended: watch::Sender::new(false),
            idle_wake: Notify::new(),
            turns: Rc::default(),
            room_wake: Notify::new(),
            config,
            telemetry,
            reloadable,
            dialler,
            hears: OnceCell::new(),
            listeners: RefCell::default(),
            listens: Cell::new(0),
        })
    }

    /// Runs the session to its end; then every stream has been cut and every link is closed.
    async fn run(self: &Rc<Self>) -> SessionEnd {
        let mut ended = self.ended.subscribe();
        tokio::select! {
            biased;
            _ = ended.wait_for(|ended| *ended) => {}
            never = self.follow_timeouts() => match never {},
            never = self.publish_figures() => match never {},
        }
        let _ = tokio::time::timeout(LAST_WORD_MAX, self.without_links()).await;
        self.drop_links();
        self.end.take().unwrap_or(SessionEnd::Closed)
    }

    async fn follow_timeouts(self: &Rc<Self>) -> Infallible {
        let look = |timeouts| {
            let now = tokio::time::Instant::now().into_std();
            for io in self.all_streams() {
                if let Some(reason) = verdict(timeouts, io.half_open(), io.quiet_for(now)) {
                    io.abandon(reason, None);
                }
            }
        };
        timeouts::follow(self.reloadable.clone(), look).await
    }

    /// Says again and again what the links carry; never ends.
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

    /// Ends the session: every stream is cut and every link told. The first end counts.
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
        // Without a reason of this side's they hear it from their halves, behind what had come.
        if let Some(reason) = reason {
            let streams = self.all_streams();
            streams.iter().for_each(|io| io.abandon(reason, None));
        }
        for member in self.all_links() {
            member.link.shut_down();
        }
        self.idle_wake.notify_waiters();
    }

    fn has_ended(&self) -> bool {
        *self.ended.borrow()
    }

    /// Runs a task of the session, whose panic ends it and nothing else.
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

    /// Streams that are open or being opened.
    fn stream_count(&self) -> usize {
        self.streams.borrow().len() + self.asking.borrow().len()
    }

    /// Waits until there is no stream and all that was to be sent is with the kernel, or none will be again.
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

    /// After [`Self::run`]: waits until every stream has delivered what came and reset its socket, at most
    /// [`RESETS_MAX`].
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
        // It cannot fail: the sender is in `self`.
        let _ = progress.wait_for(|progress| *progress >= wanted).await;
    }

    /// It has come so far, at least.
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
