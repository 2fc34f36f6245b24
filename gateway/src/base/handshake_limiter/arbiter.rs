//! Decides which connection gets a permit, and which connection is evicted or dropped.
//!
//! Inputs: connections by source, how each connection ended, the time, and random values. Output:
//! [`Entrance`]. The arbiter has no clock, lock or random generator; callers supply them.
//!
//! While a permit is free, every connection gets a permit. After that, each new connection takes
//! the permit of the oldest connection of the source with the most permits. A source's failures
//! that still count (`penalties.rs`) weigh as much as permits. Chance decides two cases:
//!
//! - *Early drop.* The new connection would take a permit of its own source, or of a source that
//!   has at most as many permits. If connections arrive too fast to authenticate before they are
//!   evicted (`ProofTime`), the new connection may be dropped. Otherwise one address of many peers
//!   (SNAT), or many attacking addresses, could evict every connection before it authenticates.
//! - *Penalty.* The new connection itself would be evicted, since its source has failed too often.
//!   With probability 1/(failures + 1), the source's failures do not count while the source has
//!   permits.
//!
//! An evicted connection counts as failed only if it had enough time to authenticate.
//!
//! Bounds: the permits. A source is stored while it has a permit. Read next: `penalties.rs`.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::penalties::{Penalties, failures};

/// The IPv4 address or IPv6 /64 network of a connection; `None`: a socket without addresses.
pub(super) type Source = Option<IpAddr>;

/// Whether connections may be dropped early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EarlyDrop {
    /// For peers that redial automatically.
    On,
    /// For clients whose dropped connection is a visible failure for a user.
    Off,
}

/// The decision about a new connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Entrance {
    /// The connection has a permit with this number; the connection `evicted` loses its permit.
    Admitted { number: u64, evicted: Option<u64> },
    /// The connection must be closed.
    Dropped,
}

/// Counts of an arbiter since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Connections that lost their permit to another connection.
    pub(crate) evicted: u64,
    /// Connections that were dropped on arrival.
    pub(crate) dropped: u64,
    /// Connections that failed to authenticate, or to send their request.
    pub(crate) failed: u64,
}

/// Connections that have not authenticated.
#[derive(Debug)]
pub(super) struct Arbiter {
    permits_max: usize,
    early_drop: EarlyDrop,
    next: u64,
    pending: BTreeMap<u64, Pending>,
    by_source: BTreeMap<Source, OfSource>,
    /// Arrivals of all sources.
    arrivals: Arrivals,
    penalties: Penalties,
    proof_time: ProofTime,
    counts: Counts,
}

#[derive(Debug)]
struct Pending {
    source: Source,
    since: Instant,
    /// Whether the connection has failed, has succeeded or is excused.
    is_judged: bool,
}

/// The connection whose permit a new connection takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Victim {
    number: u64,
    /// Whether, by chance, the failures of the new connection's source do not count while the
    /// source has permits. If they counted, the new connection would be evicted next.
    is_pardon: bool,
}

/// One source with at least one permit.
#[derive(Debug)]
struct OfSource {
    /// The source's connections, oldest first.
    numbers: BTreeSet<u64>,
    arrivals: Arrivals,
    /// The end of the source's penalty.
    penalty_until: Option<Instant>,
}

impl Arbiter {
    pub(super) fn new(permits_max: usize, early_drop: EarlyDrop) -> Self {
        debug_assert!(permits_max > 0);
        Self {
            permits_max,
            early_drop,
            next: 0,
            pending: BTreeMap::new(),
            by_source: BTreeMap::new(),
            arrivals: Arrivals::default(),
            penalties: Penalties::default(),
            proof_time: ProofTime::default(),
            counts: Counts::default(),
        }
    }

    /// Decides about a new connection. `chance` returns values from 0 up to, but not including, 1.
    pub(super) fn enter(
        &mut self,
        now: Instant,
        source: Source,
        chance: &mut dyn FnMut() -> f64,
    ) -> Entrance {
        let within = self.proof_time.get();
        self.arrivals.add(now, within);
        if let Some(own) = self.by_source.get_mut(&source) {
            own.arrivals.add(now, within);
        }
        let mut victim = None;
        if self.pending.len() >= self.permits_max {
            victim = self.victim(now, source, chance);
            let Some(Victim { number, .. }) = victim else {
                self.counts.dropped += 1;
                return Entrance::Dropped;
            };
            self.evict(now, number);
        }
        let is_pardon = victim.is_some_and(|victim| victim.is_pardon);
        let number = self.next;
        self.next += 1;
        let permit = Pending {
            source,
            since: now,
            is_judged: false,
        };
        self.pending.insert(number, permit);
        let penalty_until = self.penalties.until(source);
        let of_source = || {
            let mut arrivals = Arrivals::default();
            arrivals.add(now, within);
            OfSource {
                numbers: BTreeSet::new(),
                arrivals,
                penalty_until,
            }
        };
        let own = self.by_source.entry(source).or_insert_with(of_source);
        own.numbers.insert(number);
        if is_pardon {
            own.penalty_until = None;
        }
        let evicted = victim.map(|victim| victim.number);
        Entrance::Admitted { number, evicted }
    }

