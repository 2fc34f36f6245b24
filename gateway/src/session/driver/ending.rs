//! The end of a session: its close frame, its streams and its carriers.

use std::rc::Rc;

use muxtunnel_proto::{Outcome, StreamId};

use super::carrier_out::gather_last_word;
use super::{Carrier, Driver, SessionEnd};
use crate::base::closing::Reason;
use crate::stream::local_stream::CUT_DELIVERY_MAX;

impl Driver {
    /// Ends the session: sends its close frame, cuts its streams and closes every carrier. `on`
    /// is the carrier that caused the end; that carrier sends the close frame if possible. Only the
    /// first call has an effect.
    pub(super) fn end_on(self: &Rc<Self>, end: SessionEnd, on: Option<&Rc<Carrier>>) {
        let says_why = matches!(
            end,
            SessionEnd::Protocol(_) | SessionEnd::ShutDown | SessionEnd::Revoked(_)
        );
        let error = match &end {
            SessionEnd::Protocol(error) | SessionEnd::Finished(error) => Some(error.clone()),
            _ => None,
        };
        let shuts_down = matches!(
            end,
            SessionEnd::ShutDown | SessionEnd::GivenUp(_) | SessionEnd::Revoked(_)
        );
        if !self.begin_end(end) {
            return;
        }
        let carriers = self.carriers.all();
        self.update(|session| {
            if let Some(error) = &error {
                session.close(error);
            } else if shuts_down {
                session.shut_down();
            }
            if says_why {
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
        });
    }

    /// After the end of the session and its last events, cuts the streams of which a half has not
    /// ended. For example, a session that ended without a carrier does not report the ends of its
    /// streams. The other streams still deliver their received bytes, for at most
    /// [`CUT_DELIVERY_MAX`].
    /// Returns whether this call was the first.
    pub(super) fn bury(self: &Rc<Self>) -> bool {
        if !self.ending.bury() {
            return false;
        }
        self.stop_dialling();
        let mut delivering = Vec::new();
        for io in self.streams.all() {
            if !io.has_ended() {
                self.cut(io.id, Outcome::CarrierLost);
            } else if !io.is_done() {
                delivering.push(io.id);
            }
        }
        if !delivering.is_empty() {
            let driver = Rc::clone(self);
            tokio::task::spawn_local(Rc::clone(self).guard(async move {
                driver.end_delivery(delivering).await;
            }));
        }
        self.engine.retention.clear(&self.telemetry);
        self.idle_wake.notify_waiters();
        true
    }

    /// After the end of the session, cuts those of the `delivering` streams whose local sockets have
    /// not taken the received bytes in time.
    async fn end_delivery(&self, delivering: Vec<StreamId>) {
        if self.streams_gone(CUT_DELIVERY_MAX).await {
            return;
        }
        let reason = self.ending.reason().unwrap_or(Reason::CarrierLost);
        for io in delivering.into_iter().filter_map(|id| self.stream(id)) {
            io.give_up(reason);
        }
    }

    /// Drops all carriers and streams of a session of which a task has panicked, without calling
    /// the session.
    pub(super) fn drop_all(self: &Rc<Self>) {
        self.begin_end(SessionEnd::Panicked);
        self.ending.bury();
        self.stop_dialling();
        for carrier in self.carriers.all() {
            self.drop_carrier(&carrier);
        }
        for io in self.streams.all() {
            io.drop_with(Reason::Fault);
        }
        self.engine.retention.clear(&self.telemetry);
        self.idle_wake.notify_waiters();
    }
}
