//! A connection, its socket, and the task that drives both. In each turn the task receives
//! datagrams, handles timers, and sends the bytes that were written since the previous turn.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::io::{Error, ErrorKind, Result};
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use muxtunnel_proto::kcp::{Connection, Failure, SEGMENT_PAYLOAD_BYTES};
use muxtunnel_proto::patience;
use parking_lot::Mutex;
use tokio::time::Sleep;

use super::peers::Known;
use super::socket::Socket;
use crate::base::path::PathInfo;
use crate::base::unwind::unwound;

/// Maximum number of calls of recvmmsg(2) in one turn.
const RECEIVES_MAX: usize = 4;
/// Maximum number of datagrams that one turn creates (`DATAGRAMS_MAX`), and that one round of a
/// turn creates (`ROUND_MAX`).
const DATAGRAMS_MAX: usize = 512;
const ROUND_MAX: usize = 128;
/// How long a dropped connection continues, so that written bytes arrive.
const LINGER: Duration = Duration::from_secs(3);
/// Minimum pause before the next timer while the kernel accepts no datagrams.
const PAUSE_FULL: Duration = Duration::from_millis(10);
/// Interval at which the state of the path is published to other threads.
const PUBLISH_EVERY: Duration = Duration::from_millis(100);

thread_local! {
    /// Datagrams that are being passed to the kernel.
    static SENT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Reads the clock of the event loop's timers.
pub(super) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// A connection and its socket.
#[derive(Debug)]
pub(super) struct State {
    pub(super) connection: Connection,
    pub(super) socket: Socket,
    pub(super) peer: SocketAddr,
    /// The connection's entry among the peers of an exit.
    pub(super) known: Option<Known>,
    /// The error with which the socket failed before the peer sent anything.
    pub(super) error: Option<ErrorKind>,
    /// Whether the connection is a carrier, so that written bytes must arrive even after its
    /// transport is dropped.
    pub(super) lingers: bool,
    /// Whether the transport was shut and no longer reads or writes.
    pub(super) shut: bool,
    /// The latest time at which the connection ends, set when the transport is dropped.
    abandoned: Option<Instant>,
    pub(super) figures: Arc<Mutex<PathInfo>>,
    published: Option<Instant>,
}

impl State {
    pub(super) fn new(
        connection: Connection,
        socket: Socket,
        peer: SocketAddr,
        known: Option<Known>,
    ) -> Self {
        Self {
            connection,
            socket,
            peer,
            known,
            error: None,
            lingers: false,
            shut: false,
            abandoned: None,
            figures: Arc::default(),
            published: None,
        }
    }

    /// The failure of the connection, if it has failed.
    pub(super) fn failure(&self) -> Option<Error> {
        if let Some(kind) = self.error {
            return Some(kind.into());
        }
        self.connection.failure().map(|failure| match failure {
            Failure::Vanished => {
                Error::new(ErrorKind::TimedOut, "the peer no longer answers over KCP")
            }
            Failure::Reset => Error::new(
                ErrorKind::ConnectionReset,
                "the peer has discarded the KCP connection",
            ),
        })
    }

    fn receive(&mut self, context: &mut Context<'_>) {
        let now = now();
        if let Some(known) = &self.known {
            while let Some(datagram) = known.inbox.pop(context.waker()) {
                self.connection.handle(now, &datagram);
            }
        }
        for _ in 0..RECEIVES_MAX {
            match self.socket.poll_readable(context) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => return self.failed(&error),
                Poll::Pending => return,
            }
            let (connection, peer) = (&mut self.connection, self.peer);
            let received = self.socket.receive(|from, _, datagram| {
                // Datagrams of other senders may have arrived before the socket was connected.
                if from == peer {
                    connection.handle(now, datagram);
                }
            });
            match received {
                Err(error) if error.kind() != ErrorKind::WouldBlock => self.failed(&error),
                _ => {}
            }
        }
        // More datagrams may be waiting.
        context.waker().wake_by_ref();
    }

    /// Handles a network error. Before the first answer of the peer, the error ends the connection.
    /// A later error does not, because it may be forged or temporary.
    fn failed(&mut self, error: &Error) {
        if !self.connection.is_met() {
            self.error = Some(error.kind());
        }
    }

    /// Sends what can be sent now. Returns whether more bytes wait.
    pub(super) fn send(&mut self) -> bool {
        let now = now();
        SENT.with_borrow_mut(|bytes| {
            for _ in 0..DATAGRAMS_MAX / ROUND_MAX {
                if self.socket.is_full() {
                    return false;
                }
                let (mut lengths, mut count, mut before) = ([0; ROUND_MAX], 0, 0);
                bytes.clear();
                for length in &mut lengths {
                    if !self.connection.poll_transmit(now, bytes) {
                        break;
                    }
                    *length = bytes.len() - before;
                    before = bytes.len();
                    count += 1;
                }
                self.socket.send(self.peer, bytes, &lengths[..count]);
                if count < ROUND_MAX {
                    return false;
                }
            }
            true
        })
    }

    /// Whether the connection has nothing left to do.
    fn is_over(&mut self) -> bool {
        let Some(until) = self.abandoned else {
            return false;
        };
        let mut discarded = [0; 4096];
        while let Some(1..) = self.connection.read(&mut discarded) {}
        let has_ended = self.connection.read(&mut discarded) == Some(0);
        self.failure().is_some()
            || now() >= until
            || (self.connection.is_settled() && has_ended && !self.socket.is_full())
    }

    pub(super) fn info(&self) -> PathInfo {
        let path = self.connection.path();
        let segments = path.window / SEGMENT_PAYLOAD_BYTES as u64;
        PathInfo {
            rtt: path.rtt,
            rtt_min: path.rtt_min,
            rate: path.rate,
            app_limited: path.app_limited,
            queued: u32::try_from(path.queued).unwrap_or(u32::MAX),
            congestion_window: u32::try_from(segments).unwrap_or(u32::MAX),
            retransmits: path.resent,
            unacknowledged: u32::try_from(path.unacknowledged).unwrap_or(u32::MAX),
            acknowledged: path.acknowledged,
            ..PathInfo::default()
        }
    }

    fn publish(&mut self) {
        let now = now();
        let due = |before: Instant| now.saturating_duration_since(before) >= PUBLISH_EVERY;
        if self.published.is_none_or(due) {
            self.published = Some(now);
            *self.figures.lock() = self.info();
        }
    }
}

