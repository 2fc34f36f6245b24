//! The transports of an entry's carriers: either a single transport, or the best of several
//! transports that the path permits.
//!
//! The entry finds available transports by dialling, as in Happy Eyeballs (RFC 8305). The entry
//! dials the transport that worked last, and after [`NEXT_AFTER`] also the next transport. The
//! entry uses the first transport that connects. A transport that did not connect in time moves to
//! a later position in the order of dialling. After a pause the entry restores the original order,
//! since the path may have recovered. Under load, if the present transport loses data or is KCP, a
//! [trial](super::trial) checks whether another transport has a higher throughput.

use std::cell::{Cell, RefCell};
use std::io::Result;
use std::pin::pin;
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use muxtunnel_gateway_config::Transport;
use muxtunnel_gateway_config::status::CarrierTransport;
use tokio::time::{Instant, timeout};

/// After this time without a result, the next transport is also dialled (section 5, "Connection
/// Attempt Delay").
const NEXT_AFTER: Duration = Duration::from_millis(250);
/// Timeout of a second dial over the first transport, if its first dial failed and another
/// transport has connected.
const FIRST_AGAIN_MAX: Duration = Duration::from_secs(1);
/// Pause before an unsuccessful transport is tried again. The pause doubles up to [`AGAIN_MAX`].
const AGAIN: Duration = Duration::from_secs(300);
/// Maximum pause before an unsuccessful transport is tried again.
const AGAIN_MAX: Duration = Duration::from_secs(7200);

/// The transports that the carriers of one worker may use.
#[derive(Debug)]
pub(super) struct Ways {
    /// At least one transport, in the preferred order. The preferred order is the configured order,
    /// except that trials move KCP. A trial moves KCP directly before or directly after the
    /// transport with which it compared KCP.
    wanted: RefCell<Vec<CarrierTransport>>,
    /// The same transports, starting with the transport to dial first.
    all: RefCell<Vec<CarrierTransport>>,
    /// Transports that connected but on which the exit did not answer. The list never contains all
    /// transports. The entry dials these transports after all others have failed. Otherwise a
    /// connection that a firewall accepts and then closes would win the race, because it needs
    /// fewer round trips than others.
    doubted: RefCell<Vec<CarrierTransport>>,
    /// The time of the next comparison with another transport.
    trial: Pause,
    /// The time at which the preferred order is restored, if another order is in use.
    back: Pause,
}

/// The time of the next attempt.
#[derive(Debug, Default)]
struct Pause {
    /// The earliest time; `None`: any time.
    until: Cell<Option<Instant>>,
    /// Number of consecutive unsuccessful attempts.
    in_vain: Cell<u32>,
}

impl Pause {
    fn is_over(&self, now: Instant) -> bool {
        self.until.get().is_none_or(|until| until <= now)
    }

    /// Removes the record of the previous attempt.
    fn take_back(&self) {
        self.in_vain.set(self.in_vain.get().saturating_sub(1));
        self.until.set(None);
    }

    /// Records an attempt. `of_use`: whether the attempt was successful.
    fn begin(&self, of_use: bool, now: Instant) {
        let in_vain = if of_use {
            0
        } else {
            self.in_vain.get().saturating_add(1)
        };
        self.in_vain.set(in_vain);
        let pause = AGAIN.saturating_mul(1 << in_vain.saturating_sub(1).min(10));
        self.until.set(Some(now + pause.min(AGAIN_MAX)));
    }
}

impl Ways {
    /// Returns the configured transports. `upgrades`: whether transport Auto may choose WebSocket. `datagrams`:
    /// whether datagrams can reach exits.
    pub(super) fn of(transport: Transport, upgrades: bool, datagrams: bool) -> Self {
        let all = match transport {
            Transport::WebSocket => vec![CarrierTransport::WebSocket],
            Transport::Tcp => vec![CarrierTransport::Tcp],
            Transport::Kcp => vec![CarrierTransport::Kcp],
            Transport::Auto => [
                (CarrierTransport::Tcp, true),
                (CarrierTransport::Kcp, datagrams),
                (CarrierTransport::WebSocket, upgrades),
            ]
            .into_iter()
            .filter_map(|(way, may)| may.then_some(way))
            .collect(),
        };
        Self {
            wanted: RefCell::new(all.clone()),
            all: RefCell::new(all),
            doubted: RefCell::default(),
            trial: Pause::default(),
            back: Pause::default(),
        }
    }

