//! Which connection gets a permit, and which one is evicted or dropped for it.
//!
//! Comes in: connections by their sources, how each ended, the time and chance. Goes out: [`Entrance`]. No clock, lock or
//! randomness of its own, so that a simulation decides about it (`arbiter/simulation.rs`).
//!
//! While a permit is free, every connection gets one. After that, each new connection takes the permit of the oldest of the
//! source that has most permits; the failures that still count for a source (`penalties.rs`) count like permits. Two cases
//! are decided by chance, and neither is ever certain:
//!
//! - *Early drop.* The new connection would take a permit of its own source, or of one that has no more than its own. Where
//!   these come so fast that a connection is evicted before it can prove anything (`ProofTime`), the new one is dropped,
//!   with the probability that leaves the others that time. Where one address is that of many peers (SNAT), or where many
//!   addresses attack, those who are fast could otherwise evict everybody in time.
//! - *Penalty.* The new connection would be the one that goes, since its source has failed so often. With a probability of
//!   one in one more than the failures, its source counts as if it had not failed, for as long as it has permits.
//!
//! A connection that is evicted has failed where it had the time of a proof, and otherwise not.
//!
//! Bounds: the permits; a source is known while it has one. Read next: `penalties.rs`.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::penalties::{Penalties, failures};

/// Where a connection comes from; `None`: from a socket without addresses. All of an IPv6 network of 64 bits are one.
pub(super) type Source = Option<IpAddr>;

/// Whether connections may be dropped early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EarlyDrop {
    /// The peers dial again by themselves.
    On,
    /// A connection that is dropped is a failure that a person sees.
    Off,
}

/// What becomes of a new connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Entrance {
    /// It has a permit, and this number; another one is evicted for it.
    Admitted { number: u64, evicted: Option<u64> },
    /// It is to be closed.
    Dropped,
}

/// What an arbiter has done since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Connections that lost their permit to another one.
    pub(crate) evicted: u64,
    /// Connections that were dropped at once.
    pub(crate) dropped: u64,
    /// Connections that failed to prove who they are, or to say what they want.
    pub(crate) failed: u64,
}

/// Connections that have proved nothing.
#[derive(Debug)]
pub(super) struct Arbiter {
    permits_max: usize,
    early_drop: EarlyDrop,
    next: u64,
    pending: BTreeMap<u64, Pending>,
    by_source: BTreeMap<Source, OfSource>,
    /// Of all sources.
    arrivals: Arrivals,
    penalties: Penalties,
    proof_time: ProofTime,
    counts: Counts,
}

#[derive(Debug)]
struct Pending {
    source: Source,
    since: Instant,
    /// It has failed or succeeded, or nothing that becomes of it is a failure.
    is_judged: bool,
}

/// The connection whose permit a new one takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Victim {
    number: u64,
    /// By chance, the failures of the new one's source do not count while the source has permits: one that has just been
    /// let in would otherwise be the next to go.
    is_pardon: bool,
}

/// One source with at least one permit.
#[derive(Debug)]
struct OfSource {
    /// Its connections, oldest first.
    numbers: BTreeSet<u64>,
    arrivals: Arrivals,
    /// The end of its penalty.
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

    /// A new connection. `chance` gives values of 0 to 1, 1 excluded.
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

    /// A connection has gone, or has proved who it is: its permit is free.
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

    /// A connection has proved who it is, or said what it wants; it still has its permit.
    pub(super) fn succeed(&mut self, now: Instant, number: u64) {
        if let Some(permit) = self.pending.get_mut(&number) {
            permit.is_judged = true;
            let took = now.saturating_duration_since(permit.since);
            self.proof_time.add(took);
        }
    }

    /// Whatever becomes of a connection is no failure, and says nothing of proofs.
    pub(super) fn excuse(&mut self, number: u64) {
        if let Some(permit) = self.pending.get_mut(&number) {
            permit.is_judged = true;
        }
    }

    /// A connection has proved the wrong thing, or nothing in time; it still has its permit.
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

    /// Once for each connection, and not where it has succeeded; returns whether it did.
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

    /// Connections with a permit.
    pub(super) fn taken(&self) -> usize {
        self.pending.len()
    }

    /// Sources with a penalty.
    pub(super) fn penalised(&self, now: Instant) -> usize {
        self.penalties.count(now)
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    /// Whose permit one more connection of `source` takes; `None`: nobody's, it is dropped itself.
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
        // Of sources with as much, the one with the oldest connection goes first.
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

    /// Whether one of so many `arrivals` is dropped, of which `permits` are to have the time of a proof.
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
    /// Places, and failures that count like them.
    fn weight(&self, now: Instant) -> usize {
        self.numbers.len() + failures(self.penalty_until, now) as usize
    }
}

/// How many connections a source made within some time: each one counts less the longer ago it was.
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

/// How long a proof takes that succeeds: its mean and its deviation, both smoothed (RFC 6298, section 2).
#[derive(Debug, Default)]
struct ProofTime(Option<(Duration, Duration)>);

impl ProofTime {
    /// Before one has succeeded, and at most: two round trips of 100 ms, and 50 ms to compute. A longer time would drop
    /// more connections of those who are fast, see `arbiter/simulation.rs`.
    const MOST: Duration = Duration::from_millis(250);
    /// Least: a proof of the next machine may wait this long for a processor.
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

    /// A quarter more than the mean, and four times the deviation. Without that quarter, proofs that are too slow, and so
    /// are never seen, would shorten the time further and further.
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

    /// Which connection goes for one more of `host`; `None`: the new one.
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
        // The ninth within the time of a proof: eight of nine are admitted.
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
        // However fast it is, chance lets one in.
        for _ in 0..10_000 {
            evicted(&mut arbiter, start, 1, 0.999_999);
        }
        assert_eq!(evicted(&mut arbiter, start, 1, 0.0), Some(1));
        // Chance is not asked once it is no longer fast, nor about anybody else.
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
        // Twenty in 300 ms are no more than six in 80 ms.
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

    /// Such as a client that is told that its forward is full, a scrape of the admin port, and a header of a load balancer.
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
            "it goes itself"
        );
        assert_eq!(evicted(&mut arbiter, start, 99, admitted - 1e-9), Some(0));
        // With a permit free, nobody looks at its failures.
        arbiter.leave(1);
        assert!(matches!(
            arbiter.enter(start, bad, &mut || unreachable!("a permit is free")),
            Entrance::Admitted { evicted: None, .. }
        ));
    }
}
