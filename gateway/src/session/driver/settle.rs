//! What follows from a change of the session: writers that are woken, figures that are published, and the next deadline.

use std::rc::Rc;

use super::{CarrierEnd, Driver, now};

impl Driver {
    pub(super) fn wake_transmit(&self) {
        if self.broken.get() {
            return;
        }
        let session = self.session.borrow();
        for (id, carrier) in &*self.carriers.borrow() {
            if session.wants_transmit(*id) {
                carrier.transmit_wake.notify_one();
            }
        }
    }

    /// Tells the status page, [`Self::run_timeouts`] when it sleeps too long, and those who wait for
    /// the session to be idle. Called once for all that was read or is to be written together.
    pub(super) fn publish(&self) {
        if self.broken.get() {
            return;
        }
        let session = self.session.borrow();
        let streams = session.stream_count() as u64;
        // Of several carriers one has the session's numbers, so that their sum is right.
        if let Some(carrier) = self.carriers.borrow().values().next() {
            let budget_used = session.receive_budget_used();
            carrier.stats.set_session(streams, budget_used);
        }
        if !self.ended.get() {
            self.count_retained(session.retained_bytes());
        }
        if streams == 0 {
            self.idle_wake.notify_waiters();
        }
        if let Some(deadline) = session.poll_timeout()
            && self.deadline.get().is_none_or(|until| deadline < until)
        {
            self.timer_wake.notify_one();
        }
    }

    pub(super) fn count_retained(&self, bytes: u64) {
        let before = self.retained_bytes.replace(bytes);
        self.telemetry.resumes.retains(before, bytes);
    }

    /// Lets what is overdue fail. Not on the data path: it sleeps until the session's next deadline.
    pub(super) async fn run_timeouts(self: &Rc<Self>) -> CarrierEnd {
        loop {
            let deadline = self.session.borrow().poll_timeout();
            self.deadline.set(deadline);
            match deadline {
                None => self.timer_wake.notified().await,
                Some(deadline) => {
                    tokio::select! {
                        biased;
                        () = tokio::time::sleep_until(deadline.into()) => {}
                        () = self.timer_wake.notified() => {}
                    }
                    let result = self.session.borrow_mut().handle_timeout(now());
                    if let Err(error) = result {
                        self.drain_events();
                        return error.into();
                    }
                    self.handle_events();
                }
            }
        }
    }
}
