//! Determines when a quiet stream times out, when the peer of its local end has vanished, and how
//! often streams are checked.
//!
//! The checks are not on the data path. Streams count their bytes anyway, and a periodic check
//! compares the counts. A stream is reset at the latest two check intervals after its timeout has
//! expired. A changed timeout also applies to open streams.

use std::convert::Infallible;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::{Duration, Instant};

use muxtunnel_gateway_config::{Reloadable, Timeouts};
use tokio::sync::watch;

use super::account::Account;
use super::life::Life;
use crate::base::closing::Reason;
use crate::io::local_end::LocalEnd;
use crate::io::socket::Keepalive;

/// Number of checks within the shortest timeout, unless [`PAUSE_MIN`] or [`PAUSE_MAX`] changes the
/// pause.
const CHECKS: u32 = 10;
/// Minimum pause between checks.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Calls `look` periodically with the timeouts in force; never returns.
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

/// Checks one stream. Also applies the keepalive in force to its local end. Returns the reason to
/// end the stream, and the failure of the local end; `None`: the stream continues.
pub(crate) fn check(
    timeouts: Timeouts,
    (account, life): (&Account, &Life),
    socket: &dyn LocalEnd,
    now: Instant,
) -> Option<(Reason, Option<ErrorKind>)> {
    let half_open = life.has_source_ended() || life.has_peer_finished();
    let quiet = account.quiet_for(now, life.steps());
    if account.has_vanished(socket, Keepalive::of(timeouts), quiet) {
        return Some((account.local_reset(), Some(ErrorKind::TimedOut)));
    }
    Some((verdict(timeouts, half_open, quiet)?, None))
}

/// Pause between two checks; `None`: no stream times out.
fn pause(timeouts: Timeouts) -> Option<Duration> {
    let seconds = [
        timeouts.idle_seconds(),
        timeouts.half_open_seconds(),
        timeouts.keepalive_seconds(),
    ];
    seconds
        .into_iter()
        .filter(|seconds| *seconds > 0)
        .min()
        .map(|seconds| Duration::from_secs(seconds.into()) / CHECKS)
        .map(|pause| pause.clamp(PAUSE_MIN, PAUSE_MAX))
}

/// The reason to end a stream that was quiet for `quiet`; `None`: the stream continues.
fn verdict(timeouts: Timeouts, half_open: bool, quiet: Duration) -> Option<Reason> {
    let passed = |seconds: u32| seconds > 0 && quiet >= Duration::from_secs(seconds.into());
    if half_open && passed(timeouts.half_open_seconds()) {
        Some(Reason::HalfOpenTimeout)
    } else {
        passed(timeouts.idle_seconds()).then_some(Reason::IdleTimeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeouts(idle_seconds: u32, half_open_seconds: u32) -> Timeouts {
        Timeouts {
            idle_seconds: Some(idle_seconds),
            half_open_seconds: Some(half_open_seconds),
            keepalive_seconds: Some(0),
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
        assert_eq!(pause(Timeouts::default()), Some(Duration::from_secs(6)));
    }
}
