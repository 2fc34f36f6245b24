//! One carrier of a session: its connection and what waits for it.
//!
//! A session has one to begin with, and more where its protocol has them. Each runs as a task of its own,
//! reader and writer together ([`super::carrier_in`], [`super::carrier_out`]), until it is lost or
//! closed; what becomes of the streams is the session's to say.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use muxtunnel_codes::Code;
use muxtunnel_gateway_config::SessionConfig;
use muxtunnel_proto::{CarrierId, Session};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use super::carrier_out::{self, Queue};
use super::{Driver, carrier_in, pool};
use crate::base::telemetry::{CarrierStats, Telemetry};
use crate::io::socket::KeepaliveConfig;
use crate::io::transport::{Path, Proof, Transport};
use crate::session::backlog::Backlog;
use crate::session::end::SessionEnd;
use crate::session::handover::Place;
use crate::session::mux::{CarrierFigures, NoCarrier};

/// How long the peer may take to read what is left to say to it.
const LAST_WORD_MAX: Duration = Duration::from_secs(1);

/// Where a carrier is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Its hello is not over.
    Hello,
    Up,
    /// It goes out of the session in order.
    Retiring,
    /// The session has no more use for it: what is left to say is written, nothing is read.
    Closing,
    Gone,
}

/// One connection of a session.
pub(crate) struct Carrier {
    pub(super) id: CarrierId,
    pub(super) transport: Box<dyn Transport>,
    /// Whether the kernel may move payload, where the transport allows it.
    splices: bool,
    pub(super) queue: RefCell<Queue>,
    pub(super) backlog: Backlog,
    pub(super) stats: Arc<CarrierStats>,
    /// There may be something to transmit that was not looked for yet.
    transmits: Cell<bool>,
    transmit_wake: Notify,
    close_wake: Notify,
    settled_wake: Notify,
    state: Cell<State>,
    /// The session has been told that it is lost.
    lost: Cell<bool>,
    /// When it was made.
    since: Instant,
    /// Another one is to take its place.
    pub(super) outdated: Cell<bool>,
    /// Why this side does not trust it any more.
    distrusted: Cell<Option<SessionEnd>>,
    distrusted_wake: Notify,
    /// Why the session gave it up.
    given_up: Cell<Option<String>>,
    /// It was retired in order: its end is no loss.
    pub(super) retired: Cell<bool>,
    /// It counts in the telemetry.
    counted: Cell<bool>,
    /// Among the carriers of an exit.
    place: Option<Place>,
}

impl Carrier {
    pub(super) fn new(
        id: CarrierId,
        transport: Box<dyn Transport>,
        config: &SessionConfig,
        telemetry: &Telemetry,
        place: Option<Place>,
    ) -> std::io::Result<Self> {
        let path = transport.path();
        if let Some(path) = path {
            path.prepare(config.congestion_control, KeepaliveConfig::of(config))?;
        }
        let backlog = Backlog::new(path)?;
        let probe = path.map(Path::probe).transpose()?;
        let stats = telemetry.carrier(transport.peer(), transport.runs_on(), probe);
        Ok(Self {
            id,
            transport,
            splices: config.splice,
            queue: RefCell::default(),
            backlog,
            stats,
            transmits: Cell::new(false),
            transmit_wake: Notify::new(),
            close_wake: Notify::new(),
            settled_wake: Notify::new(),
            state: Cell::new(State::Hello),
            lost: Cell::new(false),
            since: super::now(),
            outdated: Cell::new(false),
            distrusted: Cell::new(None),
            distrusted_wake: Notify::new(),
            given_up: Cell::new(None),
            retired: Cell::new(false),
            counted: Cell::new(false),
            place,
        })
    }

    /// Its socket, where the kernel moves payload from and to it by itself.
    pub(super) fn plain(&self) -> Option<&TcpStream> {
        self.transport.plain().filter(|_| self.splices)
    }

    pub(super) fn figures(&self) -> CarrierFigures {
        CarrierFigures::of(&self.stats, self.since)
    }

