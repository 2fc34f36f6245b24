//! The end of a session.

use std::cell::Cell;
use std::time::Duration;

use tokio::sync::Notify;

use crate::base::closing::Reason;
use crate::session::end::SessionEnd;

use super::{LAST_WORD_MAX, LINGER_MAX};

/// The stages of a session's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Running,
    /// The session accepts no further input. Its last events are still to be handled.
    Ended,
    /// The streams are also cut.
    Buried,
}

/// Whether and why a session ends.
pub(crate) struct Ending {
    stage: Cell<Stage>,
    /// The reason of the end.
    end: Cell<Option<SessionEnd>>,
    /// Why this side cuts the streams; `None`: the peer or a lost carrier ended the streams.
    reason: Cell<Option<Reason>>,
    /// How long each carrier may take to end.
    last_word_max: Cell<Duration>,
    begun: Notify,
}

impl Ending {
    pub(super) fn new() -> Self {
        Self {
            stage: Cell::new(Stage::Running),
            end: Cell::new(None),
            reason: Cell::new(None),
            last_word_max: Cell::new(LAST_WORD_MAX),
            begun: Notify::new(),
        }
    }

    /// Begins the end. `drained`: the session ends in order, and has no stream. Returns whether this
    /// call was the first; only the first call has an effect.
    pub(super) fn begin(&self, end: SessionEnd, drained: bool) -> bool {
        let is_first = !self.has_begun();
        if is_first {
            if drained {
                self.last_word_max.set(LINGER_MAX);
            }
            self.stage.set(Stage::Ended);
            self.reason.set(cut_reason(&end));
            self.end.set(Some(end));
            self.begun.notify_waiters();
        }
        is_first
    }

    /// Records that the streams are cut. Returns whether this call was the first after
    /// [`Self::begin`].
    pub(crate) fn bury(&self) -> bool {
        let is_first = self.stage.get() == Stage::Ended;
        if is_first {
            self.stage.set(Stage::Buried);
        }
        is_first
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.stage.get() != Stage::Running
    }

    /// Waits until the end has begun.
    pub(crate) async fn begun(&self) {
        loop {
            let woken = self.begun.notified();
            if self.has_begun() {
                break;
            }
            woken.await;
        }
    }

    /// Why this side cuts the streams; `None`: the peer or a lost carrier ended the streams.
    pub(crate) fn reason(&self) -> Option<Reason> {
        self.reason.get()
    }

    /// How long each carrier may take to end: the time in which the peer reads the last bytes and
    /// closes the carrier.
    pub(crate) fn last_word_max(&self) -> Duration {
        self.last_word_max.get()
    }

    /// The reason of the end.
    pub(super) fn take(&self) -> SessionEnd {
        self.end.take().unwrap_or(SessionEnd::Closed)
    }
}

/// Why this side cuts the streams of a session that ends for `end`.
const fn cut_reason(end: &SessionEnd) -> Option<Reason> {
    match end {
        SessionEnd::ShutDown => Some(Reason::Drained),
        SessionEnd::Revoked(_) => Some(Reason::Revoked),
        SessionEnd::Panicked => Some(Reason::Fault),
        SessionEnd::Closed
        | SessionEnd::Io(_)
        | SessionEnd::Refused(_)
        | SessionEnd::Protocol(_)
        | SessionEnd::Finished(_)
        | SessionEnd::GivenUp(_)
        | SessionEnd::Evicted => None,
    }
}
