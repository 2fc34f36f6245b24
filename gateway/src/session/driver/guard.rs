//! A panic in a task of a session ends only that session.
//!
//! The guard covers the tasks of carriers, streams and dials, the session's loops, and the tasks
//! that an entry runs for the session. After a panic the session's state may be inconsistent, so
//! the session is no longer used. The guard drops the session's carriers and streams without
//! calling the session.

use std::rc::Rc;

use muxtunnel_codes::Code;

use super::{Driver, SessionEnd};
use crate::base::closing::Reason;
use crate::base::unwind::unwound;

impl Driver {
    /// Runs a task of the session.
    pub(crate) async fn guard(self: Rc<Self>, task: impl Future<Output = ()>) {
        if let Err(panic) = unwound(task).await {
            self.panicked(&panic);
        }
    }

    /// Drops all carriers and streams of the session. Later panics have no effect.
    pub(super) fn panicked(self: &Rc<Self>, panic: &str) {
        if self.session.give_up() {
            return;
        }
        let (code, peer) = (Code::SessionPanicked, self.peer());
        tracing::error!(%code, %peer, panic, "Session ended by a fault of this gateway");
        self.telemetry.count_session_panic();
        self.ending.finish(SessionEnd::Panicked);
        self.share.close();
        self.stop_dialling();
        for carrier in self.carriers.all() {
            self.drop_carrier(&carrier);
        }
        for io in self.streams.all() {
            io.drop_with(Reason::Fault);
        }
        self.retention.clear(&self.telemetry);
        self.idle_wake.notify_waiters();
    }
}
