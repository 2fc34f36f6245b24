//! One carrier of a session, as far as it does not depend on the session's protocol.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Instant;

use muxtunnel_codes::Code;
use tokio::sync::Notify;

use super::now;
use super::under::Under;
use crate::base::telemetry::{CarrierStats, Telemetry};
use crate::io::proof::Proof;
use crate::session::end::SessionEnd;
use crate::session::handover::Place;
use crate::session::mux::CarrierFigures;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// The peer has not answered, or the hello is incomplete.
    Hello,
    Up,
    /// The carrier takes no further streams.
    Leaving,
    /// The session no longer needs the carrier: the writer sends the remaining frames, and the
    /// reader has stopped.
    Closing,
    Gone,
}

pub(crate) struct Member {
    /// The carrier's number in its session.
    pub(crate) number: u64,
    pub(crate) under: Under,
    pub(crate) stats: Arc<CarrierStats>,
    pub(crate) since: Instant,
    /// Whether another carrier is to replace this carrier.
    pub(crate) outdated: Cell<bool>,
    /// Whether this side has retired the carrier. The end of such a carrier is no failure.
    pub(crate) retired: Cell<bool>,
    state: Cell<State>,
    settled_wake: Notify,
    /// Whether the telemetry includes the carrier.
    counted: Cell<bool>,
    /// Why this side no longer trusts the carrier's peer.
    distrusted: Cell<Option<SessionEnd>>,
    distrusted_wake: Notify,
    /// The carrier's place among the carriers of an exit, whose number `limits.carriers` bounds.
    place: Option<Place>,
}

impl Member {
    /// # Errors
    /// A system call fails.
    pub(crate) fn new(
        number: u64,
        under: Under,
        telemetry: &Telemetry,
        place: Option<Place>,
    ) -> std::io::Result<Self> {
        let probe = under.probe()?;
        let proof = under.proof();
        let identity = proof.map(|proof| proof.identity.clone());
        let presented = proof.and_then(|proof| proof.presented);
        let peer = (under.peer(), identity, presented);
        let stats = telemetry.carrier(peer, under.runs_on(), probe);
        Ok(Self {
            number,
            under,
            stats,
            since: now(),
            outdated: Cell::new(false),
            retired: Cell::new(false),
            state: Cell::new(State::Hello),
            settled_wake: Notify::new(),
            counted: Cell::new(false),
            distrusted: Cell::new(None),
            distrusted_wake: Notify::new(),
            place,
        })
    }

    pub(crate) fn state(&self) -> State {
        self.state.get()
    }

    pub(crate) fn set_state(&self, state: State) {
        self.state.set(state);
        self.settled_wake.notify_waiters();
    }

    pub(crate) fn is_up(&self) -> bool {
        self.state.get() == State::Up
    }

    /// Whether the session still uses the carrier.
    pub(crate) fn is_running(&self) -> bool {
        match self.state.get() {
            State::Hello | State::Up | State::Leaving => true,
            State::Closing | State::Gone => false,
        }
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

    /// Marks the carrier as up, since its hello is complete. Returns whether it was in its hello.
    pub(crate) fn rise(&self, telemetry: &Telemetry) -> bool {
        let rises = self.state.get() == State::Hello;
        if rises {
            self.set_state(State::Up);
            self.counted.set(true);
            telemetry.add_carrier(&self.stats);
            let (peer, transport) = (&self.stats.peer, self.stats.transport);
            tracing::info!(%peer, carrier = self.number, %transport, "Carrier is up");
        }
        rises
    }

    /// Whether the telemetry includes the carrier.
    pub(crate) fn is_counted(&self) -> bool {
        self.counted.get()
    }

    /// Takes the carrier out of the telemetry.
    pub(super) fn fall(&self, telemetry: &Telemetry) {
        if self.counted.replace(false) {
            telemetry.remove_carrier(&self.stats, self.retired.get());
        }
    }

    pub(crate) fn figures(&self) -> CarrierFigures {
        CarrierFigures::of(&self.stats, self.since)
    }

    /// Whether an answer of the peer is overdue, by the figures of the path.
    pub(crate) fn is_overdue(&self) -> bool {
        let path = self.stats.path_info();
        path.is_some_and(|path| path.is_overdue())
    }

    /// The peer's proof of identity; `None`: this gateway requested no proof.
    pub(crate) fn proof(&self) -> Option<&Proof> {
        self.under.proof()
    }

    /// Records that the peer has opened a stream or a listener, so the carrier is not silent
    /// ([`Place::heard`]).
    pub(crate) fn heard(&self) {
        if let Some(place) = &self.place {
            place.heard();
        }
    }

    /// Ends the carrier at once, as a failure does.
    pub(crate) fn distrust(&self, end: SessionEnd) {
        self.distrusted.set(Some(end));
        self.distrusted_wake.notify_one();
    }

    /// Waits until the carrier must end at once: another carrier took its place, or this side no
    /// longer trusts its peer.
    pub(crate) async fn ends_at_once(&self, telemetry: &Telemetry) -> SessionEnd {
        let evicted = async {
            match &self.place {
                Some(place) => place.evicted().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = evicted => {
                telemetry.streams.refused(Code::TooManyCarriers);
                SessionEnd::Evicted
            }
            () = self.distrusted_wake.notified() => {
                self.distrusted.take().unwrap_or(SessionEnd::ShutDown)
            }
        }
    }

    /// Logs the end of a carrier whose session continues.
    pub(crate) fn log_lost(&self, reason: &str) {
        let (code, peer, carrier) = (Code::CarrierLost, &self.stats.peer, self.number);
        tracing::warn!(%code, %peer, carrier, %reason, "Carrier ended, but its session is still open");
    }
}
