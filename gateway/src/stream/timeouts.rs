//! When a stream that nothing happens on is over, and how often that is looked at.
//!
//! Not on the data path: streams count their bytes anyway, and from time to time all of them are asked
//! whether the count has changed. So a stream is reset when its time-out has passed, and at the latest
//! two checks after that. A changed time-out holds for open streams, too.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use muxtunnel_gateway_config::{Reloadable, Timeouts};
use tokio::sync::watch;

use crate::base::closing::Reason;

/// Checks within one time-out.
const CHECKS: u32 = 10;
/// Least and most pause between checks.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Calls `look` from time to time, with the time-outs that are in force; never ends.
pub(crate) async fn follow(
    mut reloadable: watch::Receiver<Arc<Reloadable>>,
    look: impl Fn(Timeouts),
) -> Infallible {
    loop {
        let timeouts = reloadable.borrow_and_update().timeouts;
        let Some(pause) = pause(timeouts) else {
            if reloadable.changed().await.is_err() {
                return std::future::pending().await;
            }
            continue;
        };
        tokio::time::sleep(pause).await;
        look(timeouts);
    }
}

/// Between two checks; `None`: nothing times out.
fn pause(timeouts: Timeouts) -> Option<Duration> {
    [timeouts.idle_seconds, timeouts.half_open_seconds]
        .into_iter()
        .filter(|seconds| *seconds > 0)
        .min()
        .map(|seconds| Duration::from_secs(seconds.into()) / CHECKS)
        .map(|pause| pause.clamp(PAUSE_MIN, PAUSE_MAX))
}

/// Why a stream that was quiet for `quiet` is over.
pub(crate) fn verdict(timeouts: Timeouts, half_open: bool, quiet: Duration) -> Option<Reason> {
    let passed = |seconds: u32| seconds > 0 && quiet >= Duration::from_secs(seconds.into());
    if half_open && passed(timeouts.half_open_seconds) {
        Some(Reason::HalfOpenTimeout)
    } else {
        passed(timeouts.idle_seconds).then_some(Reason::IdleTimeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeouts(idle_seconds: u32, half_open_seconds: u32) -> Timeouts {
        Timeouts {
            idle_seconds,
            half_open_seconds,
        }
    }

    #[test]
    fn zero_is_never() {
        let year = Duration::from_secs(365 * 24 * 3600);
        assert_eq!(verdict(timeouts(0, 0), true, year), None);
        assert_eq!(verdict(timeouts(0, 60), false, year), None);
        assert_eq!(pause(timeouts(0, 0)), None);
    }

    #[test]
    fn each_time_out_has_its_own_reason() {
        let minute = Duration::from_secs(60);
        let both = timeouts(60, 30);
        assert_eq!(verdict(both, false, minute / 2), None);
        assert_eq!(verdict(both, false, minute), Some(Reason::IdleTimeout));
        let half_open = Some(Reason::HalfOpenTimeout);
        assert_eq!(verdict(both, true, minute / 2), half_open);
        let idle_first = timeouts(60, 3600);
        assert_eq!(verdict(idle_first, true, minute), Some(Reason::IdleTimeout));
    }

    #[test]
    fn checks_are_as_often_as_the_shorter_time_out_needs() {
        assert_eq!(pause(timeouts(60, 3600)), Some(Duration::from_secs(6)));
        assert_eq!(pause(timeouts(0, 3600)), Some(PAUSE_MAX));
        assert_eq!(pause(timeouts(1, 0)), Some(PAUSE_MIN));
    }
}
