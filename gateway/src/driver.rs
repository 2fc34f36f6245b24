//! The driver: carries bytes between one carrier, its session and the local sockets.
//!
//! Single-threaded: everything of a carrier runs on its worker's `LocalRuntime`, shares [`Driver`] by
//! `Rc` and borrows its cells only between awaits. Four loops a carrier ([`carrier_in`],
//! [`carrier_out`], the session's deadlines, [`idle`] streams), one task a target that is dialled
//! ([`incoming`]) and one a stream ([`stream`]). No timer and no channel is on the data path, and the
//! carrier's reader never waits for a writer, so full duplex cannot deadlock: what a stalled local
//! socket does not take stays in its own inbox, within its own credit.
//!
//! Memory: see docs/architecture.md, "Bounds of a gateway". An idle stream, or an idle carrier, holds
//! no buffer.
//!
//! The session decides; see `gateway/proto/src/lib.rs` for its contract.

mod backlog;
mod batch;
mod buffers;
mod carrier_in;
mod carrier_out;
mod idle;
mod inbox;
mod incoming;
mod socket;
mod stream;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use muxtunnel_gateway_config::Config;
use muxtunnel_proto::{
    CarrierId, Event, OpenError, Outcome, Refusal, Session, SessionError, StreamId,
};
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};

use crate::account::Local;
use crate::closing::Reason;
use crate::telemetry::{CarrierStats, Telemetry};
use backlog::Backlog;
use buffers::Share;
use carrier_out::Queue;
use incoming::Incoming;
use stream::StreamIo;

pub(crate) use buffers::Pool;
pub(crate) use incoming::{Dial, Dialler};

/// Why a carrier ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CarrierEnd {
    /// The peer closed it.
    #[error("the peer closed the carrier")]
    Closed,
    /// The connection failed.
    #[error("the carrier failed: {0}")]
    Io(#[from] std::io::Error),
    /// The peer broke the protocol.
    #[error("{code}: {0}", code = muxtunnel_codes::Code::ProtocolViolation)]
    Protocol(#[from] SessionError),
    /// This side shut it down.
    #[error("this side shut the carrier down")]
    ShutDown,
}

/// Called where an open failed: with the peer's refusal, or without where the stream was cut before its
/// answer.
pub(crate) type Refused = Box<dyn FnOnce(Option<Refusal>)>;

/// How far the session has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Progress {
    /// The hello is not over.
    Hello,
    /// Streams can be opened.
    Ready,
    /// The peer takes no more streams; those that are open go on.
    GoingAway,
}

/// One carrier and everything that runs over it.
pub(crate) struct Driver {
    tcp: TcpStream,
    session: RefCell<Box<dyn Session>>,
    streams: RefCell<BTreeMap<StreamId, Rc<StreamIo>>>,
    incoming: RefCell<BTreeMap<StreamId, Incoming>>,
    share: Share,
    backlog: Backlog,
    queue: RefCell<Queue>,
    /// There may be something to transmit.
    transmit_wake: Notify,
    /// What [`Self::run_timeouts`] sleeps until, and that this is too late.
    deadline: Cell<Option<Instant>>,
    timer_wake: Notify,
    shutdown_wake: Notify,
    idle_wake: Notify,
    progress: watch::Sender<Progress>,
    ended: Cell<bool>,
    /// It was ended by [`Self::shut_down`].
    was_shut_down: Cell<bool>,
    config: watch::Receiver<Arc<Config>>,
    dialler: Dialler,
    stats: Arc<CarrierStats>,
    telemetry: Arc<Telemetry>,
}

impl Driver {
    /// Takes a connected carrier. Nothing happens before [`Self::run`].
    pub(crate) fn new(
        tcp: TcpStream,
        session: Box<dyn Session>,
        pool: Rc<Pool>,
        config: watch::Receiver<Arc<Config>>,
        telemetry: Arc<Telemetry>,
        dialler: Dialler,
    ) -> std::io::Result<Rc<Self>> {
        socket::prepare_carrier(&tcp, config.borrow().congestion_control)?;
        let backlog = Backlog::new(&tcp)?;
        let stats = telemetry.carrier(&tcp)?;
        Ok(Rc::new(Self {
            tcp,
            session: RefCell::new(session),
            streams: RefCell::default(),
            incoming: RefCell::default(),
            share: Share::new(pool),
            backlog,
            queue: RefCell::default(),
            transmit_wake: Notify::new(),
            deadline: Cell::new(None),
            timer_wake: Notify::new(),
            shutdown_wake: Notify::new(),
            idle_wake: Notify::new(),
            progress: watch::Sender::new(Progress::Hello),
            ended: Cell::new(false),
            was_shut_down: Cell::new(false),
            config,
            dialler,
            stats,
            telemetry,
        }))
    }

