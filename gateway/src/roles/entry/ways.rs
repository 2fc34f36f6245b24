//! What carriers of an entry run on: one transport, or of several the one that the path allows and that carries more.
//!
//! Which ones work is found by dialling, as Happy Eyeballs finds an address (RFC 8305): the one that was good last at first,
//! the next one a little later, and the first that comes up counts. One that did not come up in time is dialled later from
//! then on, and in its turn again after a pause: its path may be good by then. Whether another one carries more is tried where
//! the present one loses ([`trial`](super::trial)).

use std::cell::{Cell, RefCell};
use std::io::Result;
use std::pin::pin;
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use muxtunnel_gateway_config::Transport;
use muxtunnel_gateway_config::status::CarrierTransport;
use tokio::time::{Instant, timeout};

/// A dial that brings nothing for so long gets another one beside it (section 5, "Connection Attempt Delay").
const NEXT_AFTER: Duration = Duration::from_millis(250);
/// So long another dial may take of the one that failed first, where another one came up.
const FIRST_AGAIN_MAX: Duration = Duration::from_secs(1);
/// What was of no use is tried again so long after that; doubles up to [`AGAIN_MAX`].
const AGAIN: Duration = Duration::from_secs(300);
/// Longest pause.
const AGAIN_MAX: Duration = Duration::from_secs(7200);

/// The transports that carriers of one worker may run on.
#[derive(Debug)]
pub(super) struct Ways {
    /// At least one, in the order in which they are dialled where all come up: as configured, but that KCP is behind or in front
    /// of what it was compared with.
    wanted: RefCell<Vec<CarrierTransport>>,
    /// The same, the one that is to be dialled first at the front.
    all: RefCell<Vec<CarrierTransport>>,
    /// Those that came up and by which the other end was not heard, not all of them. They are dialled once all others have
    /// failed: one that a firewall accepts and ends comes up sooner than one that has more to ask.
    doubted: RefCell<Vec<CarrierTransport>>,
    /// Until another one is compared with the present one.
    trial: Pause,
    /// Until all are dialled as they are wanted, where they are not.
    back: Pause,
}

/// When something may be tried again.
#[derive(Debug, Default)]
struct Pause {
    /// Not before this; `None`: at any time.
    until: Cell<Option<Instant>>,
    /// Tries in a row that were of no use.
    in_vain: Cell<u32>,
}

impl Pause {
    fn is_over(&self, now: Instant) -> bool {
        self.until.get().is_none_or(|until| until <= now)
    }

    /// The latest try does not count.
    fn take_back(&self) {
        self.in_vain.set(self.in_vain.get().saturating_sub(1));
        self.until.set(None);
    }

    /// A try was of use, or not.
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
    /// As configured. `upgrades`: WebSocket is; `datagrams`: they may reach exits.
    pub(super) fn of(transport: Transport, upgrades: bool, datagrams: bool) -> Self {
        let all = match transport {
            Transport::Tcp if upgrades => vec![CarrierTransport::WebSocket],
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

    /// All of them, in the order in which they are to be dialled.
    pub(super) fn in_turn(&self) -> Vec<CarrierTransport> {
        self.all.borrow().clone()
    }

    /// Whether there is a choice.
    pub(super) fn are_several(&self) -> bool {
        self.all.borrow().len() > 1
    }

    /// The exit was not heard by `way` at `now`, though that came up: it is dialled last from now on.
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

    /// The exit is heard by `way`.
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

    /// They are not dialled as they are wanted any more.
    fn depart(&self, now: Instant) {
        if self.back.until.get().is_none() {
            self.back.begin(false, now);
        }
    }

    /// They are dialled as they are wanted again, where the time has come for that.
    fn come_back(&self, now: Instant) {
        if self.back.until.get().is_some_and(|until| until <= now) {
            self.back.until.set(None);
            self.doubted.borrow_mut().clear();
            self.all.borrow_mut().clone_from(&self.wanted.borrow());
        }
    }

    /// What is wanted rather than `present`, and may come up again at `now`: in front of WebSocket, which is for paths that let
    /// nothing else pass. Whether KCP or TCP is better tells a trial.
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

    /// Those of [`Self::to_return_to`] are being tried at `now`, so no other session has to.
    pub(super) fn returning(&self, now: Instant) {
        self.back.begin(false, now);
    }

    /// A session has come back to `way`.
    pub(super) fn returned(&self, way: CarrierTransport) {
        self.prefer(way, "its path is good again");
        self.heard(way);
    }

    /// What is to be tried beside `present`, where the time has come for that: KCP, where that is not what there is, since it
    /// takes no loss for congestion.
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

    /// A trial is over at `now`. `changed`: another transport carried more.
    pub(super) fn tried(&self, changed: bool, now: Instant) {
        self.trial.begin(changed, now);
    }

    /// A trial was given up: it told nothing.
    pub(super) fn untried(&self) {
        self.trial.take_back();
    }

    /// `way` carried more than the present one, as `why` says.
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

    /// `way` is to be dialled first from now on, for the reason `why`.
    fn prefer(&self, way: CarrierTransport, why: &str) {
        let mut all = self.all.borrow_mut();
        if let Some(at) = all.iter().position(|one| *one == way).filter(|at| *at > 0) {
            all[..=at].rotate_right(1);
            tracing::info!(transport = %way, why, "Carriers run on another transport from now on");
        }
    }

    /// A dial came to a carrier over `way`.
    fn came_up(&self, way: CarrierTransport) {
        let why = "the one that was dialled first brought no carrier in time";
        self.prefer(way, why);
        if self.wanted.borrow().first() != Some(&way) {
            self.depart(Instant::now());
        }
    }

    /// Dials by each of them, until one comes up; returns which one that is. Where the first one had failed before that, it is
    /// dialled once more.
    ///
    /// # Errors
    /// That of the one that is to be dialled first: none came up.
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
                        .unwrap_or_else(|| std::io::Error::other("there is nothing to dial by")));
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
                    // An exit that has just begun to listen refused it a moment before.
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
