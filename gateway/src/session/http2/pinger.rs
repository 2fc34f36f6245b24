//! PING (RFC 9113, section 6.7): checks that the peer is alive, and counts the payload of each
//! round trip. Devices on the path do not cut a connection that carries PINGs.
//!
//! At most one PING is unanswered at a time. A PING is sent at the start, while payload arrives,
//! after the configured time without payload, and on request. A peer that does not answer for
//! [`ANSWER_MAX`] counts as dead.

use std::future::poll_fn;
use std::io::{Error, ErrorKind};
use std::time::Duration;

use h2::{Ping, PingPong};
use muxtunnel_proto::patience;
use tokio::time::Instant;

use super::Traffic;
use crate::session::end::SessionEnd;

/// Maximum time until the peer answers a PING, on ordinary paths.
const ANSWER_MAX: Duration = Duration::from_secs(15);
/// If more than this number of payload bytes has arrived since the last PING, the next PING does
/// not wait for silence.
const WORTH_BYTES: u64 = 128 << 10;
/// Number of looks for received payload within the time of silence.
const LOOKS: u32 = 4;
/// Minimum time between two PINGs, since some peers limit the rate of PINGs.
const PAUSE_MIN: Duration = Duration::from_millis(10);

/// An answer of the peer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pong {
    /// Payload received since the PING.
    pub(super) received: u64,
    pub(super) took: Duration,
}

pub(super) struct Pinger {
    /// The library's handle; `None`: the library provides no PINGs.
    pings: Option<PingPong>,
    /// When the last PING was sent, and how much payload had been received by then.
    sent: Option<(Instant, u64)>,
    /// Whether the last PING is answered.
    answered: bool,
    /// The time after which a silent peer gets a PING.
    liveness: Duration,
    /// How much payload had been received at the last look, and the time of the first look that
    /// found so much.
    heard: (u64, Instant),
}

impl Pinger {
    pub(super) fn new(pings: Option<PingPong>, liveness: Duration) -> Self {
        Self {
            pings,
            sent: None,
            answered: true,
            liveness,
            heard: (0, Instant::now()),
        }
    }

    /// Waits until the next PING is due.
    async fn due(
        (heard, liveness): (&mut (u64, Instant), Duration),
        (at, received): (Instant, u64),
        traffic: &Traffic,
    ) {
        tokio::time::sleep_until(at + PAUSE_MIN).await;
        loop {
            let now = Instant::now();
            if heard.0 != traffic.received.get() {
                *heard = (traffic.received.get(), now);
            }
            let until = at.max(heard.1) + liveness;
            if now >= until {
                return;
            }
            let look = until.min(now + liveness / LOOKS);
            tokio::select! {
                () = traffic.received_more_than(received + WORTH_BYTES) => return,
                () = traffic.probe_due.notified() => return,
                () = tokio::time::sleep_until(look) => {}
            }
        }
    }

    /// Waits for the next answer. A caller may drop the future and call again.
    ///
    /// # Errors
    /// The peer did not answer in time.
    pub(super) async fn next(&mut self, traffic: &Traffic) -> Result<Pong, SessionEnd> {
        let Some(pings) = &mut self.pings else {
            return std::future::pending().await;
        };
        if self.answered {
            if let Some(sent) = self.sent {
                Self::due((&mut self.heard, self.liveness), sent, traffic).await;
            }
            // The call fails if a PING is unanswered. The call also fails if the connection has
            // ended, which the connection reports.
            let _ = pings.send_ping(Ping::opaque());
            self.sent = Some((Instant::now(), traffic.received.get()));
            self.answered = false;
        }
        let (at, before) = self.sent.unwrap_or((Instant::now(), 0));
        let pong = poll_fn(|context| pings.poll_pong(context));
        let limit = patience(ANSWER_MAX, traffic.round_trip());
        match tokio::time::timeout_at(at + limit, pong).await {
            Ok(Ok(_)) => {
                self.answered = true;
                traffic.pongs.set(traffic.pongs.get() + 1);
                let received = traffic.received.get() - before;
                let took = at.elapsed();
                Ok(Pong { received, took })
            }
            // The connection reports the reason.
            Ok(Err(_)) => std::future::pending().await,
            Err(_) => {
                let text = format!(
                    "the peer did not answer a PING within {} s",
                    limit.as_secs()
                );
                Err(SessionEnd::Io(Error::new(ErrorKind::TimedOut, text)))
            }
        }
    }
}

impl Traffic {
    /// Waits until more than `bytes` of payload have been received.
    async fn received_more_than(&self, bytes: u64) {
        while self.received.get() <= bytes {
            self.received_wake.notified().await;
        }
    }
}
