//! What carriers of an entry run on: one transport, or of several the one that the path allows and that carries more.
//!
//! Which ones work is found by dialling, as Happy Eyeballs finds an address (RFC 8305): the one that was good last at first,
//! the next one a little later, and the first that comes up counts. Whether another one carries more is tried where the
//! present one loses ([`trial`](super::trial)).

use std::cell::{Cell, RefCell};
use std::io::Result;
use std::pin::pin;
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use muxtunnel_gateway_config::Transport;
use muxtunnel_gateway_config::status::CarrierTransport;
use tokio::time::Instant;

/// A dial that brings nothing for so long gets another one beside it (section 5, "Connection Attempt Delay").
const NEXT_AFTER: Duration = Duration::from_millis(250);
/// Another transport is tried again so long after it carried less; doubles up to [`TRIAL_AGAIN_MAX`].
const TRIAL_AGAIN: Duration = Duration::from_secs(300);
/// Longest pause.
const TRIAL_AGAIN_MAX: Duration = Duration::from_secs(7200);

/// The transports that carriers of one worker may run on.
#[derive(Debug)]
pub(super) struct Ways {
    /// At least one, the one that is to be dialled first at the front.
    all: RefCell<Vec<CarrierTransport>>,
    /// Those that came up and by which the other end was not heard, not all of them. They are dialled once all others have
    /// failed: one that a firewall accepts and ends comes up sooner than one that has more to ask.
    doubted: RefCell<Vec<CarrierTransport>>,
    /// No other is tried before this; `None`: one may be.
    trial_from: Cell<Option<Instant>>,
    /// Trials in a row that changed nothing.
    in_vain: Cell<u32>,
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
            all: RefCell::new(all),
            doubted: RefCell::default(),
            trial_from: Cell::new(None),
            in_vain: Cell::new(0),
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

    /// The other end was not heard by the one that is dialled first, though that came up: it is dialled last from now on.
    pub(super) fn unheard(&self) {
        let (mut all, mut doubted) = (self.all.borrow_mut(), self.doubted.borrow_mut());
        doubted.extend(all.first());
        all.rotate_left(1);
        if all.iter().all(|way| doubted.contains(way)) {
            doubted.clear();
        }
    }

    /// The other end is heard by the one that is dialled first.
    pub(super) fn heard(&self) {
        let first = self.all.borrow().first().copied();
        self.doubted.borrow_mut().retain(|way| Some(*way) != first);
    }

    /// What is to be tried beside `present`, where the time has come for that: KCP, where that is not what there is, since it
    /// takes no loss for congestion.
    pub(super) fn to_try(
        &self,
        present: CarrierTransport,
        now: Instant,
    ) -> Option<CarrierTransport> {
        if self.trial_from.get().is_some_and(|from| now < from) {
            return None;
        }
        let others = self.in_turn();
        let by_kcp = |way: CarrierTransport| way == CarrierTransport::Kcp;
        others
            .into_iter()
            .find(|way| *way != present && by_kcp(*way) != by_kcp(present))
    }

    /// `way` is to be dialled first from now on, for the reason `why`.
    pub(super) fn prefer(&self, way: CarrierTransport, why: &str) {
        let mut all = self.all.borrow_mut();
        if let Some(at) = all.iter().position(|one| *one == way).filter(|at| *at > 0) {
            all[..=at].rotate_right(1);
            tracing::info!(transport = %way, why, "Carriers run on another transport from now on");
        }
    }

    /// A trial is over at `now`. `changed`: another transport carried more.
    pub(super) fn tried(&self, changed: bool, now: Instant) {
        let in_vain = if changed { 0 } else { self.in_vain.get() + 1 };
        self.in_vain.set(in_vain);
        let pause = TRIAL_AGAIN.saturating_mul(1 << in_vain.saturating_sub(1).min(10));
        self.trial_from.set(Some(now + pause.min(TRIAL_AGAIN_MAX)));
    }

    /// Dials by each of them, until one comes up.
    ///
    /// # Errors
    /// That of the one that is to be dialled first: none came up.
    pub(super) async fn dial<T, F: Future<Output = Result<T>>>(
        &self,
        dial: impl Fn(CarrierTransport) -> F,
    ) -> Result<T> {
        let (doubted, ways): (Vec<_>, Vec<_>) = {
            let doubted = self.doubted.borrow();
            let ways = self.in_turn().into_iter();
            ways.partition(|way| doubted.contains(way))
        };
        let (mut ways, mut doubted) = (ways.into_iter(), doubted.into_iter());
        let mut dials = FuturesUnordered::new();
        let attempt = |way| {
            let dialled = dial(way);
            async move { (way, dialled.await) }
        };
        let mut first_error = None;
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
                    let why = "the one that was dialled first brought no carrier in time";
                    self.prefer(way, why);
                    return Ok(carrier);
                }
                (way, Err(error)) => {
                    tracing::debug!(transport = %way, %error, "No carrier");
                    first_error.get_or_insert(error);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};

    use super::*;

    const TCP: CarrierTransport = CarrierTransport::Tcp;
    const KCP: CarrierTransport = CarrierTransport::Kcp;
    const WEB_SOCKET: CarrierTransport = CarrierTransport::WebSocket;

