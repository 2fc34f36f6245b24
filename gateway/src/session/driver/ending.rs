//! The end of a session: its close frame, its streams and its carriers.

use std::cell::Cell;
use std::rc::Rc;

use muxtunnel_proto::Outcome;
use tokio::sync::Notify;

use super::carrier_out::gather_last_word;
use super::{Carrier, Driver, SessionEnd};
use crate::base::closing::Reason;

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
pub(super) struct Ending {
    stage: Cell<Stage>,
    /// The reason of the end, which [`Driver::run`] returns.
    end: Cell<Option<SessionEnd>>,
    /// Why this side cuts the streams; `None`: the peer or a lost carrier ended the streams.
    reason: Cell<Option<Reason>>,
    asked: Notify,
    done: Notify,
}

impl Ending {
    pub(super) fn new() -> Self {
        Self {
            stage: Cell::new(Stage::Running),
            end: Cell::new(None),
            reason: Cell::new(None),
            asked: Notify::new(),
            done: Notify::new(),
        }
    }

    pub(super) fn has_begun(&self) -> bool {
        self.stage.get() != Stage::Running
    }

    /// Why this side cuts the streams; `None`: the peer or a lost carrier ended the streams.
    pub(super) fn reason(&self) -> Option<Reason> {
        self.reason.get()
    }

    /// Waits until [`Driver::shut_down`] is called.
    pub(super) async fn asked(&self) {
        self.asked.notified().await;
    }

    /// Waits until the session is over.
    pub(super) async fn done(&self) {
        self.done.notified().await;
    }

    /// The reason of the end.
    pub(super) fn take(&self) -> SessionEnd {
        self.end.take().unwrap_or(SessionEnd::Closed)
    }

    pub(super) fn finish(&self, end: SessionEnd) {
        self.stage.set(Stage::Buried);
        self.end.set(Some(end));
        self.done.notify_one();
    }
}

impl Driver {
    /// Announces the end to the peer, resets every stream and ends [`Self::run`].
    pub(crate) fn shut_down(&self) {
        self.ending.reason.set(Some(Reason::Drained));
        self.ending.asked.notify_one();
    }

    /// Resets every stream, refuses every open and ends [`Self::run`], since the peer no longer
    /// responds.
    pub(crate) fn give_up(self: &Rc<Self>, reason: String) {
        self.end(SessionEnd::GivenUp(reason), None);
    }

    /// Ends the session: sends its close frame, resets every stream and closes every carrier. `on`
    /// is the carrier that caused the end; that carrier sends the close frame if possible. Only the
    /// first call sets the reason.
    pub(super) fn end(self: &Rc<Self>, end: SessionEnd, on: Option<&Rc<Carrier>>) {
        if self.ending.has_begun() {
            return;
        }
        self.ending.stage.set(Stage::Ended);
        self.ending.reason.set(match end {
            SessionEnd::ShutDown => Some(Reason::Drained),
            SessionEnd::Revoked(_) => Some(Reason::Revoked),
            SessionEnd::Closed
            | SessionEnd::Io(_)
            | SessionEnd::Refused(_)
            | SessionEnd::Protocol(_)
            | SessionEnd::Finished(_)
            | SessionEnd::GivenUp(_)
            | SessionEnd::Evicted
            | SessionEnd::Panicked => None,
        });
        self.share.close();
        let carriers = self.carriers.all();
        self.update(|session| {
            match &end {
                SessionEnd::Protocol(error) | SessionEnd::Finished(error) => session.close(error),
                SessionEnd::ShutDown | SessionEnd::GivenUp(_) | SessionEnd::Revoked(_) => {
                    session.shut_down();
                }
                SessionEnd::Closed
                | SessionEnd::Io(_)
                | SessionEnd::Refused(_)
                | SessionEnd::Evicted
                | SessionEnd::Panicked => {}
            }
            if matches!(
                end,
                SessionEnd::Protocol(_) | SessionEnd::ShutDown | SessionEnd::Revoked(_)
            ) {
                // The session chooses the carrier for its close frame. The carrier that caused the
                // end is tried first.
                let running = carriers.iter().filter(|carrier| carrier.is_running());
                on.into_iter()
                    .chain(running)
                    .for_each(|carrier| gather_last_word(session, carrier));
            }
            for carrier in &carriers {
                carrier.lose(session);
                carrier.close();
            }
            self.ending.end.set(Some(end));
        });
    }

    /// After the end of the session and its last events, cuts the streams that are still open. For
    /// example, a session that ended without a carrier does not report the ends of its streams.
    /// Returns whether this call cut the streams.
    pub(super) fn bury(self: &Rc<Self>) -> bool {
        if self.ending.stage.get() != Stage::Ended {
            return false;
        }
        self.ending.stage.set(Stage::Buried);
        self.stop_dialling();
        for io in self.streams.all() {
            if !io.is_done() {
                self.cut(io.id, Outcome::CarrierLost);
            }
        }
        self.retention.clear(&self.telemetry);
        self.ending.done.notify_one();
        self.idle_wake.notify_waiters();
        true
    }
}
