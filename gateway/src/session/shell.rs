//! The shell of a session: what every session has, whatever moves the bytes of its streams.
//!
//! An [`Engine`] moves the bytes between carriers and local ends: the [driver](super::driver) for
//! the protocols with MuxTunnel's own framing, and the [links](super::bridge) for the protocols
//! whose library has streams. The shell does the rest once: it holds the carriers and streams,
//! applies decisions about trust and time-outs, accounts for streams, ends the session, and is the
//! [`Mux`](super::mux::Mux) that the roles use.
//!
//! Single-threaded: every part of a session runs on its worker's `LocalRuntime`, shares the
//! [`Shell`] by `Rc`, and borrows its cells only between awaits.

mod carriers;
mod ending;
pub(crate) mod member;
mod mux;
mod streams;
mod trust;
pub(crate) mod under;

use std::cell::{Cell, OnceCell};
use std::convert::Infallible;
use std::io::ErrorKind;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use muxtunnel_codes::Code;
use muxtunnel_gateway_config::{Reloadable, SessionConfig};
use muxtunnel_proto::{Assignment, Priority};
use tokio::sync::{Notify, watch};

use super::context::Context;
use super::mux::{Dialler, Hears, Listeners, NoCarrier, NotOpened, PacketLimit, Progress, Refused};
use super::packets::PacketQueue;
use crate::base::closing::Reason;
use crate::base::telemetry::Telemetry;
use crate::base::unwind;
use crate::io::carrier::Carrier;
use crate::session::end::SessionEnd;
use crate::session::handover::Place;
use crate::stream::buffers::Share;
use crate::stream::early_data::Connection;
use crate::stream::local_stream::LocalStream;
use crate::stream::timeouts;
use carriers::Carriers;
use ending::Ending;
use member::Member;
use streams::Streams;

/// How long the peer may take to read the close frame and the bytes that precede it, unless
/// [`LINGER_MAX`] applies.
pub(super) const LAST_WORD_MAX: Duration = Duration::from_secs(1);
/// How long the peer may take to read the last frames of a session that ends in order without a
/// stream. The local ends of the peer's streams may be slow, and with SSH the peer then does not read
/// the carrier.
pub(crate) const LINGER_MAX: Duration = Duration::from_secs(15);

/// The part of a session that depends on its protocol.
pub(crate) trait Engine: Sized + 'static {
    type Carrier: Deref<Target = Member>;
    type Stream: Deref<Target = LocalStream>;

    /// Implements [`Mux::open`](super::mux::Mux::open).
    ///
    /// # Errors
    /// This side cannot open a stream.
    fn open(
        shell: &Rc<Shell<Self>>,
        target: &str,
        priority: Priority,
        client: Connection,
        refused: Refused,
    ) -> Result<(), Box<NotOpened>>;

    /// Creates and runs a carrier, which [`Shell::added`] adds to the session.
    ///
    /// # Errors
    /// [`NoCarrier`]; the session continues without the connection.
    fn add(
        shell: &Rc<Shell<Self>>,
        carrier: Carrier,
        unread: Vec<u8>,
        place: Option<Place>,
    ) -> Result<Rc<Self::Carrier>, NoCarrier>;

    /// Records that a carrier may reach a peer that does not have the session.
    fn may_lead_elsewhere(_shell: &Rc<Shell<Self>>, _carrier: &Self::Carrier) {}

    /// Runs the loops of the session until the session has to end.
    fn run(shell: &Rc<Shell<Self>>) -> impl Future<Output = SessionEnd>;

    /// Ends the session, see [`Shell::end`]. Each carrier ends within
    /// [`Ending::last_word_max`].
    fn end(shell: &Rc<Shell<Self>>, end: SessionEnd);

    /// Ends a session of which a task has panicked.
    fn panicked(shell: &Rc<Shell<Self>>) {
        Self::end(shell, SessionEnd::Panicked);
    }

    /// Tells the peer to open no further streams; open streams continue.
    fn go_away(shell: &Rc<Shell<Self>>);

    /// Number of streams that are open or being opened.
    fn stream_count(shell: &Shell<Self>) -> usize;

    /// Whether no stream is open and the engine has nothing left to send.
    fn is_idle(shell: &Shell<Self>) -> bool;

    /// Waits until the library has passed all bytes on to the kernel.
    fn flushed(_shell: &Shell<Self>) -> impl Future<Output = ()> {
        std::future::ready(())
    }

    /// Whether streams outlive their carrier.
    fn resumes(_shell: &Shell<Self>) -> bool {
        false
    }

    /// Cuts a stream from this side, and drops its received bytes. `error` is the failure of the
    /// local end, if any.
    fn abandon(
        shell: &Rc<Shell<Self>>,
        io: &Self::Stream,
        reason: Reason,
        error: Option<ErrorKind>,
    );

    /// Starts the orderly retirement of a carrier that is up. Returns whether it could be retired.
    fn retire(shell: &Rc<Shell<Self>>, carrier: &Rc<Self::Carrier>) -> bool;

    /// Updates the number of carriers.
    fn count_up(shell: &Shell<Self>);

    /// Whether the peer answers on the carrier, see [`Mux::answers`](super::mux::Mux::answers).
    fn answers(carrier: &Self::Carrier) -> bool;

    /// Requests an answer on the carrier, if the protocol has such a request.
    fn ask(shell: &Rc<Shell<Self>>, carrier: &Self::Carrier);

    /// Whether the peer still owes the answer to a request of [`Self::ask`].
    fn owes_an_answer(carrier: &Self::Carrier) -> bool;

    fn listeners(shell: &Rc<Shell<Self>>) -> &dyn Listeners;

    /// Wakes what sends packets, since a packet waits.
    fn packet_waits(_shell: &Shell<Self>) {}

    /// See [`Datagrams::limit`](super::mux::Datagrams::limit).
    fn packet_limit(_shell: &Shell<Self>) -> Option<PacketLimit> {
        None
    }

    /// See [`Datagrams::assign`](super::mux::Datagrams::assign).
    fn assign(shell: &Rc<Shell<Self>>, assignment: Assignment) -> bool;
}