    pub(super) fn is_up(&self) -> bool {
        self.state.get() == State::Up
    }

    /// Whether the session has not given it up.
    pub(super) fn is_running(&self) -> bool {
        let state = self.state.get();
        matches!(state, State::Hello | State::Up | State::Retiring)
    }

    /// Ends it once what waits for it is written.
    pub(super) fn close(&self) {
        if self.is_running() {
            self.set_state(State::Closing);
            self.close_wake.notify_one();
        }
    }

    /// There may be something to transmit.
    pub(super) fn wake_transmit(&self) {
        if !self.transmits.replace(true) {
            self.transmit_wake.notify_one();
        }
    }

    /// What there is to transmit is about to be looked for.
    pub(super) fn begin_transmit(&self) {
        self.transmits.set(false);
    }

    /// Waits until there may be something to transmit.
    pub(super) async fn transmits(&self) {
        while !self.transmits.get() {
            self.transmit_wake.notified().await;
        }
    }

    /// Tells the session, once, that it is gone.
    pub(super) fn lose(&self, session: &mut dyn Session) {
        if !self.lost.replace(true) {
            session.handle_carrier_lost(super::now(), self.id);
        }
    }

    /// The peer has opened something.
    pub(super) fn heard(&self) {
        if let Some(place) = &self.place {
            place.heard();
        }
    }

    /// Waits until another carrier has taken its place.
    async fn evicted(&self) {
        match &self.place {
            Some(place) => place.evicted().await,
            None => std::future::pending().await,
        }
    }

    /// What its other end has proved.
    pub(super) fn proof(&self) -> Option<&Proof> {
        self.transport.proof()
    }

    /// Ends it at once, as if it had failed.
    pub(super) fn distrust(&self, end: SessionEnd) {
        self.distrusted.set(Some(end));
        self.distrusted_wake.notify_one();
    }

    /// Waits until its hello is over; returns whether it is up.
    pub(crate) async fn settled(&self) -> bool {
        loop {
            let woken = self.settled_wake.notified();
            if self.state.get() != State::Hello {
                return self.is_up();
            }
            woken.await;
        }
    }

    pub(super) fn set_state(&self, state: State) {
        self.state.set(state);
        self.settled_wake.notify_waiters();
    }
}

impl Driver {
    /// Adds a connection to the session: to begin with, or as one more. `unread`: what has been read of
    /// it.
    ///
    /// # Errors
    /// [`NoCarrier`]; the session goes on without it.
    pub(crate) fn add_carrier(
        self: &Rc<Self>,
        transport: Box<dyn Transport>,
        unread: Vec<u8>,
        place: Option<Place>,
    ) -> Result<Rc<Carrier>, NoCarrier> {
        let (now, first) = (super::now(), !self.carriers.has_begun());
        if !first && self.identity().as_deref() != transport.identity() {
            return Err(NoCarrier::Stranger(transport.into()));
        }
        let id = if first {
            Some(CarrierId::FIRST)
        } else if self.has_ended() {
            None
        } else {
            self.update(|session| session.add_carrier(now))
        };
        let Some(id) = id else {
            return Err(NoCarrier::Refused(transport.into()));
        };
        let carrier = match Carrier::new(id, transport, &self.config, &self.telemetry, place) {
            Ok(carrier) => Rc::new(carrier),
            Err(error) => {
                if !first {
                    self.update(|session| session.handle_carrier_lost(now, id));
                }
                return Err(error.into());
            }
        };
        self.share.suffice_for(self.carriers.add(&carrier));
        let (driver, added) = (Rc::clone(self), Rc::clone(&carrier));
        tokio::task::spawn_local(Rc::clone(self).guard(async move {
            // It may have said something since it was made.
            driver.update(|_session| ());
            driver.run_carrier(added, unread).await;
        }));
        Ok(carrier)
    }