    /// Frees the permit of a connection that has closed or authenticated.
    pub(super) fn leave(&mut self, number: u64) {
        let Some(Pending { source, .. }) = self.pending.remove(&number) else {
            return;
        };
        if let Some(of_source) = self.by_source.get_mut(&source) {
            of_source.numbers.remove(&number);
            if of_source.numbers.is_empty() {
                self.by_source.remove(&source);
            }
        }
    }

    /// Records that a connection has authenticated, or sent its request; it still has its permit.
    pub(super) fn succeed(&mut self, now: Instant, number: u64) {
        if let Some(permit) = self.pending.get_mut(&number) {
            permit.is_judged = true;
            let took = now.saturating_duration_since(permit.since);
            self.proof_time.add(took);
        }
    }

    /// Excuses a connection: neither its end nor its duration has an effect on its source.
    pub(super) fn excuse(&mut self, number: u64) {
        if let Some(permit) = self.pending.get_mut(&number) {
            permit.is_judged = true;
        }
    }

    /// Records that a connection failed to authenticate, or timed out; it still has its permit.
    pub(super) fn fail(&mut self, now: Instant, number: u64) {
        self.counts.failed += u64::from(self.penalise(now, number));
    }

    fn evict(&mut self, now: Instant, number: u64) {
        self.counts.evicted += 1;
        let within = self.proof_time.get();
        let permit = self.pending.get(&number);
        if permit.is_some_and(|permit| now.saturating_duration_since(permit.since) >= within) {
            self.penalise(now, number);
        }
        self.leave(number);
    }

    /// Penalises a connection once, unless it has succeeded or is excused. Returns whether it did.
    fn penalise(&mut self, now: Instant, number: u64) -> bool {
        let Some(permit) = self.pending.get_mut(&number) else {
            return false;
        };
        if std::mem::replace(&mut permit.is_judged, true) {
            return false;
        }
        let until = self.penalties.add(now, permit.source);
        if let Some(of_source) = self.by_source.get_mut(&permit.source) {
            of_source.penalty_until = until;
        }
        true
    }

    /// The number of permits held.
    pub(super) fn taken(&self) -> usize {
        self.pending.len()
    }

    /// The number of sources with a penalty.
    pub(super) fn penalised(&self, now: Instant) -> usize {
        self.penalties.count(now)
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    /// The connection that loses its permit to a new connection; `None`: drop the new connection.
    fn victim(
        &self,
        now: Instant,
        source: Source,
        chance: &mut dyn FnMut() -> f64,
    ) -> Option<Victim> {
        let others = self.by_source.iter().filter(|(other, _)| **other != source);
        let others = others.filter_map(|(_, other)| {
            let oldest = *other.numbers.first()?;
            Some((other.weight(now), Reverse(oldest)))
        });
        let most = others.max();
        let own = self.by_source.get(&source);
        let permits = own.map_or(0, |own| own.numbers.len());
        let oldest = own.and_then(|own| own.numbers.first().copied());
        // Among sources of equal weight, the source with the oldest connection loses a permit.
        let goes_itself = |failures: usize| {
            let own = (permits + 1 + failures, Reverse(oldest.unwrap_or(self.next)));
            most.is_none_or(|most| own > most)
        };
        let mut counted = failures(self.penalties.until(source), now) as usize;
        let is_pardon =
            goes_itself(counted) && !goes_itself(0) && chance() < 1.0 / (counted + 1) as f64;
        if is_pardon {
            counted = 0;
        }
        let number = match most {
            Some((weight, Reverse(victim))) if !goes_itself(counted) => {
                let takes = weight > permits + 1 + counted
                    || !self.drops_early(now, self.permits_max, &self.arrivals, chance);
                takes.then_some(victim)
            }
            _ => {
                let own = own.filter(|own| !self.drops_early(now, permits, &own.arrivals, chance));
                own.and(oldest)
            }
        };
        number.map(|number| Victim { number, is_pardon })
    }

    /// Whether to drop a new connection. If more than `permits` connections of `arrivals` arrive in
    /// the time of a proof, chance decides.
    fn drops_early(
        &self,
        now: Instant,
        permits: usize,
        arrivals: &Arrivals,
        chance: &mut dyn FnMut() -> f64,
    ) -> bool {
        let admitted = permits as f64 / arrivals.at(now, self.proof_time.get());
        self.early_drop == EarlyDrop::On && admitted < 1.0 && chance() >= admitted
    }
}

impl OfSource {
    /// The number of permits, plus the number of failures, which weigh as much as permits.
    fn weight(&self, now: Instant) -> usize {
        self.numbers.len() + failures(self.penalty_until, now) as usize
    }
}

/// How many connections a source opened recently. Older connections have less weight.
#[derive(Debug, Clone, Copy, Default)]
struct Arrivals {
    count: f64,
    at: Option<Instant>,
}

impl Arrivals {
    fn add(&mut self, now: Instant, within: Duration) {
        self.count = self.at(now, within) + 1.0;
        self.at = Some(now);
    }

