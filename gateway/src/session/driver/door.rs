//! The one mutable door to a session: what follows from a change of it follows by itself.
//!
//! [`Driver::update`], and its kin here, are the only way to change the session. When the change is made, its events are
//! handed to whom they concern, a session that is over ends, writers that have something to transmit are woken, and figures
//! and the next deadline are published; where a [`Driver::try_update`] failed, only events are handed on. A change that an
//! event's handler makes is a part of the same turn: the events that follow from it are handled behind those that are
//! already there.

use std::cell::{Cell, Ref, RefCell};
use std::rc::Rc;

use muxtunnel_proto::{Session, SessionError};

use super::{Driver, SessionEnd};

/// The session, whom [`Driver::update`] alone may change.
pub(super) struct SessionCell {
    session: RefCell<Box<dyn Session>>,
    /// Events are being handed on.
    settling: Cell<bool>,
    /// A task of it has panicked: the session is not asked for anything any more.
    broken: Cell<bool>,
}

impl SessionCell {
    pub(super) fn new(session: Box<dyn Session>) -> Self {
        Self {
            session: RefCell::new(session),
            settling: Cell::new(false),
            broken: Cell::new(false),
        }
    }

    /// To be read, and let go before anything changes.
    pub(super) fn view(&self) -> Ref<'_, dyn Session> {
        Ref::map(self.session.borrow(), |session| &**session)
    }

    /// Nothing follows from changes any more; returns whether that was so before.
    pub(super) fn give_up(&self) -> bool {
        self.broken.replace(true)
    }
}

impl Driver {
    /// Changes the session, and sees to all that follows.
    pub(super) fn update<R>(
        self: &Rc<Self>,
        change: impl FnOnce(&mut (dyn Session + 'static)) -> R,
    ) -> R {
        self.update_or_end(SessionEnd::Closed, change)
    }

    /// The same; `end` is why the session ends where it is over after the change.
    pub(super) fn update_or_end<R>(
        self: &Rc<Self>,
        end: SessionEnd,
        change: impl FnOnce(&mut (dyn Session + 'static)) -> R,
    ) -> R {
        let result = change(&mut **self.session.session.borrow_mut());
        self.settle(end);
        result
    }

    /// A change that may fail. Where it does, only the session's events are handed on, and the caller ends it.
    ///
    /// # Errors
    /// As `change`.
    pub(super) fn try_update<R>(
        self: &Rc<Self>,
        change: impl FnOnce(&mut (dyn Session + 'static)) -> Result<R, SessionError>,
    ) -> Result<R, SessionError> {
        let result = change(&mut **self.session.session.borrow_mut());
        match &result {
            Ok(_) => self.settle(SessionEnd::Closed),
            Err(_) => {
                // Nothing that a handler changes is to end the session before its caller does.
                let settling = self.session.settling.replace(true);
                self.hand_on_events();
                self.session.settling.set(settling);
            }
        }
        result
    }

    fn settle(self: &Rc<Self>, end: SessionEnd) {
        // Before the first carrier there is nobody whom an event could concern.
        if !self.carriers.has_begun()
            || self.session.broken.get()
            || self.session.settling.replace(true)
        {
            return;
        }
        let mut end = Some(end);
        loop {
            // Before its last events: they are handed on with why it ends.
            if self.session.view().is_over()
                && let Some(end) = end.take()
            {
                self.end(end, None);
            }
            self.hand_on_events();
            let is_over_now = end.is_some() && self.session.view().is_over();
            if !is_over_now && !self.bury() {
                break;
            }
        }
        self.session.settling.set(false);
        self.publish();
    }

    /// Hands the session's events to whom they concern, and forgets the batches that it will not transmit again.
    fn hand_on_events(self: &Rc<Self>) {
        let mut session = self.session.session.borrow_mut();
        while let Some(event) = session.poll_event() {
            drop(session);
            self.handle_event(event);
            session = self.session.session.borrow_mut();
        }
        while let Some(token) = session.poll_released() {
            drop(self.retention.take(token));
        }
    }

    /// Wakes the writers that have something to transmit; tells the status page, [`Self::run_timeouts`] when it sleeps too
    /// long, and those who wait for the session to be idle.
    fn publish(&self) {
        let session = self.session.view();
        let carriers = self.carriers.view();
        for (id, carrier) in &*carriers {
            if session.wants_transmit(*id) {
                carrier.wake_transmit();
            }
        }
        let streams = session.stream_count() as u64;
        // Of several carriers one has the session's numbers, so that their sum is right.
        if let Some(carrier) = carriers.values().next() {
            carrier
                .stats
                .set_session(streams, session.receive_budget_used());
        }
        if !self.has_ended() {
            self.retention
                .count(session.retained_bytes(), &self.telemetry);
        }
        if streams == 0 {
            self.idle_wake.notify_waiters();
        }
        if let Some(deadline) = session.poll_timeout() {
            self.deadline.hasten(deadline);
        }
    }
}
