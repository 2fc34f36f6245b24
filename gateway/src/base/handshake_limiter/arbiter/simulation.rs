//! Simulates silent attackers and authenticating peers, and measures the share of the peers'
//! attempts that succeeds under each rule. Every random value follows from a seed, so a run is
//! reproducible.

use std::net::Ipv4Addr;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;

const PERMITS: usize = 256;
/// When the attack begins. The peers connect from the start.
const ATTACK: Duration = Duration::from_secs(2);
const END: Duration = Duration::from_secs(8);
const PEERS_A_SECOND: f64 = 20.0;
/// How long a proof takes: a path of 100 ms, plus or minus a quarter.
const PROOF: Duration = Duration::from_millis(100);
/// Maximum time that a proof may take.
const PROOF_MAX: Duration = Duration::from_secs(5);

/// How a full arbiter decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// Evict the oldest connection of the source with the most permits.
    Eviction,
    /// Only drop new connections, as OpenSSH's MaxStartups: some of them once half of the permits
    /// are taken, and all of them once no permit is free.
    Drop,
    /// The arbiter's rule.
    Both,
}

#[derive(Debug, Clone, Copy)]
enum Event {
    Attacker,
    Peer,
    Proved { number: u64 },
    TimedOut { number: u64 },
}

struct World {
    rule: Rule,
    arbiter: Arbiter,
    rng: StdRng,
    start: Instant,
    now: Duration,
    /// Events by time, then by order of creation.
    events: BTreeMap<(Duration, u64), Event>,
    made: u64,
    attackers: u32,
    attackers_a_second: f64,
    peers: Source,
    tried: u32,
    proved: u32,
}

/// The share of the peers' attempts that succeeds while `attackers` sources together open
/// `attackers_a_second` connections per second. With `is_shared`, the peers use the attackers'
/// address, otherwise a separate address.
fn share(rule: Rule, attackers: u32, attackers_a_second: f64, is_shared: bool) -> f64 {
    share_with(rule, attackers, attackers_a_second, is_shared, false)
}

/// Works as [`share`]. `has_failed`: whether another host behind the peers' address has failed
/// before the attack begins.
fn share_with(
    rule: Rule,
    attackers: u32,
    attackers_a_second: f64,
    is_shared: bool,
    has_failed: bool,
) -> f64 {
    let early_drop = match rule {
        Rule::Both => EarlyDrop::On,
        Rule::Eviction | Rule::Drop => EarlyDrop::Off,
    };
    let mut world = World {
        rule,
        arbiter: Arbiter::new(PERMITS, early_drop),
        rng: StdRng::seed_from_u64(1),
        start: Instant::now(),
        now: Duration::ZERO,
        events: BTreeMap::new(),
        made: 0,
        attackers,
        attackers_a_second,
        peers: match is_shared {
            true => source(0),
            false => source(u32::MAX),
        },
        tried: 0,
        proved: 0,
    };
    if has_failed {
        world
            .arbiter
            .penalties
            .add(world.start + ATTACK, world.peers);
    }
    world.plan(Duration::ZERO, Event::Peer);
    world.plan(ATTACK, Event::Attacker);
    while let Some(((at, _), event)) = world.events.pop_first()
        && at < END
    {
        world.now = at;
        world.step(event);
    }
    f64::from(world.proved) / f64::from(world.tried)
}

fn source(number: u32) -> Source {
    Some(IpAddr::V4(Ipv4Addr::from_bits(number)))
}

impl World {
    fn plan(&mut self, after: Duration, event: Event) {
        self.made += 1;
        self.events.insert((self.now + after, self.made), event);
    }