    /// All transports, in the order of dialling.
    pub(super) fn in_turn(&self) -> Vec<CarrierTransport> {
        self.all.borrow().clone()
    }

    /// Whether there is more than one transport.
    pub(super) fn are_several(&self) -> bool {
        self.all.borrow().len() > 1
    }

    /// Records that the transport connected, but that the exit did not answer on it. The transport
    /// is dialled last from now on.
    pub(super) fn unheard(&self, way: CarrierTransport, now: Instant) {
        let (mut all, mut doubted) = (self.all.borrow_mut(), self.doubted.borrow_mut());
        let Some(at) = all.iter().position(|one| *one == way) else {
            return;
        };
        all[at..].rotate_left(1);
        if !doubted.contains(&way) {
            doubted.push(way);
        }
        if all.iter().all(|way| doubted.contains(way)) {
            doubted.clear();
        }
        self.depart(now);
    }

    /// Records that the exit answered on `way`.
    pub(super) fn heard(&self, way: CarrierTransport) {
        let (wanted, mut doubted) = (self.wanted.borrow(), self.doubted.borrow_mut());
        doubted.retain(|one| *one != way);
        if wanted.first() != Some(&way) {
            return;
        }
        self.back.in_vain.set(0);
        if doubted.is_empty() {
            self.back.until.set(None);
            self.all.borrow_mut().clone_from(&wanted);
        }
    }

    /// Records that the preferred order is no longer in use.
    fn depart(&self, now: Instant) {
        if self.back.until.get().is_none() {
            self.back.begin(false, now);
        }
    }

    /// Restores the preferred order if it is due at `now`.
    fn come_back(&self, now: Instant) {
        if self.back.until.get().is_some_and(|until| until <= now) {
            self.back.until.set(None);
            self.doubted.borrow_mut().clear();
            self.all.borrow_mut().clone_from(&self.wanted.borrow());
        }
    }

    /// The transports to which a session may return from `present` at `now`. If `present` is
    /// WebSocket, these are the transports that are preferred to WebSocket, since WebSocket is for
    /// paths that block all other transports. Otherwise the list is empty: between KCP and TCP, a
    /// trial decides.
    pub(super) fn to_return_to(
        &self,
        present: CarrierTransport,
        now: Instant,
    ) -> Vec<CarrierTransport> {
        if present != CarrierTransport::WebSocket || !self.back.is_over(now) {
            return Vec::new();
        }
        let wanted = self.wanted.borrow();
        let before = wanted.iter().take_while(|way| **way != present);
        before.copied().collect()
    }

    /// Records that the transports of [`Self::to_return_to`] are being tried at `now`, so that
    /// other sessions do not try them.
    pub(super) fn returning(&self, now: Instant) {
        self.back.begin(false, now);
    }

    /// Records that a session has returned to `way`.
    pub(super) fn returned(&self, way: CarrierTransport) {
        self.prefer(way, "the transport is available again");
        self.heard(way);
    }

    /// The transport to compare with `present`, if a trial is due. A trial always compares KCP with
    /// another transport, since only KCP does not treat loss as congestion.
    pub(super) fn to_try(
        &self,
        present: CarrierTransport,
        now: Instant,
    ) -> Option<CarrierTransport> {
        if !self.trial.is_over(now) {
            return None;
        }
        let others = self.in_turn();
        let by_kcp = |way: CarrierTransport| way == CarrierTransport::Kcp;
        others
            .into_iter()
            .find(|way| *way != present && by_kcp(*way) != by_kcp(present))
    }

