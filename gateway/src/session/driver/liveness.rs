//! Detects a dead peer, and keeps a silent carrier in use.
//!
//! The kernel probes a TCP connection ([`Path::prepare`](crate::io::transport::Path::prepare)). The
//! kernel reaches only the other end of the connection, which may be a proxy or a load balancer.
//! Such a device cuts silent connections, and hides that the peer has vanished. Behind a pipe or a
//! Unix socket, the kernel probes nothing. So the driver probes each silent carrier itself, and
//! gives the carrier up if no answer arrives. The probes are not on the data path: the driver
//! compares counters every [`TICK`].
//!
//! A peer that does not know probes, such as jetsocat, gets a frame without effect instead.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::rc::Rc;
use std::time::{Duration, Instant};

use muxtunnel_proto::{CarrierId, patience};

use super::stream::StreamIo;
use super::{Carrier, Driver, SessionEnd, now};
use crate::io::socket::KeepaliveConfig;
use crate::session::mux::Progress;

/// Interval of the checks.
const TICK: Duration = Duration::from_secs(1);
/// A carrier is silent after this time if a peer leaves an open without an answer, and on
/// carriers that the kernel does not probe. Otherwise the time is configured.
const SILENCE_OF_NOTE: Duration = Duration::from_secs(5);
/// Maximum time for the answer to a probe, on ordinary paths.
const ANSWER_MAX: Duration = Duration::from_secs(15);
/// An answer may take this many times as long as the longest answer so far.
const SPREAD: u32 = 3;

/// State of a carrier at the previous check.
#[derive(Debug, Clone, Copy)]
struct Heard {
    /// [`Carrier::progress`].
    count: u64,
    /// The time of the check that found this count.
    at: Instant,
    /// The time of the last frame without effect.
    stirred: Option<Instant>,
    /// The longest time from a probe to the next byte.
    slowest: Duration,
}

impl Heard {
    fn new(count: u64, at: Instant) -> Self {
        Self {
            count,
            at,
            stirred: None,
            slowest: Duration::ZERO,
        }
    }

    /// Records what the carrier has received. `asked` is the time of the last answered request.
    fn follow(&mut self, count: u64, asked: Option<Instant>, now: Instant) {
        if count == self.count {
            return;
        }
        let took = asked.map(|asked| now.saturating_duration_since(asked));
        *self = Self {
            slowest: self.slowest.max(took.unwrap_or_default()),
            ..Self::new(count, now)
        };
    }
}

/// Sends probes as long as the session runs.
pub(super) async fn run(driver: &Rc<Driver>) -> Infallible {
    driver.reached(Progress::Ready).await;
    let mut heard = BTreeMap::new();
    loop {
        tokio::time::sleep(TICK).await;
        driver.check_liveness(&mut heard);
    }
}

impl Driver {
    fn check_liveness(self: &Rc<Self>, heard: &mut BTreeMap<CarrierId, Heard>) {
        let (now, carriers) = (now(), self.carriers.all());
        let is_checked = |carrier: &&Rc<Carrier>| carrier.is_up();
        heard.retain(|id, _| carriers.iter().any(|carrier| carrier.id == *id));
        for carrier in carriers.iter().filter(is_checked) {
            let count = carrier.progress();
            let heard = heard
                .entry(carrier.id)
                .or_insert_with(|| Heard::new(count, now));
            heard.follow(count, carrier.take_answered(), now);
            if let Some(reason) = self.check_silence(carrier, heard, now) {
                carrier.distrust(SessionEnd::GivenUp(reason));
            }
        }
    }

    /// Probes the carrier if it is silent. Returns the reason if the peer counts as dead.
    fn check_silence(
        self: &Rc<Self>,
        carrier: &Carrier,
        heard: &mut Heard,
        now: Instant,
    ) -> Option<String> {
        let path = carrier.transport.path();
        if let Some(path) = path {
            // A failure means that the connection has ended, which the reader notices.
            let _ = path.follow(KeepaliveConfig::of(&self.config));
        }
        let silence = now.saturating_duration_since(heard.at);
        let configured = self.config.liveness;
        let is_asked = || path.is_none() || self.streams.any(StreamIo::is_unanswered);
        let may_be_dead = silence >= SILENCE_OF_NOTE.min(configured) && is_asked();
        let is_due = may_be_dead || silence >= configured;
        if carrier.unanswered_since().is_none() && !is_due {
            return None;
        }
        let may_stir = heard.stirred.is_none_or(|at| now - at >= configured);
        if !self.ask_on(carrier) && may_stir {
            heard.stirred = Some(now);
            self.update(|session| session.stir(carrier.id));
        }
        let round_trip = carrier.transport.round_trip().unwrap_or_default();
        let limit = patience(ANSWER_MAX, round_trip).max(heard.slowest * SPREAD);
        let since = match carrier.unanswered_since() {
            Some(asked) => asked,
            // The peer answers no probe. Without an open stream, nothing is lost by another dial.
            None if may_be_dead && path.is_some() && !self.streams.any(|io| io.is_open()) => {
                heard.at
            }
            None => return None,
        };
        (now.saturating_duration_since(since) >= limit).then(|| {
            format!(
                "the peer sent no bytes for {} s, and did not answer",
                silence.as_secs()
            )
        })
    }
}
