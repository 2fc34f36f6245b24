//! The end of a session: its last word, its streams, its carriers.

use std::cell::Cell;
use std::rc::Rc;

use muxtunnel_proto::Outcome;
use tokio::sync::Notify;

use super::carrier_out::gather_last_word;
use super::{Carrier, Driver, SessionEnd};
use crate::base::closing::Reason;

/// How far the end of a session has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Running,
    /// It takes no more of anything; what the session said last is handed on.
    Ended,
    /// Its streams are cut, too.
    Buried,
}

/// Whether, how and why a session ends.
pub(super) struct Ending {
    stage: Cell<Stage>,
    /// Why, for [`Driver::run`].
    end: Cell<Option<SessionEnd>>,
    /// Why its streams are cut, where that is this side's will.
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

    /// Why its streams are cut, where that is this side's will.
    pub(super) fn reason(&self) -> Option<Reason> {
        self.reason.get()
    }

    /// Waits until [`Driver::shut_down`] is called.
    pub(super) async fn asked(&self) {
        self.asked.notified().await;
    }

    /// Waits until it is over.
    pub(super) async fn done(&self) {
        self.done.notified().await;
    }

    /// Why it ended.
    pub(super) fn take(&self) -> SessionEnd {
        self.end.take().unwrap_or(SessionEnd::Closed)
    }

    /// Nothing is left to be done.
    pub(super) fn finish(&self, end: SessionEnd) {
        self.stage.set(Stage::Buried);
        self.end.set(Some(end));
        self.done.notify_one();
    }
}

impl Driver {
    /// Tells the peer, resets every stream and ends [`Self::run`].
    pub(crate) fn shut_down(&self) {
        self.ending.reason.set(Some(Reason::Drained));
        self.ending.asked.notify_one();
    }

    /// Resets every stream, refuses every open and ends [`Self::run`], since the other end will not be heard of again.
    pub(crate) fn give_up(self: &Rc<Self>, reason: String) {
        self.end(SessionEnd::GivenUp(reason), None);
    }

    /// Ends the session: its last word goes out, by `on` where it is to blame, every stream is reset and
    /// every carrier closed. The first end counts.
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
                | SessionEnd::Evicted
                | SessionEnd::Panicked => {}
            }
            if matches!(
                end,
                SessionEnd::Protocol(_) | SessionEnd::ShutDown | SessionEnd::Revoked(_)
            ) {
                // The session chooses on which one it says its last word; who is to blame hears it first.
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

    /// Once the session has ended and its events are handed on, what it did not say to be over is over, too: it may have
    /// ended without a carrier. Returns whether that was to be done.
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