    fn at(&self, now: Instant, within: Duration) -> f64 {
        let at = self.at.unwrap_or(now);
        let passed = now.saturating_duration_since(at);
        self.count * (-passed.as_secs_f64() / within.as_secs_f64()).exp()
    }
}

/// How long a successful proof takes: smoothed mean and deviation (RFC 6298, section 2).
#[derive(Debug, Default)]
struct ProofTime(Option<(Duration, Duration)>);

impl ProofTime {
    /// Initial and maximum value: two round trips of 100 ms, and 50 ms for computation. A larger
    /// value would drop more connections of fast peers, see `arbiter/simulation.rs`.
    const MOST: Duration = Duration::from_millis(250);
    /// Minimum value. Even a proof from a nearby machine may wait this long for a processor.
    const LEAST: Duration = Duration::from_millis(40);

    fn add(&mut self, took: Duration) {
        let took = took.min(Self::MOST);
        self.0 = Some(match self.0 {
            None => (took, took / 2),
            Some((mean, deviation)) => {
                let differs = mean.abs_diff(took);
                ((mean * 7 + took) / 8, (deviation * 3 + differs) / 4)
            }
        });
    }

    /// A quarter more than the mean, plus four times the deviation. Evicted connections never
    /// report their time, so slow proofs are missing from the mean. Without the extra quarter, the
    /// value would shrink again and again.
    fn get(&self) -> Duration {
        let learned = self.0.map(|(mean, deviation)| mean * 5 / 4 + 4 * deviation);
        learned.map_or(Self::MOST, |time| time.clamp(Self::LEAST, Self::MOST))
    }
}

#[cfg(test)]
mod simulation;

#[cfg(test)]
mod tests {
    use super::super::penalties::PENALTIES_MAX;
    use super::*;

    const PERMITS: usize = 8;

    fn from(host: u8) -> Source {
        Some(IpAddr::from([192, 0, 2, host]))
    }

    fn full_of(sources: impl IntoIterator<Item = u8>, now: Instant) -> Arbiter {
        let mut arbiter = Arbiter::new(PERMITS, EarlyDrop::On);
        for host in sources {
            arbiter.enter(now, from(host), &mut || unreachable!("a permit is free"));
        }
        assert_eq!(arbiter.taken(), PERMITS);
        arbiter
    }

    /// The connection that a new connection evicts; `None`: the new connection is dropped.
    fn evicted(arbiter: &mut Arbiter, now: Instant, host: u8, chance: f64) -> Option<u64> {
        match arbiter.enter(now, from(host), &mut || chance) {
            Entrance::Admitted { evicted, .. } => evicted,
            Entrance::Dropped => None,
        }
    }