/// A connection in this thread's event loop, shared by its transport and its task.
#[derive(Default)]
pub(super) struct Driven {
    /// The state; `None`: the connection has moved to another thread or is over.
    state: RefCell<Option<State>>,
    reader: Cell<Option<Waker>>,
    writer: Cell<Option<Waker>>,
    task: Cell<Option<Waker>>,
    /// The waker of a task that waits for the peer's first datagram.
    meeting: Cell<Option<Waker>>,
}

impl fmt::Debug for Driven {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driven")
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

fn wake(waker: &Cell<Option<Waker>>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}

impl Driven {
    /// Starts the connection's task.
    pub(super) fn start(state: State) -> Rc<Self> {
        let driven = Rc::new(Self {
            state: RefCell::new(Some(state)),
            ..Self::default()
        });
        let this = Rc::clone(&driven);
        drop(tokio::task::spawn_local(async move {
            let mut timer = Box::pin(tokio::time::sleep(Duration::ZERO));
            let turns = poll_fn(|context| this.turn(context, timer.as_mut()));
            if let Err(panic) = unwound(turns).await {
                tracing::error!(panic, "KCP connection ended by a fault of this gateway");
            }
            // Closes the socket, even if a transport still holds the connection.
            if this.state.take().is_some() {
                wake(&this.reader);
                wake(&this.writer);
                wake(&this.meeting);
            }
        }));
        driven
    }

    /// Calls `act` with the state; `None`: the state no longer exists.
    pub(super) fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> Option<T> {
        self.state.borrow_mut().as_mut().map(act)
    }

