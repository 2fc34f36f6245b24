//! The end of a session: its last word, its streams, its carriers.

use std::rc::Rc;

use muxtunnel_proto::Outcome;

use super::carrier_out::gather_last_word;
use super::{Carrier, CarrierEnd, Driver};

impl Driver {
    /// Tells the peer, resets every stream and ends [`Self::run`].
    pub(crate) fn shut_down(&self) {
        self.was_shut_down.set(true);
        self.shutdown_wake.notify_one();
    }

    /// Resets every stream, refuses every open and ends [`Self::run`], since the other end will not be heard of again.
    pub(crate) fn give_up(self: &Rc<Self>, reason: String) {
        self.end(CarrierEnd::GivenUp(reason), None);
    }

    /// Ends the session: its last word goes out, by `on` where it is to blame, every stream is reset and
    /// every carrier closed. The first end counts.
    pub(super) fn end(self: &Rc<Self>, end: CarrierEnd, on: Option<&Rc<Carrier>>) {
        if self.ended.replace(true) {
            return;
        }
        self.share.close();
        self.was_shut_down.set(matches!(end, CarrierEnd::ShutDown));
        self.was_revoked.set(matches!(end, CarrierEnd::Revoked(_)));
        let carriers: Vec<_> = self.carriers.borrow().values().cloned().collect();
        self.update(|session| {
            match &end {
                CarrierEnd::Protocol(error) | CarrierEnd::Finished(error) => session.close(error),
                CarrierEnd::ShutDown | CarrierEnd::GivenUp(_) | CarrierEnd::Revoked(_) => {
                    session.shut_down();
                }
                CarrierEnd::Closed
                | CarrierEnd::Io(_)
                | CarrierEnd::Evicted
                | CarrierEnd::Panicked => {}
            }
            if matches!(
                end,
                CarrierEnd::Protocol(_) | CarrierEnd::ShutDown | CarrierEnd::Revoked(_)
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
            self.end.set(Some(end));
        });
    }

    /// Once the session has ended and its events are handed on, what it did not say to be over is over, too: it may have
    /// ended without a carrier. Returns whether that was to be done.
    pub(super) fn bury(self: &Rc<Self>) -> bool {
        if !self.ended.get() || self.buried.replace(true) {
            return false;
        }
        self.stop_dialling();
        let streams: Vec<_> = self.streams.borrow().keys().copied().collect();
        for stream in streams {
            if self.stream(stream).is_some_and(|io| !io.is_done()) {
                self.cut(stream, Outcome::CarrierLost);
            }
        }
        self.retained.borrow_mut().clear();
        self.count_retained(0);
        self.end_wake.notify_one();
        self.idle_wake.notify_waiters();
        true
    }
}