/// One session, its carriers and its streams.
pub(crate) struct Shell<E: Engine> {
    pub(super) engine: E,
    pub(super) carriers: Carriers<E::Carrier>,
    pub(super) streams: Streams<E::Stream>,
    pub(super) share: Share,
    pub(super) packets: Rc<PacketQueue>,
    pub(super) ending: Ending,
    /// Notified when a stream begins, when a stream or a carrier has ended, and when nothing more
    /// is to be sent.
    pub(super) idle_wake: Notify,
    progress: watch::Sender<Progress>,
    /// Whether the session drains because its peer's certificate has expired.
    has_expired: Cell<bool>,
    /// Whether a task of the session has panicked.
    broken: Cell<bool>,
    pub(super) config: SessionConfig,
    reloadable: watch::Receiver<Arc<Reloadable>>,
    pub(super) telemetry: Arc<Telemetry>,
    pub(super) dialler: Dialler,
    pub(super) hears: OnceCell<Hears>,
}

impl<E: Engine> Shell<E> {
    /// Creates a session without a carrier. `packet_bytes` bounds the packets that wait.
    pub(super) fn with(
        engine: E,
        context: Context,
        packet_bytes: u64,
        dialler: Dialler,
    ) -> Rc<Self> {
        let Context {
            config,
            reloadable,
            telemetry,
            buffers,
            ..
        } = context;
        let packets = Rc::new(PacketQueue::new(
            Arc::clone(&telemetry.packets),
            packet_bytes,
        ));
        Rc::new(Self {
            engine,
            carriers: Carriers::new(),
            streams: Streams::new(),
            share: Share::new(buffers),
            packets,
            ending: Ending::new(),
            idle_wake: Notify::new(),
            progress: watch::Sender::new(Progress::Hello),
            has_expired: Cell::new(false),
            broken: Cell::new(false),
            config,
            reloadable,
            telemetry,
            dialler,
            hears: OnceCell::new(),
        })
    }

    /// Adds a connection, as the first carrier or a further carrier. `unread` contains bytes that
    /// were already read from the connection.
    ///
    /// # Errors
    /// [`NoCarrier`]; the session continues without the connection.
    pub(super) fn add(
        self: &Rc<Self>,
        carrier: Carrier,
        unread: Vec<u8>,
        place: Option<Place>,
    ) -> Result<Rc<E::Carrier>, NoCarrier> {
        let is_known = self.carriers.has_begun();
        if is_known && self.identity().as_deref() != carrier.identity() {
            return Err(NoCarrier::Stranger(carrier));
        }
        if self.has_ended() {
            return Err(NoCarrier::Refused(carrier));
        }
        E::add(self, carrier, unread, place)
    }

    /// Adds a carrier to the table.
    pub(super) fn added(&self, carrier: &Rc<E::Carrier>) {
        self.share.suffice_for(self.carriers.add(carrier));
    }

    /// Removes a carrier that has ended from the table and from the telemetry. The caller closes
    /// its connection ([`Under::shut`](under::Under::shut)): dropping the connection may not close
    /// it, since the status page may briefly hold a duplicate of the descriptor.
    pub(super) fn remove(&self, carrier: &Member) {
        carrier.fall(&self.telemetry);
        self.carriers.remove(carrier.number);
        self.idle_wake.notify_waiters();
    }

