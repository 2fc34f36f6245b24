//! The driver: moves bytes between a session's carriers, its state machine and the local sockets.
//!
//! Single-threaded: every part of a session runs on its worker's `LocalRuntime`, shares [`Driver`]
//! by `Rc`, and borrows its cells only between awaits. A session has four loops, which handle its
//! deadlines ([`deadlines`]), end idle streams ([`idle`]), sample its carriers ([`autoscale`]) and
//! probe its carriers ([`liveness`]). Each [`carrier`] has one task with two loops ([`carrier_in`]
//! and [`carrier_out`]). Each dial of a target has one task ([`incoming`]), and each [`stream`] has
//! one task. A carrier's reader never waits for a writer, so full duplex cannot deadlock. Bytes
//! that a stalled local socket does not take remain in the stream's inbox, which the stream's
//! credit bounds.
//!
//! Payload passes through no channel: the tasks share cells and wake each other by `Notify`. If the
//! forward of a stream has a rate limit, the stream waits for a turn. Turns use a timer, and a lock
//! that all workers share ([`crate::base::pace`]). Other payload waits for no timer.
//!
//! Streams belong to the session. A lost carrier ends its streams only if the session decides so.
//!
//! Memory: see docs/limits.md. An idle stream or carrier holds no buffer.
//!
//! The session makes the decisions; see `gateway/proto/src/session.rs` for its contract.

mod answers;
mod autoscale;
mod carrier;
mod carrier_in;
mod carrier_out;
mod carriers;
mod deadlines;
mod door;
mod ending;
mod events;
mod guard;
mod idle;
mod incoming;
mod listen;
mod liveness;
mod mux;
mod pool;
mod retention;
mod splice_out;
mod stream;
mod streams;
mod trust;

