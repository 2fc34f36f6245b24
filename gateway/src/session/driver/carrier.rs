//! One carrier of a session: its connection and its queue.
//!
//! A session starts with one carrier, and may add more if its protocol permits. Each carrier runs
//! as a task with a reader and a writer ([`super::carrier_in`], [`super::carrier_out`]) until it is
//! lost or closed. The session decides what happens to the streams.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use muxtunnel_codes::Code;
use muxtunnel_gateway_config::SessionConfig;
use muxtunnel_proto::{CarrierId, Session};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use super::answers::Asked;
use super::carrier_out::{self, Queue};
use super::{Driver, carrier_in, pool};
use crate::base::telemetry::{CarrierStats, Telemetry};
use crate::io::socket::KeepaliveConfig;
use crate::io::transport::{Path, Proof, Transport};
use crate::session::backlog::Backlog;
use crate::session::end::SessionEnd;
use crate::session::handover::Place;
use crate::session::mux::{CarrierFigures, NoCarrier};

/// How long the peer may take to read the close frame and the bytes that precede it.
const LAST_WORD_MAX: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// The hello is incomplete.
    Hello,
    Up,
    /// The carrier is being retired.
    Retiring,
    /// The session no longer needs the carrier: the writer sends the remaining frames, and the
    /// reader has stopped.
    Closing,
    Gone,
}

pub(crate) struct Carrier {
    pub(super) id: CarrierId,
    pub(super) transport: Box<dyn Transport>,
    /// Whether the configuration permits splicing. The transport also has to permit it
    /// ([`Self::plain`]).
    splices: bool,
    pub(super) queue: RefCell<Queue>,
    pub(super) backlog: Backlog,
    pub(super) stats: Arc<CarrierStats>,
    /// Whether the session may have got new frames to transmit after the writer's last check.
    transmits: Cell<bool>,
    transmit_wake: Notify,
    close_wake: Notify,
    settled_wake: Notify,
    state: Cell<State>,
    /// The last request for an answer.
    pub(super) asked: Cell<Option<Asked>>,
    /// Whether the session was told that the carrier is lost.
    lost: Cell<bool>,
    since: Instant,
    /// Whether another carrier is to replace this carrier.
    pub(super) outdated: Cell<bool>,
    /// Why this side no longer trusts the carrier's peer.
    distrusted: Cell<Option<SessionEnd>>,
    distrusted_wake: Notify,
    /// Why the session gave the carrier up.
    given_up: Cell<Option<String>>,
    /// Whether the retirement of the carrier is complete. The end of such a carrier is no failure.
    pub(super) retired: Cell<bool>,
    /// Whether the telemetry includes the carrier.
    counted: Cell<bool>,
    /// The carrier's place among the carriers of an exit, whose number `limits.carriers` bounds.
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
        let presented = transport.proof().and_then(|proof| proof.presented);
        let identity = transport.identity().map(str::to_owned);
        let peer = (transport.peer(), identity, presented);
        let stats = telemetry.carrier(peer, transport.runs_on(), probe);
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
            asked: Cell::new(None),
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

    /// The carrier's socket, if the kernel may splice payload from and to it.
    pub(super) fn plain(&self) -> Option<&TcpStream> {
        self.transport.plain().filter(|_| self.splices)
    }

    pub(super) fn figures(&self) -> CarrierFigures {
        CarrierFigures::of(&self.stats, self.since)
    }

    pub(super) fn is_up(&self) -> bool {
        self.state.get() == State::Up
    }

    /// Whether the session still uses the carrier.
    pub(super) fn is_running(&self) -> bool {
        let state = self.state.get();
        matches!(state, State::Hello | State::Up | State::Retiring)
    }

    /// Ends the carrier after its queue is written.
    pub(super) fn close(&self) {
        if self.is_running() {
            self.set_state(State::Closing);
            self.close_wake.notify_one();
        }
    }

    /// Records that the session may have frames to transmit.
    pub(super) fn wake_transmit(&self) {
        if !self.transmits.replace(true) {
            self.transmit_wake.notify_one();
        }
    }

    /// Clears the record of [`Self::wake_transmit`]. The writer calls this function before it
    /// checks the session.
    pub(super) fn begin_transmit(&self) {
        self.transmits.set(false);
    }

    /// Waits until the session may have frames to transmit.
    pub(super) async fn transmits(&self) {
        while !self.transmits.get() {
            self.transmit_wake.notified().await;
        }
    }

    /// Reports to the session, once, that the carrier is lost.
    pub(super) fn lose(&self, session: &mut dyn Session) {
        if !self.lost.replace(true) {
            session.handle_carrier_lost(super::now(), self.id);
        }
    }

    /// Records that the peer has opened a stream or a listener, so the carrier is not silent
    /// ([`Place::heard`]).
    pub(super) fn heard(&self) {
        if let Some(place) = &self.place {
            place.heard();
        }
    }

    /// Waits until the carrier is evicted.
    async fn evicted(&self) {
        match &self.place {
            Some(place) => place.evicted().await,
            None => std::future::pending().await,
        }
    }

    /// The peer's proof of identity; `None`: this gateway requested no proof.
    pub(super) fn proof(&self) -> Option<&Proof> {
        self.transport.proof()
    }

    /// Ends the carrier at once, as a failure does.
    pub(super) fn distrust(&self, end: SessionEnd) {
        self.distrusted.set(Some(end));
        self.distrusted_wake.notify_one();
    }

    /// Waits until the hello is complete; returns whether the carrier is up.
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
    /// Adds a connection to the session, as the first carrier or a further carrier. `unread`
    /// contains bytes that were already read from the connection.
    ///
    /// # Errors
    /// [`NoCarrier`]; the session continues without the connection.
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
        if let Some(rtt) = carrier.transport.round_trip() {
            self.update(|session| session.handle_rtt(id, rtt));
        }
        let (driver, added) = (Rc::clone(self), Rc::clone(&carrier));
        tokio::task::spawn_local(Rc::clone(self).guard(async move {
            // The session may already have queued frames for the carrier, for example its hello.
            // The update wakes the writer.
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
            // The session gave up the carrier earlier. The session is told about the loss only now,
            // after the carrier has sent its last frames.
            self.carrier_lost(&carrier, SessionEnd::Closed);
        }
    }

    /// Reports a lost carrier to the session, which decides whether other carriers take over its
    /// streams. If the session is then over, ends the session.
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
        // Dropping the transport may not close the connection, since the status page may briefly
        // hold a duplicate of the descriptor.
        carrier.transport.shut();
        self.carriers.remove(carrier.id);
        self.idle_wake.notify_waiters();
        // Another carrier publishes the session's figures from now on.
        self.update(|_session| ());
    }

    /// Drops a carrier of a broken session, without telling the session.
    pub(super) fn drop_carrier(self: &Rc<Self>, carrier: &Carrier) {
        carrier.lost.set(true);
        carrier.set_state(State::Gone);
        carrier.close_wake.notify_one();
        self.remove(carrier);
    }

    /// Marks a carrier as up, since its hello is complete.
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

    /// Ends a carrier that the session gave up, once its close frame is sent.
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
    tracing::warn!(%code, %peer, carrier = carrier.id.number(), %reason, "Carrier ended, but its session is still open");
}
