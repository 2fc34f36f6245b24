//! One stream: a local end that is joined to a link's stream. One task runs both directions
//! ([`source`] and [`sink`]).
//!
//! A cut stream delivers the received bytes and then resets its local end, so that no application
//! mistakes the cut for an end of file.

mod sink;
mod source;

use std::cell::Cell;
use std::io::ErrorKind;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

use muxtunnel_proto::{Outcome, ResetCode};
use tokio::sync::Notify;

use super::Bridge;
use super::link::{Link, Receiver, Sender, Unsent};
use super::room::Taken;
use crate::base::closing::Reason;
use crate::io::local_end::LocalEnd;
use crate::stream::account::Local;
use crate::stream::life::Cut;
use crate::stream::local_stream::{CUT_DELIVERY_MAX, End, LocalStream};

pub(crate) struct Joined {
    local: LocalStream,
    pub(super) id: u64,
    /// The number of the stream's link.
    pub(super) link: u64,
    /// Bytes that were read from the client before the open, to be sent first.
    pub(super) early: Cell<Vec<u8>>,
    /// The stream's payload that was sent and that the library still holds.
    pub(super) unsent: Arc<Unsent>,
    cut_wake: Notify,
    /// The stream's place on its link.
    _place: Taken,
}

impl Deref for Joined {
    type Target = LocalStream;

    fn deref(&self) -> &LocalStream {
        &self.local
    }
}

impl Joined {
    /// A stream that both sides have accepted.
    pub(super) fn new(
        (id, link, place): (u64, u64, Taken),
        unsent: &Arc<Unsent>,
        socket: Box<dyn LocalEnd>,
        local: Local,
        early: Vec<u8>,
    ) -> Self {
        let local = LocalStream::new(socket, local, false);
        local.life.open();
        Self {
            local,
            id,
            link,
            early: Cell::new(early),
            unsent: Unsent::part_of(unsent),
            cut_wake: Notify::new(),
            _place: place,
        }
    }

    /// Cuts the stream because the peer cut it or its link ended. Received bytes are still
    /// delivered.
    pub(super) fn cut(&self, outcome: Outcome) {
        tracing::debug!(stream = self.id, ?outcome, "Stream was cut");
        self.end(Cut {
            deliver: true,
            ..Cut::at_once(outcome.into())
        });
    }

    /// Cuts the stream from this side. `error` is the failure of the local end, if any.
    pub(super) fn abandon(&self, reason: Reason, error: Option<ErrorKind>) {
        self.end(Cut {
            error,
            ..Cut::at_once(reason)
        });
    }

    /// Cuts the stream because the local end failed, and reports the cut to the peer.
    pub(super) fn fail(&self, error: &std::io::Error) -> End {
        tracing::debug!(stream = self.id, %error, "Local end failed");
        self.abandon(self.account.local_reset(), Some(error.kind()));
        End::Cut
    }

    fn end(&self, cut: Cut) {
        self.life.cut(cut);
        self.cut_wake.notify_waiters();
    }

    /// Waits until the stream is cut.
    pub(super) async fn is_cut(&self) {
        loop {
            let woken = self.cut_wake.notified();
            if self.life.is_over() {
                break;
            }
            woken.await;
        }
    }
}

/// An open stream in the session's table and in the figures. Dropping the value removes the stream,
/// also if its task has panicked.
struct Open<'a, L: Link> {
    bridge: &'a Bridge<L>,
    io: Rc<Joined>,
    is_reported: Cell<bool>,
}

impl<'a, L: Link> Open<'a, L> {
    fn begin(bridge: &'a Bridge<L>, io: &Rc<Joined>) -> Self {
        io.account.opened(&bridge.telemetry);
        bridge.streams.add(io.id, io);
        Self {
            bridge,
            io: Rc::clone(io),
            is_reported: Cell::new(false),
        }
    }

    /// Reports the end of the stream. `clean`: both directions ended in order.
    fn report(&self, clean: bool) {
        self.is_reported.set(true);
        let bridge = self.bridge;
        self.io.report(&bridge.telemetry, &bridge.peer(), clean);
    }
}

impl<L: Link> Drop for Open<'_, L> {
    fn drop(&mut self) {
        if !self.is_reported.get() {
            let (telemetry, peer) = (&self.bridge.telemetry, self.bridge.peer());
            let account = &self.io.account;
            account.closed(telemetry, &peer, Reason::Fault, None);
        }
        self.bridge.stream_gone(self.io.id);
    }
}

impl<L: Link> Bridge<L> {
    /// Runs an open stream to its end.
    pub(super) async fn run_stream(
        &self,
        io: Rc<Joined>,
        (mut sender, mut receiver): (L::Sender, L::Receiver),
    ) {
        let open = Open::begin(self, &io);
        self.count_up();
        self.idle_wake.notify_waiters();
        let sink = async {
            tokio::select! {
                biased;
                end = sink::run(self, &io, &mut receiver) => end,
                () = overdue(&io) => End::Cut,
            }
        };
        let (source, sink) = tokio::join!(source::run(self, &io, &mut sender), sink);
        let clean = source == End::Clean && sink == End::Clean && !io.life.is_over();
        if !clean {
            if io.life.why_cut().is_some_and(|cut| cut.error.is_some()) {
                // Lets the bytes that precede the local end's failure arrive before the cut.
                let _ = tokio::time::timeout(CUT_DELIVERY_MAX, io.unsent.none()).await;
            }
            let reset = |cut: Cut| cut.reason.reset_code();
            let code = io.life.why_cut().map_or(ResetCode::Cancelled, reset);
            sender.reset(code);
            receiver.stop(code);
        }
        open.report(clean);
        io.local.end(clean).await;
        drop((open, io));
        self.stream_ended();
    }

    /// Updates the session after a stream has ended.
    pub(super) fn stream_ended(&self) {
        for member in self.carriers.all() {
            self.end_empty(&member);
        }
        self.has_room();
        self.idle_wake.notify_waiters();
    }
}

/// Waits until the stream is cut and has no more time to deliver its received bytes:
/// [`CUT_DELIVERY_MAX`] after the cut, or at once if the cut forbids delivery.
async fn overdue(io: &Joined) {
    io.is_cut().await;
    if io.delivers() {
        tokio::time::sleep(CUT_DELIVERY_MAX).await;
    }
}