    fn step(&mut self, event: Event) {
        let now = self.start + self.now;
        match event {
            Event::Attacker => {
                let gap = self.gap(self.attackers_a_second);
                self.plan(gap, Event::Attacker);
                let from = source(self.rng.random_range(0..self.attackers));
                if let Some(number) = self.enter(from) {
                    self.plan(PROOF_MAX, Event::TimedOut { number });
                }
            }
            Event::Peer => {
                let gap = self.gap(PEERS_A_SECOND);
                self.plan(gap, Event::Peer);
                // Connections shortly before the end have no time for a proof.
                let counts = self.now >= ATTACK + PROOF && self.now + 2 * PROOF < END;
                self.tried += u32::from(counts);
                if let Some(number) = self.enter(self.peers) {
                    let takes = PROOF.mul_f64(self.rng.random_range(0.75..1.25));
                    self.plan(takes, Event::Proved { number });
                }
            }
            Event::Proved { number } => {
                if let Some(permit) = self.arbiter.pending.get(&number) {
                    let came = permit.since - self.start;
                    let counts = came >= ATTACK + PROOF && came + 2 * PROOF < END;
                    self.proved += u32::from(counts);
                    self.arbiter.succeed(now, number);
                    self.arbiter.leave(number);
                }
            }
            Event::TimedOut { number } => {
                self.arbiter.fail(now, number);
                self.arbiter.leave(number);
            }
        }
    }

    fn enter(&mut self, from: Source) -> Option<u64> {
        let now = self.start + self.now;
        if self.rule == Rule::Drop {
            let half = PERMITS / 2;
            let beyond = self.arbiter.taken().saturating_sub(half) as f64 / half as f64;
            if self.rng.random::<f64>() < beyond {
                return None;
            }
        }
        let rng = &mut self.rng;
        let entrance = self.arbiter.enter(now, from, &mut || rng.random());
        if self.rule != Rule::Both {
            self.forget_failures();
        }
        match entrance {
            Entrance::Admitted { number, .. } => Some(number),
            Entrance::Dropped => None,
        }
    }

    /// Clears the penalties, for the rules without penalties.
    fn forget_failures(&mut self) {
        self.arbiter.penalties = Penalties::default();
        for of_source in self.arbiter.by_source.values_mut() {
            of_source.penalty_until = None;
        }
    }

    /// The time until the next of `a_second` independent events per second.
    fn gap(&mut self, a_second: f64) -> Duration {
        let drawn: f64 = self.rng.random();
        Duration::from_secs_f64(-(1.0 - drawn).ln() / a_second)
    }
}

#[test]
fn behind_one_address_a_flood_keeps_no_peer_out_for_certain() {
    let behind_one = |rule, a_second| share(rule, 1, a_second, true);
    let [slow, fast, flood] = [500.0, 2_000.0, 10_000.0];
    let shares = [Rule::Eviction, Rule::Drop, Rule::Both]
        .map(|rule| [slow, fast, flood].map(|a_second| behind_one(rule, a_second)));
    println!("eviction, drop, both: {shares:.3?}");
    let [eviction, drop, both] = shares;
    // Eviction admits every peer while the 256 permits last for the time of a proof. At a higher
    // rate of attack, eviction admits no peer.
    assert!(eviction[0] > 0.99 && eviction[1] > 0.90 && eviction[2] < 0.01);
    // Dropping only new connections excludes most peers even in a slow attack.
    assert!(drop[0] < 0.25 && drop[1] < 0.10 && drop[2] < 0.02);
    assert!(both[0] > 0.99 && both[1] > 0.65 && both[2] > 0.15);
}

#[test]
fn peers_that_do_not_fail_are_let_in_among_hundreds_of_addresses_that_do() {
    let among = |rule| share(rule, 300, 5_000.0, false);
    let shares = [Rule::Eviction, Rule::Both].map(among);
    println!("eviction, both: {shares:.3?}");
    let [eviction, both] = shares;
    assert!(eviction < 0.15 && both > 0.60);
}

/// A failing neighbour must not lock out the peers behind the same address, regardless of the
/// number of attacking addresses.
#[test]
fn peers_behind_an_address_that_has_failed_get_in_among_addresses_that_come_once() {
    // The attack is so fast that it soon takes every permit.
    let shares = [false, true].map(|has_failed| {
        let everyone = u32::MAX - 1;
        share_with(Rule::Both, everyone, 2_500.0, false, has_failed)
    });
    println!("without and with a penalty: {shares:.3?}");
    assert!(shares[0] > shares[1] && shares[1] > 0.05);
}

#[test]
fn a_flood_from_another_address_costs_a_peer_nothing() {
    for rule in [Rule::Eviction, Rule::Both] {
        let share = share(rule, 1, 10_000.0, false);
        assert!(share > 0.99, "{rule:?}: {share}");
    }
}
