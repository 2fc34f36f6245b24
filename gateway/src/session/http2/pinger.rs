//! PING (RFC 9113, section 6.7): is the peer there, and what does a round trip bring?
//!
//! One at a time: at first, while payload comes, and after [`SILENCE_MAX`]. A peer that does not answer for
//! [`ANSWER_MAX`] is gone.

use std::future::poll_fn;
use std::io::{Error, ErrorKind};
use std::time::Duration;

use h2::{Ping, PingPong};
use tokio::time::Instant;

use super::Traffic;
use crate::session::end::SessionEnd;

/// After so long without a PING there is another one, whatever comes.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// How long the answer may take.
const ANSWER_MAX: Duration = Duration::from_secs(15);
/// Payload that makes a PING worth its while.
const WORTH_BYTES: u64 = 128 << 10;
/// Between two of them, for peers that count PINGs.
const PAUSE_MIN: Duration = Duration::from_millis(10);

/// The peer has answered.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pong {
    /// Payload that came since the PING.
    pub(super) received: u64,
    /// How long ago that was.
    pub(super) took: Duration,
}

/// The PINGs of one connection.
pub(super) struct Pinger {
    /// `None`: the library has none.
    pings: Option<PingPong>,
    /// When the last one left, and what had come by then.
    sent: Option<(Instant, u64)>,
    /// It is answered.
    answered: bool,
}

impl Pinger {
    pub(super) fn new(pings: Option<PingPong>) -> Self {
        Self {
            pings,
            sent: None,
            answered: true,
        }
    }

    /// Waits for the next answer. May be dropped and called again.
    ///
    /// # Errors
    /// The peer is gone.
    pub(super) async fn next(&mut self, traffic: &Traffic) -> Result<Pong, SessionEnd> {
        let Some(pings) = &mut self.pings else {
            return std::future::pending().await;
        };
        if self.answered {
            if let Some((at, received)) = self.sent {
                tokio::time::sleep_until(at + PAUSE_MIN).await;
                let enough = traffic.received_more_than(received + WORTH_BYTES);
                let _ = tokio::time::timeout_at(at + SILENCE_MAX, enough).await;
            }
            // Else one is on its way, or the connection has ended, which it says itself.
            let _ = pings.send_ping(Ping::opaque());
            self.sent = Some((Instant::now(), traffic.received.get()));
            self.answered = false;
        }
        let (at, before) = self.sent.unwrap_or((Instant::now(), 0));
        let pong = poll_fn(|context| pings.poll_pong(context));
        match tokio::time::timeout_at(at + ANSWER_MAX, pong).await {
            Ok(Ok(_)) => {
                self.answered = true;
                let received = traffic.received.get() - before;
                let took = at.elapsed();
                Ok(Pong { received, took })
            }
            // The connection says why.
            Ok(Err(_)) => std::future::pending().await,
            Err(_) => {
                let text = format!("no answer to a PING within {} s", ANSWER_MAX.as_secs());
                Err(SessionEnd::Io(Error::new(ErrorKind::TimedOut, text)))
            }
        }
    }
}

impl Traffic {
    /// Waits until more payload than that has come.
    async fn received_more_than(&self, bytes: u64) {
        while self.received.get() <= bytes {
            self.received_wake.notified().await;
        }
    }
}
