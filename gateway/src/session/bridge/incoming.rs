//! Streams that the peer opens: dials each target, then answers the open.

use std::rc::Rc;

use muxtunnel_codes::Code;
use muxtunnel_proto::{Reason, Refusal};

use super::Bridge;
use super::link::{Ask, Link};
use super::links::Member;
use super::room::Taken;
use super::stream::Joined;
use crate::net::dial::Dialled;
use crate::stream::account::Local;

impl<L: Link> Bridge<L> {
    /// Handles an open of the peer on this link.
    pub(super) fn asked(self: &Rc<Self>, member: &Rc<Member<L>>, ask: L::Ask) {
        member.heard();
        if self.has_ended() {
            return;
        }
        let streams_max = self.config.streams_max;
        if self.stream_count() >= streams_max as usize {
            let error = muxtunnel_proto::OpenError::TooManyStreams { streams_max };
            self.telemetry.streams.refused(Code::OpenFailed);
            return ask.refuse(&Refusal::new(Reason::General, error.to_string()));
        }
        let place = (self.number(), member.number, member.room.take());
        let bridge = Rc::clone(self);
        let number = place.0;
        let task = tokio::task::spawn_local(Rc::clone(self).guard(async move {
            bridge.dial(place, ask).await;
        }));
        self.engine
            .asking
            .borrow_mut()
            .insert(number, Some(task.abort_handle()));
    }

    async fn dial(self: &Rc<Self>, place: (u64, u64, Taken), mut ask: L::Ask) {
        let target = ask.target().to_owned();
        let dial = (self.dialler)(target.clone(), self.identity(), None);
        let dialled = tokio::select! {
            biased;
            () = ask.abandoned() => None,
            dialled = dial => Some(dialled),
        };
        let number = place.0;
        self.engine.asking.borrow_mut().remove(&number);
        match dialled {
            Some(Ok(dialled)) => return self.accept(place, ask, target, dialled).await,
            Some(Err(refusal)) => ask.refuse(&refusal),
            None => tracing::debug!(
                stream = number,
                "Stream was cut while its target was dialled"
            ),
        }
        drop(place);
        self.stream_ended();
    }

    async fn accept(
        self: &Rc<Self>,
        place: (u64, u64, Taken),
        ask: L::Ask,
        asked: String,
        dialled: Dialled,
    ) {
        let Dialled {
            socket,
            address,
            admission,
            url,
        } = dialled;
        let reached = address.to_string();
        let local = Local::Target {
            target: url.map_or(asked, |url| url.to_string()),
            address,
            admission,
        };
        match ask.accept(&reached) {
            Ok(halves) => {
                let io = Joined::new(place, &self.engine.unsent, socket, local, Vec::new());
                self.run_stream(Rc::new(io), halves).await;
            }
            Err(outcome) => {
                tracing::debug!(
                    stream = place.0,
                    ?outcome,
                    "Stream was cut before its answer"
                );
                drop(place);
                self.stream_ended();
            }
        }
    }
}
