//! One carrier of a session: its connection and its queue.
//!
//! A session starts with one carrier, and may add more if its protocol permits. Each carrier runs
//! as a task with a reader and a writer ([`super::carrier_in`], [`super::carrier_out`]) until it is
//! lost or closed. The session decides what happens to the streams.

use std::cell::{Cell, RefCell};
use std::ops::Deref;
use std::rc::Rc;

use muxtunnel_gateway_config::SessionConfig;
use muxtunnel_proto::{CarrierId, Session};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use super::answers::Asked;
use super::carrier_out::{self, Queue};
use super::{Driver, carrier_in, pool};
use crate::base::telemetry::Telemetry;
use crate::io::carrier::Carrier as Connected;
use crate::io::socket::KeepaliveConfig;
use crate::io::transport::Transport;
use crate::session::backlog::{Backlog, Start};
use crate::session::end::SessionEnd;
use crate::session::handover::Place;
use crate::session::mux::NoCarrier;
use crate::session::shell::member::{Member, State};
use crate::session::shell::under::Under;
use crate::stream::retained_pipe::RetainedPipes;

pub(crate) struct Carrier {
    member: Member,
    pub(super) id: CarrierId,
    pub(super) transport: Rc<dyn Transport>,
    /// Whether the configuration permits splicing. The transport also has to permit it
    /// ([`Self::plain`]).
    splices: bool,
    pub(super) queue: RefCell<Queue>,
    /// Spliced payload that the session may have to retransmit.
    pub(super) retained: RetainedPipes,
    pub(super) backlog: Backlog,
    /// Whether the session may have got new frames to transmit after the writer's last check.
    transmits: Cell<bool>,
    transmit_wake: Notify,
    close_wake: Notify,
    /// The last request for an answer.
    pub(super) asked: Cell<Option<Asked>>,
    /// Whether the session was told that the carrier is lost.
    lost: Cell<bool>,
    /// Why the session gave the carrier up.
    given_up: Cell<Option<String>>,
}

impl Deref for Carrier {
    type Target = Member;

    fn deref(&self) -> &Member {
        &self.member
    }
}

impl Carrier {
    pub(super) fn new(
        id: CarrierId,
        transport: Rc<dyn Transport>,
        config: &SessionConfig,
        telemetry: &Telemetry,
        place: Option<Place>,
    ) -> std::io::Result<Self> {
        let path = transport.path();
        if let Some(path) = path {
            path.prepare(config.congestion_control, KeepaliveConfig::of(config))?;
        }
        let start = match id {
            CarrierId::FIRST => Start::Alone,
            _ => Start::Beside,
        };
        let backlog = Backlog::new(path, start)?;
        let under = Under::Bytes(Rc::clone(&transport));
        let member = Member::new(id.number().into(), under, telemetry, place)?;
        Ok(Self {
            member,
            id,
            transport,
            splices: config.splice,
            queue: RefCell::default(),
            retained: RetainedPipes::default(),
            backlog,
            transmits: Cell::new(false),
            transmit_wake: Notify::new(),
            close_wake: Notify::new(),
            asked: Cell::new(None),
            lost: Cell::new(false),
            given_up: Cell::new(None),
        })
    }

    /// The carrier's socket, if the kernel may splice payload from and to it.
    pub(super) fn plain(&self) -> Option<&TcpStream> {
        self.transport.plain().filter(|_| self.splices)
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
}

impl Driver {
    /// Implements [`Engine::add`](crate::session::shell::Engine::add).
    ///
    /// # Errors
    /// [`NoCarrier`]; the session continues without the connection.
    pub(super) fn add_carrier(
        self: &Rc<Self>,
        connected: Connected,
        unread: Vec<u8>,
        place: Option<Place>,
    ) -> Result<Rc<Carrier>, NoCarrier> {
        let transport = connected.into_bytes().map_err(NoCarrier::Refused)?;
        let (now, first) = (super::now(), !self.carriers.has_begun());
        let id = match first {
            true => Some(CarrierId::FIRST),
            false => self.update(|session| session.add_carrier(now)),
        };
        let Some(id) = id else {
            return Err(NoCarrier::Refused(transport.into()));
        };
        let (config, telemetry) = (&self.config, &self.telemetry);
        let carrier = match Carrier::new(id, transport.into(), config, telemetry, place) {
            Ok(carrier) => Rc::new(carrier),
            Err(error) => {
                if !first {
                    self.update(|session| session.handle_carrier_lost(now, id));
                }
                return Err(error.into());
            }
        };
        self.added(&carrier);
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
            end = carrier.ends_at_once(&self.telemetry) => end,
        };
        let fails = carrier.is_running();
        if fails && matches!(end, SessionEnd::Protocol(_) | SessionEnd::Finished(_)) {
            self.end_on(end, Some(&carrier));
        } else if fails {
            let retired = self.engine.session.view().is_retired(carrier.id);
            carrier.retired.set(retired);
            carrier.set_state(State::Gone);
            self.carrier_lost(&carrier, end);
        }
        if carrier.state() == State::Closing {
            let last_word = carrier_out::say_last_word(&self, &carrier);
            tokio::select! {
                _ = tokio::time::timeout(self.ending.last_word_max(), last_word) => {}
                _ = carrier.ends_at_once(&self.telemetry) => {}
            }
            carrier.set_state(State::Gone);
        }
        self.remove_carrier(&carrier);
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
        } else if carrier.is_counted() {
            self.telemetry.resumes.resumed();
        }
        if !carrier.retired.get() && !is_given_up {
            carrier.log_lost(&reason);
        }
        self.count_up();
    }

    fn remove_carrier(self: &Rc<Self>, carrier: &Carrier) {
        carrier.under.shut();
        self.remove(carrier);
        // Another carrier publishes the session's figures from now on.
        self.update(|_session| ());
    }

    /// Drops a carrier of a broken session, without telling the session.
    pub(super) fn drop_carrier(self: &Rc<Self>, carrier: &Carrier) {
        carrier.lost.set(true);
        carrier.set_state(State::Gone);
        carrier.close_wake.notify_one();
        self.remove_carrier(carrier);
    }

    /// Marks a carrier as up, since its hello is complete.
    pub(super) fn carrier_up(&self, id: CarrierId) {
        if let Some(carrier) = self.carrier(id)
            && carrier.rise(&self.telemetry)
        {
            self.count_up();
        }
    }

    pub(super) fn carrier(&self, id: CarrierId) -> Option<Rc<Carrier>> {
        self.carriers.get(id.number().into())
    }

    /// Ends a carrier that the session gave up, once its close frame is sent.
    pub(super) fn carrier_given_up(self: &Rc<Self>, id: CarrierId, reason: String) {
        let Some(carrier) = self.carrier(id) else {
            return;
        };
        self.update(|session| carrier_out::gather_last_word(session, &carrier));
        carrier.close();
        carrier.log_lost(&reason);
        carrier.given_up.set(Some(reason));
        self.count_up();
    }
}
