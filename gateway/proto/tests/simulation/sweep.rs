//! Many random schedules, each from its own seed.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use crate::sim::{self, Choices, Protocol, Seen, Sometimes};

/// Number of fixed seeds in one run of the test. `MUX_SIM_SEEDS=N` sets another number.
const SEEDS_DEFAULT: u64 = 10_000;
/// Number of seeds that each run of the test draws at random.
const DRAWN_SEEDS: u64 = 1_000;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{name} is not a number: {text}")))
}

fn forced() -> Option<Protocol> {
    match std::env::var("MUX_SIM_PROTOCOL").ok()?.as_str() {
        "Jmux" => Some(Protocol::Jmux),
        "Native" => Some(Protocol::Native),
        other => panic!("MUX_SIM_PROTOCOL is Jmux or Native, not {other}"),
    }
}

/// A seed that differs in each run.
fn drawn() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

/// Runs seeds until all seeds have been run. The first `fixed` seeds are the numbers below `fixed`,
/// and the other seeds follow `drawn`.
fn work(next: &AtomicU64, fixed: u64, drawn: u64) -> Sometimes {
    let seeds = fixed + DRAWN_SEEDS;
    let mut sum = Sometimes::default();
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= seeds {
            return sum;
        }
        let seed = match number < fixed {
            true => number,
            false => drawn.wrapping_add(number - fixed),
        };
        let run = || sim::run(forced(), Choices::Seed(seed), false).sometimes;
        let seen = std::panic::catch_unwind(run).unwrap_or_else(|cause| {
            // Stops the other threads.
            next.store(seeds, Ordering::Relaxed);
            eprintln!("replay: MUX_SIM_SEED={seed} cargo test -p muxtunnel-proto --test simulation any_schedule");
            std::panic::resume_unwind(cause)
        });
        sum.add(&seen);
    }
}

#[test]
fn any_schedule_delivers_exactly_what_was_sent_and_conserves_credit() {
    if let Some(seed) = number("MUX_SIM_SEED") {
        sim::run(forced(), Choices::Seed(seed), true);
        return;
    }
    let fixed = number("MUX_SIM_SEEDS").unwrap_or(SEEDS_DEFAULT);
    let drawn = drawn();
    eprintln!("{DRAWN_SEEDS} seeds from {drawn} on, next to the first {fixed}");
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicU64::new(0);
    let mut sum = Sometimes::default();
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| scope.spawn(|| work(&next, fixed, drawn)))
            .collect();
        for worker in workers {
            match worker.join() {
                Ok(seen) => sum.add(&seen),
                Err(cause) => std::panic::resume_unwind(cause),
            }
        }
    });
    check_variety(&sum);
}

/// Asserts that the sweep has reached every expected state.
fn check_variety(sum: &Sometimes) {
    for protocol in Protocol::ALL {
        if forced().is_some_and(|forced| forced != protocol) {
            continue;
        }
        let missed: Vec<Seen> = Seen::expected(protocol)
            .filter(|seen| sum.count(protocol, *seen) == 0)
            .collect();
        for seen in Seen::expected(protocol) {
            eprintln!("{protocol:?} {seen:?}: {}", sum.count(protocol, seen));
        }
        assert!(missed.is_empty(), "no {protocol:?} run reached {missed:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 0..20 {
        let hash = || sim::run(None, Choices::Seed(seed), false).trace.hash();
        assert_eq!(hash(), hash(), "seed {seed}");
    }
}
