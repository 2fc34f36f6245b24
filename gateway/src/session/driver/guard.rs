//! A panic in a task of a session ends that session, and nothing else.
//!
//! Guarded are the tasks of carriers, streams and dials, the session's own loops, and what an entry runs with them. The
//! state of a session that has panicked may be inconsistent, so it is not asked for anything any more: carriers and
//! streams are dropped without it.

use std::any::Any;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::task::Poll;

use muxtunnel_codes::Code;

use super::{Driver, SessionEnd};
use crate::base::closing::Reason;

impl Driver {
    /// Runs a task of the session.
    pub(crate) async fn guard(self: Rc<Self>, task: impl Future<Output = ()>) {
        if let Err(panic) = unwound(task).await {
            self.panicked(&panic);
        }
    }

    /// Drops all that the session has. The first panic counts.
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

/// Runs `task` to its end, or to its panic, whose message is returned.
pub(super) async fn unwound<T>(task: impl Future<Output = T>) -> Result<T, String> {
    let mut task = Box::pin(task);
    let polled = poll_fn(|cx| {
        caught(|| task.as_mut().poll(cx))
            .map_or_else(|panic| Poll::Ready(Err(panic)), |poll| poll.map(Ok))
    });
    polled.await
}

/// What `call` returns, or the message of its panic.
pub(super) fn caught<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|cause| message(&*cause))
}

fn message(cause: &(dyn Any + Send)) -> String {
    let text = cause.downcast_ref::<&str>().copied();
    let text = text.or_else(|| cause.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("without a message").to_owned()
}