    /// Runs the carrier to its end; then every stream has been reset.
    pub(crate) async fn run(self: &Rc<Self>) -> CarrierEnd {
        self.handle_events();
        let end = tokio::select! {
            end = carrier_in::run(self) => end,
            end = carrier_out::run(self) => end,
            end = self.run_timeouts() => end,
            end = idle::run(self) => end,
            () = self.shutdown_wake.notified() => CarrierEnd::ShutDown,
        };
        self.ended.set(true);
        self.share.close();
        self.was_shut_down.set(matches!(end, CarrierEnd::ShutDown));
        if let CarrierEnd::Protocol(error) = &end {
            self.session.borrow_mut().close(error);
            self.gather_last_word();
        }
        self.session
            .borrow_mut()
            .handle_carrier_lost(CarrierId::ONLY);
        self.handle_events();
        if matches!(end, CarrierEnd::Protocol(_)) {
            let _ = tokio::time::timeout(LAST_WORD_MAX, carrier_out::say_last_word(self)).await;
        }
        if self.was_ready() {
            self.telemetry.remove_carrier(&self.stats);
        }
        // The status page may hold a duplicate of the descriptor for a moment: end it for good.
        let _ = socket2::SockRef::from(&self.tcp).shutdown(std::net::Shutdown::Both);
        end
    }

    /// Opens a stream to `target` (`tcp://host:port`) for `tcp` and runs it as a task of its own. What
    /// `tcp` sends meanwhile goes along where the protocol gives credit for it. If the peer does not
    /// agree, `tcp` is reset and `refused` called.
    ///
    /// # Errors
    /// There is no stream, for a reason on this side; `tcp` has been reset.
    pub(crate) fn open(
        self: &Rc<Self>,
        target: &str,
        tcp: TcpStream,
        client: Local,
        refused: Refused,
    ) -> Result<(), OpenError> {
        let opened = self.session.borrow_mut().open(Instant::now(), target);
        let stream = match opened {
            Ok(stream) => stream,
            Err(error) => {
                let _ = tcp.set_zero_linger();
                return Err(error);
            }
        };
        let io = self.add(StreamIo::opening(stream, tcp, client, refused));
        let driver = Rc::clone(self);
        tokio::task::spawn_local(async move { driver.run_stream(&io).await });
        self.wake_transmit();
        Ok(())
    }

    /// The peer opens no more streams here; those that are open go on.
    pub(crate) fn go_away(&self) {
        self.session.borrow_mut().go_away();
        self.wake_transmit();
    }

    /// Waits until the session has come to `wanted`.
    pub(crate) async fn reached(&self, wanted: Progress) {
        let mut progress = self.progress.subscribe();
        // It cannot fail: the sender is in `self`.
        let _ = progress.wait_for(|progress| *progress >= wanted).await;
    }

    /// Whether streams could be opened at some time.
    pub(crate) fn was_ready(&self) -> bool {
        *self.progress.borrow() >= Progress::Ready
    }

    /// Resets every stream and ends [`Self::run`].
    pub(crate) fn shut_down(&self) {
        self.shutdown_wake.notify_one();
    }

    /// Waits until no stream is open and all that was to be sent is with the kernel.
    pub(crate) async fn idle(&self) {
        loop {
            let woken = self.idle_wake.notified();
            if self.ended.get() || self.is_idle() {
                break;
            }
            woken.await;
        }
    }