    #[test]
    fn a_source_that_is_too_fast_is_dropped_by_chance_and_never_for_certain() {
        let start = Instant::now();
        let mut arbiter = full_of([1; PERMITS], start);
        // This is the ninth connection within the time of a proof; eight of nine are admitted.
        assert_eq!(evicted(&mut arbiter, start, 1, 0.9), None);
        assert_eq!(evicted(&mut arbiter, start, 1, 0.7), Some(0));
        assert_eq!(
            arbiter.counts(),
            Counts {
                evicted: 1,
                dropped: 1,
                failed: 0
            }
        );
        // Chance eventually admits a connection, regardless of the speed of the source.
        for _ in 0..10_000 {
            evicted(&mut arbiter, start, 1, 0.999_999);
        }
        assert_eq!(evicted(&mut arbiter, start, 1, 0.0), Some(1));
        // `chance` is not used for a source that is no longer fast, or for other sources.
        let later = start + Duration::from_secs(10);
        assert_eq!(evicted(&mut arbiter, later, 1, 0.999_999), Some(2));
        assert_eq!(evicted(&mut arbiter, later, 2, 0.999_999), Some(3));
    }

    #[test]
    fn without_early_drop_the_oldest_goes_however_fast_they_come() {
        let start = Instant::now();
        let mut arbiter = full_of([1; PERMITS], start);
        arbiter.early_drop = EarlyDrop::Off;
        for number in 0..1_000 {
            assert_eq!(evicted(&mut arbiter, start, 1, 0.999_999), Some(number));
        }
    }

    #[test]
    fn proofs_that_are_fast_let_more_be_let_in() {
        let start = Instant::now();
        let mut arbiter = full_of([1; PERMITS], start);
        for _ in 0..100 {
            arbiter.proof_time.add(Duration::from_millis(64));
        }
        assert_eq!(arbiter.proof_time.get(), Duration::from_millis(80));
        // Twenty connections in 300 ms are not faster than six in 80 ms.
        for step in 1..=20 {
            let now = start + Duration::from_millis(100 + 15 * step);
            assert!(evicted(&mut arbiter, now, 1, 0.999_999).is_some(), "{step}");
        }
        arbiter.proof_time.add(Duration::from_secs(9));
        assert!(arbiter.proof_time.get() <= ProofTime::MOST);
    }

    #[test]
    fn failures_count_like_places_until_they_are_forgotten() {
        let start = Instant::now();
        let one_that_failed = || {
            let mut arbiter = full_of([1, 2, 2, 3, 4, 5, 6, 7], start);
            for number in [3, 8] {
                arbiter.fail(start, number);
                arbiter.fail(start, number);
                arbiter.leave(number);
                arbiter.enter(start, from(3), &mut || unreachable!("a permit is free"));
            }
            assert_eq!((arbiter.counts().failed, arbiter.penalised(start)), (2, 1));
            arbiter
        };
        let of_3 = 9;
        assert_eq!(evicted(&mut one_that_failed(), start, 8, 0.5), Some(of_3));
        let (first_of_2, later) = (1, start + Duration::from_secs(60));
        assert_eq!(
            evicted(&mut one_that_failed(), later, 8, 0.5),
            Some(first_of_2)
        );
    }

    /// Examples of excused connections: a client whose forward is full, a scrape of the admin port,
    /// and a load balancer's header.
    #[test]
    fn what_was_judged_or_proves_nothing_has_not_failed_when_it_is_evicted() {
        let start = Instant::now();
        let evicted_late = |judge: fn(&mut Arbiter, Instant)| {
            let mut arbiter = full_of([1; PERMITS], start);
            judge(&mut arbiter, start);
            let late = start + ProofTime::MOST;
            assert_eq!(evicted(&mut arbiter, late, 2, 0.5), Some(0));
            arbiter.penalised(late)
        };
        assert_eq!(evicted_late(|_, _| {}), 1);
        assert_eq!(evicted_late(|arbiter, now| arbiter.succeed(now, 0)), 0);
        assert_eq!(evicted_late(|arbiter, _| arbiter.excuse(0)), 0);
    }

    #[test]
    fn a_source_that_failed_often_is_never_refused_for_certain() {
        let start = Instant::now();
        let mut arbiter = full_of(1..=PERMITS as u8, start);
        let bad = from(99);
        for _ in 0..2 * PENALTIES_MAX {
            arbiter.penalties.add(start, bad);
        }
        let admitted = 1.0 / f64::from(PENALTIES_MAX + 1);
        assert_eq!(
            evicted(&mut arbiter, start, 99, admitted),
            None,
            "the new connection is dropped"
        );
        assert_eq!(evicted(&mut arbiter, start, 99, admitted - 1e-9), Some(0));
        // While a permit is free, failures have no effect.
        arbiter.leave(1);
        assert!(matches!(
            arbiter.enter(start, bad, &mut || unreachable!("a permit is free")),
            Entrance::Admitted { evicted: None, .. }
        ));
    }
}
