//! The deadlines of a session.

use std::rc::Rc;

use super::{CarrierEnd, Driver, now};

impl Driver {
    /// Lets what is overdue fail. Not on the data path: it sleeps until the session's next deadline.
    pub(super) async fn run_timeouts(self: &Rc<Self>) -> CarrierEnd {
        loop {
            let deadline = self.session.view().poll_timeout();
            self.deadline.set(deadline);
            match deadline {
                None => self.timer_wake.notified().await,
                Some(deadline) => {
                    tokio::select! {
                        biased;
                        () = tokio::time::sleep_until(deadline.into()) => {}
                        () = self.timer_wake.notified() => {}
                    }
                    if let Err(error) = self.try_update(|session| session.handle_timeout(now())) {
                        return error.into();
                    }
                }
            }
        }
    }
}
