//! The deadlines of a session.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Instant;

use tokio::sync::Notify;

use super::{Driver, SessionEnd, now};

/// The time until which [`Driver::run_timeouts`] sleeps.
pub(super) struct Deadline {
    until: Cell<Option<Instant>>,
    too_late: Notify,
}

impl Deadline {
    pub(super) fn new() -> Self {
        Self {
            until: Cell::new(None),
            too_late: Notify::new(),
        }
    }

    /// Wakes the loop if `deadline` is earlier than the time until which the loop sleeps.
    pub(super) fn hasten(&self, deadline: Instant) {
        if self.until.get().is_none_or(|until| deadline < until) {
            self.too_late.notify_one();
        }
    }
}

impl Driver {
    /// Handles expired deadlines. The loop is not on the data path: it sleeps until the session's
    /// next deadline.
    pub(super) async fn run_timeouts(self: &Rc<Self>) -> SessionEnd {
        loop {
            let deadline = self.engine.session.view().poll_timeout();
            self.engine.deadline.until.set(deadline);
            match deadline {
                None => self.engine.deadline.too_late.notified().await,
                Some(deadline) => {
                    tokio::select! {
                        biased;
                        () = tokio::time::sleep_until(deadline.into()) => {}
                        () = self.engine.deadline.too_late.notified() => {}
                    }
                    if let Err(error) = self.try_update(|session| session.handle_timeout(now())) {
                        return error.into();
                    }
                }
            }
        }
    }
}