    /// After [`Self::run`]: waits until every stream has delivered what came and reset its socket, at
    /// most [`RESETS_MAX`].
    pub(crate) async fn streams_gone(&self) {
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

    fn is_idle(&self) -> bool {
        let session = self.session.borrow();
        session.stream_count() == 0 && !session.wants_transmit() && self.queue.borrow().is_empty()
    }

    /// The other end's address.
    pub(crate) fn peer(&self) -> &str {
        &self.stats.peer
    }

    fn add(&self, io: StreamIo) -> Rc<StreamIo> {
        let io = Rc::new(io);
        self.streams.borrow_mut().insert(io.id, Rc::clone(&io));
        io
    }

    async fn run_stream(self: &Rc<Self>, io: &Rc<StreamIo>) {
        stream::run(self, io).await;
        self.streams.borrow_mut().remove(&io.id);
        self.publish();
        self.idle_wake.notify_waiters();
    }

    fn stream(&self, stream: StreamId) -> Option<Rc<StreamIo>> {
        self.streams.borrow().get(&stream).cloned()
    }

    /// Hands the session's events to whom they concern.
    fn handle_events(self: &Rc<Self>) {
        loop {
            let Some(event) = self.session.borrow_mut().poll_event() else {
                break;
            };
            match event {
                Event::Ready => self.ready(),
                Event::GoAway => drop(self.progress.send_replace(Progress::GoingAway)),
                Event::Incoming { stream, target } => self.dial(stream, target),
                Event::Opened { stream, .. } => self.opened(stream),
                Event::OpenFailed { stream, refusal } => self.open_failed(stream, refusal),
                Event::Writable { stream } => {
                    if let Some(io) = self.stream(stream) {
                        io.wake_source();
                    }
                }
                Event::Finished { stream } => self.finished(stream),
                Event::Reset { stream, cause } => self.cut(stream, cause),
            }
        }
        self.wake_transmit();
    }

    fn ready(&self) {
        self.telemetry.add_carrier(&self.stats);
        self.progress.send_replace(Progress::Ready);
    }

    fn opened(&self, stream: StreamId) {
        if let Some(io) = self.stream(stream) {
            io.opened(&self.telemetry);
        }
    }

    fn open_failed(&self, stream: StreamId, refusal: Refusal) {
        if let Some(io) = self.stream(stream) {
            io.refused(refusal);
        }
    }

    fn finished(&self, stream: StreamId) {
        match self.stream(stream) {
            Some(io) => io.peer_finished(),
            None => self.incoming_finished(stream),
        }
    }

    fn cut(&self, stream: StreamId, cause: Outcome) {
        match self.stream(stream) {
            Some(io) if self.was_shut_down.get() => io.cut(Reason::Drained),
            Some(io) => io.cut(cause.into()),
            None => self.incoming_cut(stream, cause),
        }
    }

    fn wake_transmit(&self) {
        if self.session.borrow().wants_transmit() {
            self.transmit_wake.notify_one();
        }
    }

    /// Tells the status page, and [`Self::run_timeouts`] when it sleeps too long. Called once for all
    /// that was read or is to be written together.
    fn publish(&self) {
        let session = self.session.borrow();
        self.stats
            .set_session(session.stream_count() as u64, session.receive_budget_used());
        if let Some(deadline) = session.poll_timeout()
            && self.deadline.get().is_none_or(|until| deadline < until)
        {
            self.timer_wake.notify_one();
        }
    }

    /// Lets what is overdue fail. Not on the data path: it sleeps until the session's next deadline.
    async fn run_timeouts(self: &Rc<Self>) -> CarrierEnd {
        loop {
            let deadline = self.session.borrow().poll_timeout();
            self.deadline.set(deadline);
            match deadline {
                None => self.timer_wake.notified().await,
                Some(deadline) => {
                    tokio::select! {
                        () = tokio::time::sleep_until(deadline.into()) => {}
                        () = self.timer_wake.notified() => {}
                    }
                    let result = self.session.borrow_mut().handle_timeout(Instant::now());
                    self.handle_events();
                    if let Err(error) = result {
                        return error.into();
                    }
                }
            }
        }
    }
}

/// How long the end of the process waits for the resets of streams: it comes 5 s before the kill.
const RESETS_MAX: Duration = Duration::from_secs(3);
/// How long the peer may take to read why its session ends.
const LAST_WORD_MAX: Duration = Duration::from_secs(1);