    /// Records that a trial ended at `now`. `changed`: whether another transport had a higher
    /// throughput.
    pub(super) fn tried(&self, changed: bool, now: Instant) {
        self.trial.begin(changed, now);
    }

    /// Records that a trial was cancelled without a result.
    pub(super) fn untried(&self) {
        self.trial.take_back();
    }

    /// Records that `way` had a higher throughput than the present transport. `why` describes the
    /// measurement.
    pub(super) fn carried_more(&self, way: CarrierTransport, why: &str) {
        {
            let mut wanted = self.wanted.borrow_mut();
            let kcp = CarrierTransport::Kcp;
            let others = wanted.iter().filter(|one| **one != kcp);
            let mut order: Vec<_> = others.copied().collect();
            let behind = order.iter().position(|one| *one == way);
            order.insert(behind.map_or(0, |at| at + 1), kcp);
            *wanted = order;
        }
        self.prefer(way, why);
        self.heard(way);
    }

    /// Dials `way` first from now on. `why` is the reason.
    fn prefer(&self, way: CarrierTransport, why: &str) {
        let mut all = self.all.borrow_mut();
        if let Some(at) = all.iter().position(|one| *one == way).filter(|at| *at > 0) {
            all[..=at].rotate_right(1);
            tracing::info!(transport = %way, why, "Carriers now use another transport");
        }
    }

    /// Records that a dial over `way` was successful.
    fn came_up(&self, way: CarrierTransport) {
        let why =
            "the entry dialled another transport first, which failed or did not connect in time";
        self.prefer(way, why);
        if self.wanted.borrow().first() != Some(&way) {
            self.depart(Instant::now());
        }
    }

    /// Dials over the transports until one connects, and returns that transport. If the dial over
    /// the first transport has failed by then, the function dials the first transport once more,
    /// and prefers it if it connects.
    ///
    /// # Errors
    /// No transport connected. The error is the error of the dial that failed first.
    pub(super) async fn dial<T, F: Future<Output = Result<T>>>(
        &self,
        dial: impl Fn(CarrierTransport) -> F,
    ) -> Result<(CarrierTransport, T)> {
        self.come_back(Instant::now());
        let (doubted, ways): (Vec<_>, Vec<_>) = {
            let doubted = self.doubted.borrow();
            let ways = self.in_turn().into_iter();
            ways.partition(|way| doubted.contains(way))
        };
        let first = ways.first().copied();
        let (mut ways, mut doubted) = (ways.into_iter(), doubted.into_iter());
        let mut dials = FuturesUnordered::new();
        let attempt = |way| {
            let dialled = dial(way);
            async move { (way, dialled.await) }
        };
        let mut first_error = None;
        let mut first_failed = false;
        loop {
            if dials.is_empty() {
                let Some(way) = ways.next().or_else(|| doubted.next()) else {
                    return Err(first_error
                        .unwrap_or_else(|| std::io::Error::other("no transport is available")));
                };
                dials.push(attempt(way));
            }
            let mut next = pin!(tokio::time::sleep(NEXT_AFTER));
            let dialled = loop {
                tokio::select! {
                    Some(dialled) = dials.next() => break dialled,
                    () = &mut next, if ways.len() > 0 => {
                        dials.extend(ways.next().map(attempt));
                        next.set(tokio::time::sleep(NEXT_AFTER));
                    }
                }
            };
            match dialled {
                (way, Ok(carrier)) => {
                    // The exit may have started to listen after it refused the first dial.
                    let (way, carrier) = match first.filter(|_| first_failed) {
                        Some(first) => match timeout(FIRST_AGAIN_MAX, dial(first)).await {
                            Ok(Ok(carrier)) => (first, carrier),
                            _ => (way, carrier),
                        },
                        None => (way, carrier),
                    };
                    self.came_up(way);
                    return Ok((way, carrier));
                }
                (way, Err(error)) => {
                    tracing::debug!(transport = %way, %error, "No carrier");
                    first_failed |= first == Some(way);
                    first_error.get_or_insert(error);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