    /// Calls `act` with the state, then wakes the task.
    ///
    /// # Errors
    /// The state no longer exists.
    pub(super) fn update<T>(&self, act: impl FnOnce(&mut State) -> T) -> Result<T> {
        let result = self.with(act).ok_or(ErrorKind::NotConnected)?;
        wake(&self.task);
        Ok(result)
    }

    /// Removes the state from this thread.
    ///
    /// # Errors
    /// The state no longer exists.
    pub(super) fn take(&self) -> Result<State> {
        let state = self.state.take();
        wake(&self.task);
        state.ok_or_else(|| ErrorKind::NotConnected.into())
    }

    /// Handles the drop of the transport.
    pub(super) fn abandon(&self) {
        let ended = self.with(|state| {
            state.connection.finish();
            if state.connection.is_met() && state.failure().is_none() {
                // Sends the end now, in case the process exits.
                state.send();
            }
            let linger = if state.lingers {
                patience(LINGER, state.connection.path().rtt)
            } else {
                Duration::ZERO
            };
            state.abandoned = Some(now() + linger);
        });
        if ended.is_some() {
            wake(&self.task);
        }
    }

    pub(super) fn poll_readable(&self, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.poll(context, &self.reader, |state| {
            state.shut || state.connection.is_readable()
        })
    }

    pub(super) fn poll_writable(&self, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.poll(context, &self.writer, |state| {
            state.connection.is_finished() || state.connection.is_writable()
        })
    }

    /// Ready once the peer has sent a datagram, or will never send a datagram.
    pub(super) fn poll_met(&self, context: &mut Context<'_>) -> Poll<Result<()>> {
        let met = self.poll(context, &self.meeting, |state| state.connection.is_met());
        met.map(|result| {
            result?;
            let failure = self.with(|state| state.failure()).flatten();
            failure.map_or(Ok(()), Err)
        })
    }

    fn poll(
        &self,
        context: &mut Context<'_>,
        waker: &Cell<Option<Waker>>,
        is_ready: impl FnOnce(&State) -> bool,
    ) -> Poll<Result<()>> {
        match &*self.state.borrow() {
            None => Poll::Ready(Err(ErrorKind::NotConnected.into())),
            Some(state) if state.failure().is_some() || is_ready(state) => Poll::Ready(Ok(())),
            Some(_) => {
                waker.set(Some(context.waker().clone()));
                Poll::Pending
            }
        }
    }

    /// Runs one turn of the task. Ready once the connection is over.
    fn turn(&self, context: &mut Context<'_>, mut timer: Pin<&mut Sleep>) -> Poll<()> {
        let mut held = self.state.borrow_mut();
        let Some(state) = held.as_mut() else {
            return Poll::Ready(());
        };
        self.task.set(Some(context.waker().clone()));
        state.receive(context);
        state.connection.handle_timeout(now());
        let peer = state.peer;
        if state.socket.poll_send(context, peer).is_ready() && state.send() {
            context.waker().wake_by_ref();
        }
        // If the kernel's buffer is full, the socket's readiness wakes the task.
        let _ = state.socket.poll_send(context, peer);
        if state.socket.was_refused() {
            state.failed(&ErrorKind::ConnectionRefused.into());
        }
        state.publish();
        let failed = state.failure().is_some();
        if failed || state.shut || state.connection.is_readable() {
            wake(&self.reader);
        }
        if failed || state.connection.is_met() {
            wake(&self.meeting);
        }
        if failed || state.connection.is_finished() || state.connection.is_writable() {
            wake(&self.writer);
        }
        if state.is_over() {
            return Poll::Ready(());
        }
        let at = [state.connection.poll_timeout(), state.abandoned];
        let Some(at) = at.into_iter().flatten().min() else {
            return Poll::Pending;
        };
        // While the kernel accepts no datagrams, a due timer cannot send, so the task must not run
        // in a tight loop.
        let at = match state.socket.is_full() {
            true => at.max(now() + PAUSE_FULL),
            false => at,
        };
        if at <= now() {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        if timer.deadline().into_std() != at {
            timer.as_mut().reset(at.into());
        }
        if timer.poll(context).is_ready() {
            context.waker().wake_by_ref();
        }
        Poll::Pending
    }
}