    /// Implements [`Mux::run`](super::mux::Mux::run).
    pub(crate) async fn run(self: &Rc<Self>) -> SessionEnd {
        let loops = async {
            let end = tokio::select! {
                biased;
                end = E::run(self) => Some(end),
                never = self.follow_timeouts() => match never {},
                () = self.ending.begun() => None,
            };
            if let Some(end) = end {
                self.end(end);
            }
        };
        Rc::clone(self).guard(loops).await;
        self.carriers.all_gone().await;
        self.ending.take()
    }

    /// Ends streams that were quiet for too long ([`timeouts`]); never returns.
    async fn follow_timeouts(self: &Rc<Self>) -> Infallible {
        let look = |timeouts| {
            let now = now();
            for io in self.streams.all().iter().filter(|io| io.is_open()) {
                if let Some((reason, error)) = io.check(timeouts, now) {
                    E::abandon(self, io, reason, error);
                }
            }
        };
        timeouts::follow(self.reloadable.clone(), look).await
    }

    /// Runs a task of the session. A panic of the task ends only this session.
    pub(crate) async fn guard(self: Rc<Self>, task: impl Future<Output = ()>) {
        if let Err(panic) = unwind::unwound(task).await {
            self.panicked(&panic);
        }
    }

    /// Ends the session after a panic of one of its tasks. Later panics have no effect.
    pub(super) fn panicked(self: &Rc<Self>, panic: &str) {
        if self.broken.replace(true) {
            return;
        }
        let (code, peer) = (Code::SessionPanicked, self.peer());
        tracing::error!(%code, %peer, panic, "Session ended by a fault of this gateway");
        self.telemetry.session_panics.add(1);
        E::panicked(self);
    }

    /// Whether a task of the session has panicked. The state of such a session may be inconsistent.
    pub(super) fn is_broken(&self) -> bool {
        self.broken.get()
    }

    /// Ends the session: cuts every stream of which a half has not ended, and closes every carrier.
    /// Only the first call sets the reason.
    pub(super) fn end(self: &Rc<Self>, end: SessionEnd) {
        E::end(self, end);
    }

    /// Begins the end of the session. Returns whether this call was the first.
    pub(super) fn begin_end(&self, end: SessionEnd) -> bool {
        let drained = matches!(end, SessionEnd::ShutDown) && self.streams.is_empty();
        let is_first = self.ending.begin(end, drained);
        if is_first {
            self.share.close();
        }
        is_first
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ending.has_begun()
    }

    /// Number of streams that are open or being opened.
    pub(crate) fn stream_count(&self) -> usize {
        E::stream_count(self)
    }

    /// Whether the session drains because its peer's certificate has expired.
    pub(super) fn has_expired(&self) -> bool {
        self.has_expired.get()
    }

    pub(crate) fn progress(&self) -> Progress {
        *self.progress.borrow()
    }

    /// Raises the progress to at least `to`.
    pub(super) fn advance(&self, to: Progress) {
        self.progress.send_if_modified(|progress| {
            let advances = *progress < to;
            *progress = (*progress).max(to);
            advances
        });
    }

    /// Stops this side from opening further streams; open streams continue.
    pub(super) fn leave(&self) {
        self.advance(Progress::GoingAway);
    }

    /// Waits until the session has reached `wanted`.
    pub(crate) async fn reached(&self, wanted: Progress) {
        let mut progress = self.progress.subscribe();
        // `wait_for` cannot fail: the sender is in `self`.
        let _ = progress.wait_for(|progress| *progress >= wanted).await;
    }

    /// Waits until no stream is open and the kernel holds all bytes to send, or until the session
    /// has ended.
    pub(crate) async fn idle(&self) {
        loop {
            let woken = self.idle_wake.notified();
            if self.has_ended() || E::is_idle(self) {
                break;
            }
            woken.await;
        }
        tokio::select! {
            biased;
            () = self.ending.begun() => {}
            () = E::flushed(self) => {}
        }
    }

    /// Waits until no stream is left, so that each has delivered its received bytes and ended its
    /// socket. Returns whether this happened in time.
    pub(crate) async fn streams_gone(&self, within: Duration) -> bool {
        let gone = async {
            loop {
                let woken = self.idle_wake.notified();
                if self.streams.is_empty() {
                    break;
                }
                woken.await;
            }
        };
        tokio::time::timeout(within, gone).await.is_ok()
    }

    /// Removes a stream that has ended.
    pub(super) fn stream_gone(&self, number: u64) {
        self.streams.remove(number);
        self.idle_wake.notify_waiters();
    }

    /// The peer's address on the latest carrier.
    pub(crate) fn peer(&self) -> Rc<str> {
        self.carriers.peer()
    }

    /// The peer's identity as the first carrier proved it; `None`: the peer proved no identity.
    pub(crate) fn identity(&self) -> Option<Rc<str>> {
        self.carriers.identity()
    }
}

/// Reads the clock of the event loop's timers. So a test that moves this clock also moves every
/// timer.
pub(super) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
