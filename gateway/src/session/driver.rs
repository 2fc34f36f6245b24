//! The driver: moves bytes between a session's carriers, its state machine and the local sockets.
//!
//! The driver is the [`Engine`] of the protocols with MuxTunnel's own framing, over one or more
//! carriers. A session has three loops, which handle its deadlines ([`deadlines`]), sample its
//! carriers ([`autoscale`]) and probe its carriers ([`liveness`]). Each [`carrier`] has one task
//! with two loops ([`carrier_in`] and [`carrier_out`]). Each dial of a target has one task
//! ([`incoming`]), and each [`stream`] has one task. A carrier's reader never waits for a writer,
//! so full duplex cannot deadlock. Bytes that a stalled local socket does not take remain in the
//! stream's inbox, which the stream's credit bounds.
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
mod deadlines;
mod door;
mod ending;
mod events;
mod incoming;
mod listeners;
mod liveness;
mod pool;
mod retention;
mod splice_out;
mod stream;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::rc::Rc;

use muxtunnel_proto::{Assignment, OpenError, Priority, Session, StreamId};

use super::context::Context;
use super::shell::member::State;
use super::shell::{Engine, Shell, now};
use crate::base::closing::Reason;
use crate::base::memory_budget::Drawn;
use crate::base::unwind;
use crate::io::carrier::Carrier as Connected;
use crate::session::end::SessionEnd;
use crate::session::handover::Place;
use crate::session::mux::{Dialler, Listeners, NoCarrier, NotOpened, Refused};
use crate::stream::buffers::SMALL_BYTES;
use crate::stream::early_data::Connection;
use deadlines::Deadline;
use door::SessionCell;
use incoming::Incoming;
use retention::Retention;
use stream::StreamIo;

pub(crate) use crate::stream::buffers::Pool;
pub(crate) use carrier::Carrier;

/// Maximum number of bytes that one stream sends before other streams may send, if small streams have
/// sent lately and the session has one carrier.
const BESIDE_SMALL_BYTES: usize = 128 << 10;

/// A session of the native protocol or of JMUX.
pub(crate) type Driver = Shell<Frames>;

/// What the driver has in addition to its shell.
pub(crate) struct Frames {
    session: SessionCell,
    /// The peer's streams whose targets are being dialled. The session bounds their number by
    /// `limits.streams`.
    incoming: RefCell<BTreeMap<StreamId, Incoming>>,
    retention: Retention,
    deadline: Deadline,
    /// The session's part of the memory, until the session ends.
    _memory: Drawn,
}

impl Engine for Frames {
    type Carrier = Carrier;
    type Stream = StreamIo;

    fn open(
        driver: &Rc<Driver>,
        target: &str,
        priority: Priority,
        client: Connection,
        refused: Refused,
    ) -> Result<(), Box<NotOpened>> {
        if driver.has_ended() {
            let error = OpenError::GoingAway;
            return Err(Box::new(NotOpened {
                error,
                connection: client,
            }));
        }
        let (source, mut opening) = (client.source, Some((client, refused)));
        let opened = unwind::caught(|| {
            driver.update(|session| {
                let stream = session.open(now(), target, priority, source)?;
                // The stream has to exist before the session reports events about it.
                if let Some((client, refused)) = opening.take() {
                    let io = Rc::new(StreamIo::opening(stream, client, refused));
                    driver.streams.add(stream.number(), &io);
                    let driver = Rc::clone(driver);
                    tokio::task::spawn_local(async move { driver.run_stream(io).await });
                }
                Ok(())
            })
        });
        let opened = opened.unwrap_or_else(|panic| {
            driver.panicked(&panic);
            Err(OpenError::GoingAway)
        });
        match (opened, opening) {
            (Err(error), Some((connection, _))) => Err(Box::new(NotOpened { error, connection })),
            _ => Ok(()),
        }
    }

    fn add(
        driver: &Rc<Driver>,
        carrier: Connected,
        unread: Vec<u8>,
        place: Option<Place>,
    ) -> Result<Rc<Carrier>, NoCarrier> {
        driver.add_carrier(carrier, unread, place)
    }

