//! The two halves of a stream, and its end.
//!
//! The library keeps the state of each channel that this side closes before the peer does. So a
//! channel that is over waits for the peer's CLOSE, for as long as the peer's CLOSE can be on its
//! way. OpenSSH sends CLOSE by itself, except for the channel of `ssh -W`, which waits for the CLOSE
//! of this side (RFC 4254, section 5.3). Between two MuxTunnel gateways, the entry sends CLOSE.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes};
use muxtunnel_proto::{Outcome, ResetCode};

use super::Traffic;
use crate::io::ssh::Opened as Channel;
use crate::io::ssh::channels::{Chan, Cut, Queued};
use crate::io::ssh::events::Half;
use crate::session::bridge::link::{Held, Payload, Receiver, Sender, Unsent};
use crate::session::mux::Local;

/// Maximum time until the peer's CLOSE of a channel that is over.
const CLOSE_MAX: Duration = Duration::from_secs(5);
/// Time in which a peer sends CLOSE after it has received EOF, behind a device that hides a part of
/// the round trip.
const CLOSE_MIN: Duration = Duration::from_millis(250);

/// A channel that is closed after this value is dropped.
pub(super) struct Line {
    half: Rc<Half>,
    chan: Arc<Chan>,
    traffic: Rc<Traffic>,
}

impl Line {
    pub(super) fn new((half, chan): Channel, traffic: &Rc<Traffic>) -> Rc<Self> {
        traffic.open.set(traffic.open.get() + 1);
        Rc::new(Self {
            half: Rc::new(half),
            chan,
            traffic: Rc::clone(traffic),
        })
    }

    pub(super) fn halves(line: Rc<Self>) -> (Sending, Receiving) {
        let receiving = Receiving {
            line: Rc::clone(&line),
        };
        let sending = Sending {
            line,
            sending: None,
        };
        (sending, receiving)
    }

    fn cut(&self) -> Option<Outcome> {
        self.chan.why_cut().map(outcome)
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.chan.stop(None);
        let (half, chan) = (Rc::clone(&self.half), Arc::clone(&self.chan));
        // If this fails, the channel has ended with its connection.
        let _ = self.traffic.over.send(Over { half, chan });
    }
}

/// A channel whose stream has ended.
pub(super) struct Over {
    half: Rc<Half>,
    chan: Arc<Chan>,
}

impl Over {
    /// Closes the channel. If the channel is over and the peer has to send CLOSE first, the
    /// function waits for this CLOSE, and then sends its own.
    pub(super) async fn close(self, traffic: Rc<Traffic>) {
        let Self { half, chan } = self;
        if chan.is_over() && !traffic.closes {
            let closed = async {
                while !chan.is_closed() {
                    chan.sendable().await;
                }
            };
            let path = traffic.connection.path().and_then(|path| path.info().ok());
            // A gateway always sends CLOSE.
            let rtt = path.filter(|_| !traffic.connection.is_own());
            let wait = close_wait(rtt.map(|info| info.rtt));
            let _ = tokio::time::timeout(wait, closed).await;
        }
        if !chan.is_closed() {
            chan.close_first();
            half.close().await;
        }
        traffic.open.set(traffic.open.get() - 1);
    }
}

/// How long a channel that is over waits for the peer's CLOSE. The EOF of this side and the CLOSE
/// of the peer take a round trip, and either can wait for a retransmission.
fn close_wait(rtt: Option<Duration>) -> Duration {
    rtt.map_or(CLOSE_MAX, |rtt| (CLOSE_MIN + 2 * rtt).min(CLOSE_MAX))
}

const fn outcome(cut: Cut) -> Outcome {
    match cut {
        Cut::Closed => Outcome::PeerReset(ResetCode::Cancelled),
        Cut::Stalled => Outcome::Stalled,
        Cut::Lost => Outcome::CarrierLost,
    }
}

