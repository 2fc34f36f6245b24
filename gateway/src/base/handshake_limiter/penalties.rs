//! A bounded table of penalties for sources that failed recently.
//!
//! A penalty is a point in time. Each failure of a source moves the end of its penalty by
//! [`PENALTY`], to at most [`PENALTIES_MAX`] times [`PENALTY`] from now. So a penalty decays
//! without further work, and time does not change the order of the table. A penalty never refuses a
//! connection. The arbiter uses penalties to choose between sources once no permit is free.
//!
//! Bound: [`SOURCES_MAX`] sources of about 100 bytes each. A full table removes the source whose
//! penalty ends first.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::arbiter::Source;

/// How long the arbiter considers one failure.
const PENALTY: Duration = Duration::from_secs(20);
/// Maximum number of a source's failures that count at the same time.
pub(super) const PENALTIES_MAX: u32 = 15;
/// Maximum number of sources in the table.
pub(super) const SOURCES_MAX: usize = 4096;

/// The end of each source's penalty.
#[derive(Debug, Default)]
pub(super) struct Penalties {
    until: BTreeMap<Source, Instant>,
    /// The entries of `until`, ordered by the end of the penalty.
    order: BTreeSet<(Instant, Source)>,
}

impl Penalties {
    /// Adds a failure of the source. Returns the end of its penalty; `None`: the table has no room
    /// for the source.
    pub(super) fn add(&mut self, now: Instant, source: Source) -> Option<Instant> {
        self.forget_ended(now);
        let before = self.until.get(&source).copied();
        if let Some(before) = before {
            self.order.remove(&(before, source));
        }
        let until = before.map_or(now, |before| before.max(now)) + PENALTY;
        let until = until.min(now + PENALTY * PENALTIES_MAX);
        self.until.insert(source, until);
        self.order.insert((until, source));
        if self.until.len() > SOURCES_MAX
            && let Some((_, least)) = self.order.pop_first()
        {
            self.until.remove(&least);
        }
        self.until(source)
    }

    /// The end of a source's penalty.
    pub(super) fn until(&self, source: Source) -> Option<Instant> {
        self.until.get(&source).copied()
    }

    pub(super) fn count(&self, now: Instant) -> usize {
        let ended = |(until, _): &&(Instant, Source)| *until <= now;
        self.order.len() - self.order.iter().take_while(ended).count()
    }

    fn forget_ended(&mut self, now: Instant) {
        while let Some((until, source)) = self.order.first().copied()
            && until <= now
        {
            self.order.pop_first();
            self.until.remove(&source);
        }
    }
}

/// The number of failures that still count at `now`, at most [`PENALTIES_MAX`].
pub(super) fn failures(until: Option<Instant>, now: Instant) -> u32 {
    let left = until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now));
    let failures = left.as_nanos().div_ceil(PENALTY.as_nanos());
    u32::try_from(failures).unwrap_or(PENALTIES_MAX)
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    fn source(number: u32) -> Source {
        Some(IpAddr::V4(Ipv4Addr::from_bits(number)))
    }

    #[test]
    fn failures_add_up_to_a_bound_and_are_forgotten_one_by_one() {
        let (mut penalties, start) = (Penalties::default(), Instant::now());
        for failed in 1..=PENALTIES_MAX + 5 {
            let until = penalties.add(start, source(1));
            assert_eq!(failures(until, start), failed.min(PENALTIES_MAX));
        }
        let until = penalties.until(source(1));
        for passed in 0..=PENALTIES_MAX {
            let now = start + PENALTY * passed;
            assert_eq!(failures(until, now), PENALTIES_MAX - passed);
        }
        let over = start + PENALTY * PENALTIES_MAX;
        assert_eq!((penalties.count(start), penalties.count(over)), (1, 0));
        assert_eq!(failures(penalties.until(source(2)), start), 0);
        // A failure after the end of a penalty starts a new penalty.
        let until = penalties.add(over, source(1));
        assert_eq!(failures(until, over), 1);
    }

    #[test]
    fn a_full_table_forgets_the_source_with_the_least_penalty() {
        let (mut penalties, start) = (Penalties::default(), Instant::now());
        let all = 0..u32::try_from(SOURCES_MAX).unwrap();
        for number in all.clone() {
            let now = start + Duration::from_micros(number.into());
            penalties.add(now, source(number));
            penalties.add(now, source(number));
        }
        let now = start + Duration::from_secs(1);
        // Each of these sources has failed once, so none of them replaces a source that failed
        // twice.
        for number in all.clone().map(|number| number + (1 << 16)) {
            assert_eq!(penalties.add(now, source(number)), None);
        }
        assert!(
            all.clone()
                .all(|number| penalties.until(source(number)).is_some())
        );
        // By now, less than one failure remains of the oldest penalties.
        let now = start + PENALTY + Duration::from_secs(1);
        assert!(penalties.add(now, source(1 << 16)).is_some());
        assert_eq!(penalties.until(source(0)), None);
        assert_eq!(
            (penalties.until.len(), penalties.order.len()),
            (SOURCES_MAX, SOURCES_MAX)
        );
    }
}