    /// What comes of dialling where `outcome` says after how many milliseconds each comes up, or fails.
    async fn dialled(
        ways: &Ways,
        outcome: impl Fn(CarrierTransport) -> (u64, bool),
    ) -> Result<(CarrierTransport, Duration)> {
        let begun = Instant::now();
        let way = ways
            .dial(async |way| {
                let (after, is_up) = outcome(way);
                tokio::time::sleep(Duration::from_millis(after)).await;
                let failed = || Error::new(ErrorKind::TimedOut, format!("{way}"));
                is_up.then_some(way).ok_or_else(failed)
            })
            .await?;
        Ok((way, begun.elapsed()))
    }

    #[test]
    fn what_is_configured_and_possible_is_dialled() {
        let in_turn =
            |transport, upgrades, datagrams| Ways::of(transport, upgrades, datagrams).in_turn();
        assert_eq!(in_turn(Transport::Tcp, false, true), [TCP]);
        assert_eq!(in_turn(Transport::Tcp, true, true), [WEB_SOCKET]);
        assert_eq!(in_turn(Transport::Kcp, false, true), [KCP]);
        assert_eq!(in_turn(Transport::Auto, true, true), [TCP, KCP, WEB_SOCKET]);
        assert_eq!(in_turn(Transport::Auto, true, false), [TCP, WEB_SOCKET]);
        assert_eq!(in_turn(Transport::Auto, false, false), [TCP]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_that_comes_up_counts_and_is_dialled_first_the_next_time() {
        let ways = Ways::of(Transport::Auto, true, true);
        let all_up = |_| (10, true);
        assert_eq!(dialled(&ways, all_up).await.unwrap().0, TCP);
        // Nothing is heard by TCP and UDP, as behind a firewall that drops them.
        let blocked = |way| {
            if way == WEB_SOCKET {
                (10, true)
            } else {
                (3000, false)
            }
        };
        let (way, took) = dialled(&ways, blocked).await.unwrap();
        assert_eq!((way, took.as_millis()), (WEB_SOCKET, 510));
        assert_eq!(ways.in_turn(), [WEB_SOCKET, TCP, KCP]);
        let (way, took) = dialled(&ways, blocked).await.unwrap();
        assert_eq!((way, took.as_millis()), (WEB_SOCKET, 10));
        // What is refused is not waited for.
        let refused = |way| (1, way == KCP);
        let (way, took) = dialled(&ways, refused).await.unwrap();
        assert_eq!((way, took.as_millis()), (KCP, 3));
    }

    /// As behind a firewall that accepts connections, and ends those that do not begin as HTTP.
    #[tokio::test(start_paused = true)]
    async fn one_by_which_nobody_was_heard_waits_until_all_others_have_failed() {
        let ways = Ways::of(Transport::Auto, true, true);
        let far = |way| match way {
            TCP => (300, true),
            KCP => (3000, false),
            _ => (900, true),
        };
        assert_eq!(dialled(&ways, far).await.unwrap().0, TCP);
        ways.unheard();
        let (way, took) = dialled(&ways, far).await.unwrap();
        assert_eq!((way, took.as_millis()), (WEB_SOCKET, 1150));
        ways.heard();
        // It is no worse than the others once these have failed.
        let (way, took) = dialled(&ways, |way| (100, way == TCP)).await.unwrap();
        assert_eq!((way, took.as_millis()), (TCP, 300));
        ways.heard();
        let (way, took) = dialled(&ways, |way| (400, way != WEB_SOCKET))
            .await
            .unwrap();
        assert_eq!((way, took.as_millis()), (TCP, 400));
        // Where nobody is heard by any, all are dialled again.
        for _ in 0..3 {
            ways.unheard();
        }
        assert!(ways.doubted.borrow().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn where_none_comes_up_the_error_is_that_of_the_first() {
        let ways = Ways::of(Transport::Auto, false, true);
        let error = dialled(&ways, |_| (3000, false)).await.unwrap_err();
        assert_eq!(error.to_string(), "TCP");
        assert_eq!(ways.in_turn(), [TCP, KCP]);
    }

    #[tokio::test(start_paused = true)]
    async fn another_is_tried_after_ever_longer_pauses_until_one_carries_more() {
        let ways = Ways::of(Transport::Auto, true, true);
        let (mut pauses, mut now) = (Vec::new(), Instant::now());
        assert_eq!(ways.to_try(TCP, now), Some(KCP));
        assert_eq!(ways.to_try(WEB_SOCKET, now), Some(KCP));
        assert_eq!(ways.to_try(KCP, now), Some(TCP));
        for _ in 0..8 {
            ways.tried(false, now);
            let begun = now;
            while ways.to_try(TCP, now).is_none() {
                now += Duration::from_secs(60);
            }
            pauses.push((now - begun).as_secs() / 60);
        }
        assert_eq!(pauses, [5, 10, 20, 40, 80, 120, 120, 120]);
        ways.tried(true, now);
        assert_eq!(ways.to_try(KCP, now + TRIAL_AGAIN), Some(TCP));
        assert_eq!(Ways::of(Transport::Tcp, false, true).to_try(TCP, now), None);
    }
}