    fn may_lead_elsewhere(driver: &Rc<Driver>, carrier: &Carrier) {
        driver.update(|session| session.may_lead_elsewhere(carrier.id));
    }

    async fn run(driver: &Rc<Driver>) -> SessionEnd {
        tokio::select! {
            biased;
            end = driver.run_timeouts() => end,
            never = autoscale::run(driver) => match never {},
            never = liveness::run(driver) => match never {},
        }
    }

    fn end(driver: &Rc<Driver>, end: SessionEnd) {
        driver.end_on(end, None);
    }

    fn panicked(driver: &Rc<Driver>) {
        driver.drop_all();
    }

    fn go_away(driver: &Rc<Driver>) {
        driver.update(Session::go_away);
    }

    fn stream_count(driver: &Driver) -> usize {
        driver.engine.session.view().stream_count()
    }

    fn is_idle(driver: &Driver) -> bool {
        let session = driver.engine.session.view();
        if session.stream_count() > 0 || !session.is_settled() {
            return false;
        }
        let carriers = driver.carriers.view();
        let mut wants = false;
        session.wanting(&mut |id| wants |= carriers.contains_key(&id.number().into()));
        let mut queues = carriers.values().map(|carrier| carrier.queue.borrow());
        !wants && queues.all(|queue| queue.is_empty())
    }

    fn resumes(driver: &Driver) -> bool {
        driver.engine.session.view().resumes()
    }

    fn abandon(driver: &Rc<Driver>, io: &StreamIo, reason: Reason, error: Option<ErrorKind>) {
        io.abandon(driver, reason, error);
    }

    fn retire(driver: &Rc<Driver>, carrier: &Rc<Carrier>) -> bool {
        let begins = driver.update(|session| {
            let begins = session.retire_carrier(carrier.id);
            if begins {
                carrier.set_state(State::Leaving);
            }
            begins
        });
        if begins {
            driver.count_up();
        } else {
            driver.end_outdated(carrier);
        }
        begins
    }

    fn count_up(driver: &Driver) {
        driver.count_up();
    }

    fn answers(carrier: &Carrier) -> bool {
        !carrier.is_overdue()
    }

    fn ask(driver: &Rc<Driver>, carrier: &Carrier) {
        driver.ask_on(carrier);
    }

    fn owes_an_answer(carrier: &Carrier) -> bool {
        carrier.unanswered_since().is_some()
    }

    fn listeners(driver: &Rc<Driver>) -> &dyn Listeners {
        driver
    }

    fn packet_waits(driver: &Driver) {
        let carriers = driver.carriers.view();
        carriers
            .values()
            .for_each(|carrier| carrier.wake_transmit());
    }

    fn assign(driver: &Rc<Driver>, assignment: Assignment) -> bool {
        driver.update(|session| session.assign(&assignment))
    }
}

impl Driver {
    /// Creates a session without a carrier.
    pub(crate) fn new(
        session: Box<dyn Session>,
        (context, memory): (Context, Drawn),
        dialler: Dialler,
    ) -> Rc<Self> {
        let packet_bytes = context.config.memory.receive.0;
        let frames = Frames {
            session: SessionCell::new(session),
            incoming: RefCell::default(),
            retention: Retention::default(),
            deadline: Deadline::new(),
            _memory: memory,
        };
        Self::with(frames, context, packet_bytes, dialler)
    }

    fn stream(&self, stream: StreamId) -> Option<Rc<StreamIo>> {
        self.streams.get(stream.number())
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
        let bytes = bytes.max().unwrap_or(SMALL_BYTES);
        let up = carriers.values().filter(|carrier| carrier.is_up());
        match up.count() {
            0 | 1 if self.engine.session.view().has_small() => bytes.min(BESIDE_SMALL_BYTES),
            _ => bytes,
        }
    }

    async fn run_stream(self: &Rc<Self>, io: Rc<StreamIo>) {
        if let Err(panic) = unwind::unwound(stream::run(self, &io)).await {
            self.panicked(&panic);
            stream::report_fault(self, &io);
        }
        self.stream_gone(io.id.number());
        io.hand_back();
    }
}

#[cfg(test)]
mod side;
#[cfg(test)]
pub(crate) mod tests;
