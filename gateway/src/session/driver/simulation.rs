//! Runs two drivers, one of an entry and one of an exit, in a simulated world. A seed determines
//! the world.
//!
//! [`wire`] implements carriers in memory. [`kernel`] implements carriers on TCP sockets, whose
//! payload can be spliced. Both kinds of carrier transfer bytes in pieces of random size, return
//! `WouldBlock` at random, and get cut. [`application`] simulates the applications at the local
//! sockets. [`record`] stores and checks the actions and observations of each application.
//! [`world`] advances the clock and injects faults. [`rest`] states the invariants of an idle
//! world, and [`seen`] lists the cases that a sweep must cover.
//!
//! Determinism: the seed makes every choice, only the world advances the clock, and the driver
//! polls its branches in a fixed order. Local Unix sockets are deterministic, since the kernel does
//! all of their work in the call. Local TCP sockets and TCP carriers use the kernel's timers. A
//! replay of such a seed makes the same choices, perhaps in another order.
//! [`profile::Profile::is_exact`] reports which seeds replay exactly.

#[allow(
    dead_code,
    unreachable_pub,
    reason = "shared with the core's simulation"
)]
#[path = "../../../proto/tests/simulation/sim/choice.rs"]
mod choice;

mod application;
mod kernel;
mod profile;
mod record;
mod rest;
mod seen;
mod stage;
mod wire;
mod world;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use profile::Profile;
use seen::Seen;

/// Number of fixed seeds in one run of the test; `MUX_DRIVER_SEEDS=N` runs the first N.
const SEEDS_DEFAULT: u64 = 400;
/// Number of seeds that each run of the test draws at random.
const DRAWN_SEEDS: u64 = 50;

/// In how many runs each case was covered, separately for the native protocol and JMUX.
type Sums = BTreeMap<(bool, Seen), u64>;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{name} is not a number: {text}")))
}

/// Runs seeds that no other thread has taken, until all seeds are taken. The first `fixed` seeds
/// are the numbers below `fixed`, and the other seeds follow `drawn`.
fn work(next: &AtomicU64, fixed: u64, drawn: u64, sums: &Mutex<Sums>) {
    let seeds = fixed + DRAWN_SEEDS;
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= seeds {
            return;
        }
        let seed = match number < fixed {
            true => number,
            false => drawn.wrapping_add(number - fixed),
        };
        let run = std::panic::catch_unwind(|| world::run(seed, false));
        let run = run.unwrap_or_else(|cause| {
            // After a failure, the other threads take no further seed.
            next.store(seeds, Ordering::Relaxed);
            eprintln!(
                "replay: MUX_DRIVER_SEED={seed} cargo test --workspace --lib driver::simulation::any_schedule"
            );
            std::panic::resume_unwind(cause)
        });
        let mut sums = sums.lock().unwrap();
        for seen in run.seen {
            *sums.entry((run.native, seen)).or_default() += 1;
        }
    }
}

#[test]
fn any_schedule_delivers_exactly_what_was_sent_and_leaves_nothing() {
    if let Some(seed) = number("MUX_DRIVER_SEED") {
        world::run(seed, true);
        return;
    }
    let fixed = number("MUX_DRIVER_SEEDS").unwrap_or(SEEDS_DEFAULT);
    let drawn = rand::random();
    eprintln!("{DRAWN_SEEDS} seeds from {drawn} on, next to the first {fixed}");
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let (next, sums) = (AtomicU64::new(0), Mutex::default());
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| scope.spawn(|| work(&next, fixed, drawn, &sums)))
            .collect();
        for worker in workers {
            if let Err(cause) = worker.join() {
                std::panic::resume_unwind(cause);
            }
        }
    });
    check_variety(&sums.into_inner().unwrap());
}

/// Checks that the sweep covered every expected case. A sweep proves nothing about other cases.
fn check_variety(sums: &Sums) {
    let mut missed = Vec::new();
    for native in [true, false] {
        for seen in Seen::expected(native) {
            let count = sums.get(&(native, seen)).copied().unwrap_or_default();
            let protocol = if native { "Native" } else { "Jmux" };
            eprintln!("{protocol} {seen:?}: {count}");
            if count == 0 {
                missed.push((protocol, seen));
            }
        }
    }
    assert!(missed.is_empty(), "no run covered {missed:?}");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let exact = (0..).filter(|seed| Profile::draw(*seed).is_exact());
    for seed in exact.take(10) {
        let hash = || world::run(seed, false).hash;
        assert_eq!(hash(), hash(), "seed {seed}");
    }
}
