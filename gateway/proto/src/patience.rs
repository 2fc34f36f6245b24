//! How time limits follow the round trip of a path.
//!
//! A limit that suffices on ordinary paths is too short on a satellite link, or behind the full
//! queue of a mobile network. [`patience`] extends such a limit by the measured round trip. The
//! extension is bounded, because a peer can delay its answers on purpose.

use std::time::Duration;

/// Round trips up to this value do not extend a limit.
const ROUND_TRIP_ORDINARY: Duration = Duration::from_millis(500);
/// Round trips beyond this value count as this value.
pub const ROUND_TRIP_MAX: Duration = Duration::from_secs(10);
/// The number of round trips by which a limit grows. A step takes up to three round trips. If a
/// segment of the step is lost, TCP repeats the segment after about three round trips more.
const ROUND_TRIPS: u32 = 8;

/// The time limit of a step on a path with this round trip, if `ordinary` is the limit on ordinary
/// paths.
#[must_use]
pub fn patience(ordinary: Duration, round_trip: Duration) -> Duration {
    let beyond = round_trip.min(ROUND_TRIP_MAX);
    ordinary + beyond.saturating_sub(ROUND_TRIP_ORDINARY) * ROUND_TRIPS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_follows_long_round_trips_within_its_bound() {
        let limit = |milliseconds| {
            let limit = patience(Duration::from_secs(5), Duration::from_millis(milliseconds));
            limit.as_secs()
        };
        assert_eq!([0, 100, 500].map(limit), [5; 3]);
        assert_eq!([1_000, 6_000, 10_000].map(limit), [9, 49, 81]);
        assert_eq!(limit(3_600_000), 81);
    }
}
