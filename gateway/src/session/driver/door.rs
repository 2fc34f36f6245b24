//! Provides the only mutable access to a session, and handles all consequences of a change.
//!
//! Only [`Driver::update`] and its variants in this module change the session. After a change,
//! these functions handle the events of the session, wake writers that have frames to transmit, and
//! publish figures and the next deadline. The functions also end a session that is over. A failed
//! [`Driver::try_update`] only handles events. If an event's handler changes the session, the new
//! events are handled in the same turn, after the queued events.

use std::cell::{Cell, Ref, RefCell};
use std::rc::Rc;

use muxtunnel_proto::{Session, SessionError};

use super::{Driver, SessionEnd};

/// The session, which only [`Driver::update`] and its variants may change.
pub(super) struct SessionCell {
    session: RefCell<Box<dyn Session>>,
    /// Whether events are being handled.
    settling: Cell<bool>,
}

impl SessionCell {
    pub(super) fn new(session: Box<dyn Session>) -> Self {
        Self {
            session: RefCell::new(session),
            settling: Cell::new(false),
        }
    }

    /// Borrows the session for reading. Drop the guard before any change.
    pub(super) fn view(&self) -> Ref<'_, dyn Session> {
        Ref::map(self.session.borrow(), |session| &**session)
    }
}

impl Driver {
    /// Changes the session, and handles the consequences.
    pub(super) fn update<R>(
        self: &Rc<Self>,
        change: impl FnOnce(&mut (dyn Session + 'static)) -> R,
    ) -> R {
        self.update_or_end(SessionEnd::Closed, change)
    }

    /// Works as [`Self::update`]; `end` is the reason if the session is over after the change.
    pub(super) fn update_or_end<R>(
        self: &Rc<Self>,
        end: SessionEnd,
        change: impl FnOnce(&mut (dyn Session + 'static)) -> R,
    ) -> R {
        let result = change(&mut **self.engine.session.session.borrow_mut());
        self.settle(end);
        result
    }

    /// Works as [`Self::update`], for a change that may fail. After a failure, only the session's
    /// events are handled, and the caller ends the session.
    ///
    /// # Errors
    /// The errors of `change`.
    pub(super) fn try_update<R>(
        self: &Rc<Self>,
        change: impl FnOnce(&mut (dyn Session + 'static)) -> Result<R, SessionError>,
    ) -> Result<R, SessionError> {
        let result = change(&mut **self.engine.session.session.borrow_mut());
        match &result {
            Ok(_) => self.settle(SessionEnd::Closed),
            Err(_) => {
                // No change by a handler may end the session before the caller does.
                let settling = self.engine.session.settling.replace(true);
                self.hand_on_events();
                self.engine.session.settling.set(settling);
            }
        }
        result
    }

    fn settle(self: &Rc<Self>, end: SessionEnd) {
        // Before the first carrier there is no receiver of events.
        if !self.carriers.has_begun()
            || self.is_broken()
            || self.engine.session.settling.replace(true)
        {
            return;
        }
        let mut end = Some(end);
        loop {
            // The session ends before its last events are handled, since the handlers use the
            // reason of the end.
            if self.engine.session.view().is_over()
                && let Some(end) = end.take()
            {
                self.end(end);
            }
            self.hand_on_events();
            let is_over_now = end.is_some() && self.engine.session.view().is_over();
            if !is_over_now && !self.bury() {
                break;
            }
        }
        self.engine.session.settling.set(false);
        self.publish();
    }

    /// Handles the session's events, and drops the batches that the session will not retransmit.
    fn hand_on_events(self: &Rc<Self>) {
        let mut session = self.engine.session.session.borrow_mut();
        while let Some(event) = session.poll_event() {
            drop(session);
            self.handle_event(event);
            session = self.engine.session.session.borrow_mut();
        }
        while let Some(token) = session.poll_released() {
            drop(self.engine.retention.take(token));
        }
    }

    /// Wakes the writers that have frames to transmit and the tasks that wait for an idle session.
    /// Wakes [`Self::run_timeouts`] if the next deadline is earlier than the end of its sleep.
    /// Updates the status page.
    fn publish(&self) {
        let session = self.engine.session.view();
        let carriers = self.carriers.view();
        session.wanting(&mut |id| {
            if let Some(carrier) = carriers.get(&id.number().into()) {
                carrier.wake_transmit();
            }
        });
        let streams = session.stream_count() as u64;
        // Only one carrier publishes the session's figures, so that the sum over the carriers is
        // correct.
        if let Some(carrier) = carriers.values().next() {
            carrier
                .stats
                .set_session(streams, session.receive_budget_used());
        }
        if !self.has_ended() {
            self.engine
                .retention
                .count(session.retained_bytes(), &self.telemetry);
        }
        if streams == 0 {
            self.idle_wake.notify_waiters();
        }
        if let Some(deadline) = session.poll_timeout() {
            self.engine.deadline.hasten(deadline);
        }
    }
}