use std::cell::{Cell, OnceCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use muxtunnel_gateway_config::{Reloadable, SessionConfig};
use muxtunnel_proto::{OpenError, Priority, Session};
use tokio::sync::{Notify, watch};

use crate::base::closing::Reason;
use crate::base::memory_budget::Drawn;
use crate::base::telemetry::Telemetry;
use crate::base::unwind;
use crate::session::end::SessionEnd;
use crate::session::mux::{Dialler, Hears, NotOpened, Progress, Refused};
use crate::session::packets::PacketQueue;
use crate::stream::buffers::{SMALL_BYTES, Share};
use crate::stream::early_data::Connection;
use crate::stream::pipe::{Pipe, Pipes};
use carriers::Carriers;
use deadlines::Deadline;
use door::SessionCell;
use ending::Ending;
use retention::Retention;
use stream::StreamIo;
use streams::Streams;

pub(crate) use crate::stream::buffers::Pool;
pub(crate) use carrier::Carrier;

/// One session, its carriers and its streams.
pub(crate) struct Driver {
    session: SessionCell,
    carriers: Carriers,
    streams: Streams,
    share: Share,
    retention: Retention,
    packets: PacketQueue,
    deadline: Deadline,
    /// Notified when a stream or a carrier has ended or has nothing more to transmit.
    idle_wake: Notify,
    progress: watch::Sender<Progress>,
    ending: Ending,
    /// Whether the session drains because its peer's certificate has expired.
    has_expired: Cell<bool>,
    config: SessionConfig,
    reloadable: watch::Receiver<Arc<Reloadable>>,
    /// The session's part of the memory, until the session ends.
    _memory: Drawn,
    dialler: Dialler,
    hears: OnceCell<Hears>,
    telemetry: Arc<Telemetry>,
}

impl Driver {
    /// Creates a session without a carrier. Call [`Self::add_carrier`], then [`Self::run`].
    pub(crate) fn new(
        session: Box<dyn Session>,
        buffers: Rc<Pool>,
        (config, reloadable, memory): (SessionConfig, watch::Receiver<Arc<Reloadable>>, Drawn),
        telemetry: Arc<Telemetry>,
        dialler: Dialler,
    ) -> Rc<Self> {
        Rc::new(Self {
            session: SessionCell::new(session),
            carriers: Carriers::default(),
            streams: Streams::default(),
            share: Share::new(buffers),
            retention: Retention::default(),
            packets: PacketQueue::new(Arc::clone(&telemetry.packets), config.memory.receive.0),
            deadline: Deadline::new(),
            idle_wake: Notify::new(),
            progress: watch::Sender::new(Progress::Hello),
            ending: Ending::new(),
            has_expired: Cell::new(false),
            config,
            reloadable,
            _memory: memory,
            dialler,
            hears: OnceCell::new(),
            telemetry,
        })
    }

    /// Runs the session to its end. When the function returns, every stream has been reset and
    /// every carrier is closed.
    pub(crate) async fn run(self: &Rc<Self>) -> SessionEnd {
        let run = async {
            let end = tokio::select! {
                biased;
                end = self.run_timeouts() => Some(end),
                never = idle::run(self) => match never {},
                never = autoscale::run(self) => match never {},
                never = liveness::run(self) => match never {},
                () = self.ending.asked() => Some(SessionEnd::ShutDown),
                () = self.ending.done() => None,
            };
            if let Some(end) = end {
                self.end(end, None);
            }
        };
        Rc::clone(self).guard(run).await;
        self.carriers.all_gone().await;
        self.ending.take()
    }

    /// Implements [`Mux::open`](crate::session::mux::Mux::open).
    ///
    /// # Errors
    /// This side cannot open a stream.
    pub(crate) fn open(
        self: &Rc<Self>,
        target: &str,
        priority: Priority,
        client: Connection,
        refused: Refused,
    ) -> Result<(), Box<NotOpened>> {
        if self.has_ended() {
            let error = OpenError::GoingAway;
            return Err(Box::new(NotOpened {
                error,
                connection: client,
            }));
        }
        let (source, mut opening) = (client.source, Some((client, refused)));
        let opened = unwind::caught(|| {
            self.update(|session| {
                let stream = session.open(now(), target, priority, source)?;
                // The stream has to exist before the session reports events about it.
                if let Some((client, refused)) = opening.take() {
                    let io = self.streams.add(StreamIo::opening(stream, client, refused));
                    let driver = Rc::clone(self);
                    tokio::task::spawn_local(async move { driver.run_stream(io).await });
                }
                Ok(())
            })
        });
        let opened = opened.unwrap_or_else(|panic| {
            self.panicked(&panic);
            Err(OpenError::GoingAway)
        });
        match (opened, opening) {
            (Err(error), Some((connection, _))) => Err(Box::new(NotOpened { error, connection })),
            _ => Ok(()),
        }
    }

    /// Tells the peer to open no further streams; open streams continue.
    pub(crate) fn go_away(self: &Rc<Self>) {
        self.update(Session::go_away);
    }

    /// Stops this side from opening further streams; open streams continue.
    pub(crate) fn leave(&self) {
        self.progress.send_replace(Progress::GoingAway);
    }

    /// Whether streams outlive their carrier.
    pub(crate) fn resumes(&self) -> bool {
        self.session.view().resumes()
    }

    /// Waits until the session has reached `wanted`.
    pub(crate) async fn reached(&self, wanted: Progress) {
        let mut progress = self.progress.subscribe();
        // `wait_for` cannot fail: the sender is in `self`.
        let _ = progress.wait_for(|progress| *progress >= wanted).await;
    }

    pub(crate) fn progress(&self) -> Progress {
        *self.progress.borrow()
    }

    /// Whether the session has ended, that is, [`Self::run`] has returned or is about to return.
    pub(crate) fn has_ended(&self) -> bool {
        self.ending.has_begun()
    }

    /// Number of streams that are open or being opened.
    pub(crate) fn stream_count(&self) -> usize {
        self.session.view().stream_count()
    }

    /// Waits until no stream is open and the kernel holds all bytes to send, or until the session
    /// has ended.
    pub(crate) async fn idle(&self) {
        loop {
            let woken = self.idle_wake.notified();
            if self.has_ended() || self.is_idle() {
                break;
            }
            woken.await;
        }
    }

    /// Call after [`Self::run`]. Waits until every stream has delivered its received bytes and
    /// reset its socket, for at most [`RESETS_MAX`].
    pub(crate) async fn streams_gone(&self) {
        let gone = async {
            loop {
                let woken = self.idle_wake.notified();
                if self.streams.is_empty() {
                    break;
                }
                woken.await;
            }
        };
        let _ = tokio::time::timeout(RESETS_MAX, gone).await;
    }

    fn is_idle(&self) -> bool {
        let session = self.session.view();
        let rests = |carrier: &Rc<Carrier>| {
            carrier.queue.borrow().is_empty() && !session.wants_transmit(carrier.id)
        };
        session.stream_count() == 0
            && session.is_settled()
            && self.carriers.view().values().all(rests)
    }

    /// The peer's address on the latest carrier.
    pub(crate) fn peer(&self) -> Rc<str> {
        self.carriers.peer()
    }

    /// The peer's identity as the first carrier proved it; `None`: the peer proved no identity.
    pub(crate) fn identity(&self) -> Option<Rc<str>> {
        self.carriers.identity()
    }

    /// Whether all carriers are lost and the session may still get a new carrier.
    pub(crate) fn waits(&self) -> bool {
        let lost = self.carriers.has_begun() && self.carriers.view().is_empty();
        lost && self.ending.reason() != Some(Reason::Drained)
    }

    /// Maximum number of bytes that one stream sends before other streams may send.
    fn batch_max(&self) -> usize {
        self.most(|carrier| carrier.backlog.batch_max())
    }

    /// Maximum number of bytes that one stream splices before other streams may send; 0 if no
    /// carrier permits splicing.
    fn splice_max(&self) -> usize {
        self.most(|carrier| match carrier.plain() {
            Some(_) => carrier.backlog.splice_max(),
            None => 0,
        })
    }

    fn most(&self, of: impl Fn(&Carrier) -> usize) -> usize {
        let carriers = self.carriers.view();
        let bytes = carriers.values().map(|carrier| of(carrier));
        bytes.max().unwrap_or(SMALL_BYTES)
    }

    /// Takes one of `pipes`, if at least `count` pipes are free. `None`: the caller has to copy the
    /// payload.
    fn pipe(&self, pipes: &Rc<Pipes>, count: usize) -> Option<Pipe> {
        let pipe = if pipes.has(count) { pipes.take() } else { None };
        if pipe.is_none() {
            self.telemetry.splices.pipe_lacked();
        }
        pipe
    }

    async fn run_stream(self: &Rc<Self>, io: Rc<StreamIo>) {
        if let Err(panic) = unwind::unwound(stream::run(self, &io)).await {
            self.panicked(&panic);
            stream::report_fault(self, &io);
        }
        self.streams.remove(io.id);
        self.idle_wake.notify_waiters();
        io.hand_back();
    }
}

/// Reads the clock of the event loop's timers. So a test that moves this clock also moves every
/// timer.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// How long the process waits, before it exits, for streams to reset their sockets. Kubernetes
/// kills the process 5 s after the end of the drain time, so this time is shorter.
const RESETS_MAX: Duration = Duration::from_secs(3);

#[cfg(test)]
mod simulation;
#[cfg(test)]
pub(crate) mod tests;