/// Payload that the library holds until it has encrypted the payload.
struct Piece {
    bytes: Vec<u8>,
    _held: Option<Held>,
    _queued: Queued,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The half that this side sends.
pub(crate) struct Sending {
    line: Rc<Line>,
    /// The send in progress, with the bytes that the library has not taken.
    sending: Option<Local<'static, Result<(), russh::Error>>>,
}

impl Sending {
    /// Waits until the library has taken the sent bytes.
    async fn settle(&mut self) -> Result<(), Outcome> {
        if let Some(sending) = &mut self.sending {
            let sent = poll_fn(|context| sending.as_mut().poll(context)).await;
            self.sending = None;
            sent.map_err(|_| Outcome::CarrierLost)?;
        }
        Ok(())
    }
}

/// Waits until this side can send nothing more.
async fn cut(line: &Line) -> Outcome {
    loop {
        if let Some(outcome) = line.cut() {
            return outcome;
        }
        line.chan.sendable().await;
    }
}

impl Sender for Sending {
    async fn capacity(&mut self, wanted: usize) -> Result<usize, Outcome> {
        let line = Rc::clone(&self.line);
        tokio::select! {
            biased;
            settled = self.settle() => settled?,
            outcome = cut(&line) => return Err(outcome),
        }
        line.chan.shared().may_queue().await;
        loop {
            if let Some(outcome) = line.cut() {
                return Err(outcome);
            }
            let room = line.half.writable().await;
            if room > 0 {
                return Ok(room.min(wanted));
            }
            line.chan.sendable().await;
        }
    }

    async fn send(&mut self, payload: Payload) -> Result<(), Outcome> {
        let bytes = payload.chunk().to_vec();
        let piece = Piece {
            _queued: self.line.chan.shared().queue(bytes.len()),
            _held: payload.unsent().map(Unsent::hold),
            bytes,
        };
        drop(payload);
        let (half, bytes) = (Rc::clone(&self.line.half), Bytes::from_owner(piece));
        self.sending = Some(Box::pin(async move { half.send(bytes).await }));
        Ok(())
    }

    fn rest(&mut self) {
        // No capacity is reserved.
    }

    fn finish(&mut self) -> Result<(), Outcome> {
        if let Some(outcome) = self.line.cut() {
            return Err(outcome);
        }
        let (line, sending) = (Rc::clone(&self.line), self.sending.take());
        let held = Unsent::hold(&line.traffic.unsent);
        drop(Rc::clone(&line).traffic.tasks.spawn(async move {
            let pass_on = async {
                if let Some(sending) = sending {
                    // If this fails, the connection has ended, which the other half notices.
                    let _ = sending.await;
                }
                line.half.finish().await;
                line.chan.finished();
            };
            tokio::select! {
                () = pass_on => {}
                _ = cut(&line) => {}
            }
            drop(held);
        }));
        Ok(())
    }

    async fn stopped(&mut self) -> Outcome {
        let line = Rc::clone(&self.line);
        tokio::select! {
            biased;
            outcome = cut(&line) => outcome,
            outcome = async {
                match self.settle().await {
                    Ok(()) => std::future::pending().await,
                    Err(outcome) => outcome,
                }
            } => outcome,
        }
    }

    /// Sends CLOSE without EOF, once the other half has stopped.
    fn reset(&mut self, _: ResetCode) {
        self.sending = None;
    }
}

/// The half that the peer sends.
pub(crate) struct Receiving {
    line: Rc<Line>,
}

impl Receiver for Receiving {
    type Payload = Bytes;

    async fn receive(&mut self) -> Result<Option<Bytes>, Outcome> {
        self.line.chan.receive().await.map_err(outcome)
    }

    fn took(&mut self, bytes: usize) {
        self.line.chan.took(bytes);
    }

    fn stop(&mut self, _: ResetCode) {
        self.line.chan.stop(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_close_of_a_peer_has_two_round_trips() {
        let wait = |milliseconds| close_wait(Some(Duration::from_millis(milliseconds)));
        assert_eq!(wait(0), CLOSE_MIN);
        assert_eq!(wait(300), Duration::from_millis(850));
        assert_eq!(wait(60_000), CLOSE_MAX);
        assert_eq!(close_wait(None), CLOSE_MAX);
    }
}