    async fn run_carrier(self: Rc<Self>, carrier: Rc<Carrier>, unread: Vec<u8>) {
        let end = tokio::select! {
            biased;
            end = carrier_in::run(&self, &carrier, unread) => end,
            end = carrier_out::run(&self, &carrier) => end,
            () = carrier.close_wake.notified() => SessionEnd::ShutDown,
            () = carrier.evicted() => {
                self.telemetry.streams.refused(Code::TooManyCarriers);
                SessionEnd::Evicted
            }
            () = carrier.distrusted_wake.notified() => {
                carrier.distrusted.take().unwrap_or(SessionEnd::ShutDown)
            }
        };
        let fails = carrier.is_running();
        if fails && matches!(end, SessionEnd::Protocol(_) | SessionEnd::Finished(_)) {
            self.end(end, Some(&carrier));
        } else if fails {
            let retired = self.session.view().is_retired(carrier.id);
            carrier.retired.set(retired);
            carrier.set_state(State::Gone);
            self.carrier_lost(&carrier, end);
        }
        if carrier.state.get() == State::Closing {
            let last_word = carrier_out::say_last_word(&self, &carrier);
            let _ = tokio::time::timeout(LAST_WORD_MAX, last_word).await;
            carrier.set_state(State::Gone);
        }
        self.remove(&carrier);
        if !carrier.lost.get() {
            // The session gave it up, and may only now forget it.
            self.carrier_lost(&carrier, SessionEnd::Closed);
        }
    }

    /// The carrier is gone: others go on with its streams, or the session ends with it.
    fn carrier_lost(self: &Rc<Self>, carrier: &Carrier, end: SessionEnd) {
        let given_up = carrier.given_up.take();
        let (is_given_up, reason) = (given_up.is_some(), end.to_string());
        let end = given_up.map_or(end, SessionEnd::GivenUp);
        self.update_or_end(end, |session| carrier.lose(session));
        if self.has_ended() {
            return;
        }
        if carrier.retired.get() {
            pool::log_retired(carrier);
        } else if carrier.counted.get() {
            self.telemetry.resumes.resumed();
        }
        if !carrier.retired.get() && !is_given_up {
            log_lost(carrier, &reason);
        }
        self.carriers.count_up();
    }

    fn remove(self: &Rc<Self>, carrier: &Carrier) {
        if carrier.counted.replace(false) {
            let retired = carrier.retired.get();
            self.telemetry.remove_carrier(&carrier.stats, retired);
        }
        // The status page may hold a duplicate of the descriptor for a moment.
        carrier.transport.shut();
        self.carriers.remove(carrier.id);
        self.idle_wake.notify_waiters();
        // Another carrier has the session's numbers now.
        self.update(|_session| ());
    }

    /// The session is broken, and is not told.
    pub(super) fn drop_carrier(self: &Rc<Self>, carrier: &Carrier) {
        carrier.lost.set(true);
        carrier.set_state(State::Gone);
        carrier.close_wake.notify_one();
        self.remove(carrier);
    }

    /// Its hello is over.
    pub(super) fn carrier_up(&self, id: CarrierId) {
        let Some(carrier) = self.carriers.get(id) else {
            return;
        };
        if carrier.state.get() == State::Hello {
            carrier.set_state(State::Up);
            carrier.counted.set(true);
            self.telemetry.add_carrier(&carrier.stats);
            let (peer, transport) = (&carrier.stats.peer, carrier.stats.transport);
            tracing::info!(%peer, carrier = id.number(), %transport, "Carrier is up");
            self.carriers.count_up();
        }
    }

    /// The session gave it up: it is lost once what there is to say is said.
    pub(super) fn carrier_given_up(self: &Rc<Self>, id: CarrierId, reason: String) {
        let Some(carrier) = self.carriers.get(id) else {
            return;
        };
        self.update(|session| carrier_out::gather_last_word(session, &carrier));
        carrier.close();
        log_lost(&carrier, &reason);
        carrier.given_up.set(Some(reason));
        self.carriers.count_up();
    }
}

fn log_lost(carrier: &Carrier, reason: &str) {
    let (code, peer) = (Code::CarrierLost, &carrier.stats.peer);
    tracing::warn!(%code, %peer, carrier = carrier.id.number(), %reason, "Carrier ended before its session");
}
