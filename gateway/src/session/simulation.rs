//! Runs two sessions, one of an entry and one of an exit, in a simulated world. A seed determines
//! the world. The sessions have the driver, or the links of HTTP/2, as their engine.
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
#[path = "../../proto/tests/simulation/sim/choice.rs"]
mod choice;

mod application;
mod frames;
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
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use profile::{Family, Kind, Profile};

pub(super) use rest::Side;
pub(super) use seen::Seen;

/// The seeds of one sweep; `MUX_SESSION_SEEDS=N` runs the first N instead of the first `first`.
struct Seeds {
    first: u64,
    /// Later seeds that found a fault.
    found: &'static [u64],
    /// Number of seeds that each run of the test draws at random.
    drawn: u64,
}

const SEEDS_OF_FRAMES: Seeds = Seeds {
    first: 400,
    found: &[],
    drawn: 50,
};
const SEEDS_OF_HTTP2: Seeds = Seeds {
    first: 200,
    found: &[471, 991, 1860],
    drawn: 100,
};

/// In how many runs of each protocol each case was covered.
type Sums = BTreeMap<(Kind, Seen), u64>;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{name} is not a number: {text}")))
}

/// Runs seeds that no other thread has taken, until all `seeds` are taken.
fn work(family: Family, next: &AtomicUsize, seeds: &[u64], sums: &Mutex<Sums>) {
    while let Some(seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)) {
        let run = std::panic::catch_unwind(|| world::run(family, *seed, false));
        let run = run.unwrap_or_else(|cause| {
            // After a failure, the other threads take no further seed.
            next.store(seeds.len(), Ordering::Relaxed);
            eprintln!(
                "replay of {family:?}: MUX_SESSION_SEED={seed} cargo test --workspace --lib session::simulation::any_schedule"
            );
            std::panic::resume_unwind(cause)
        });
        let mut sums = sums.lock().unwrap();
        for seen in run.seen {
            *sums.entry((run.kind, seen)).or_default() += 1;
        }
    }
}

#[test]
fn any_schedule_delivers_exactly_what_was_sent_and_leaves_nothing() {
    let kinds = [Kind::Native, Kind::Jmux];
    sweep(Family::Frames, &SEEDS_OF_FRAMES, &kinds);
}

#[test]
fn any_schedule_of_http2_delivers_exactly_what_was_sent_and_leaves_nothing() {
    sweep(Family::Http2, &SEEDS_OF_HTTP2, &[Kind::Http2]);
}

/// Runs seeds. Checks that the runs covered every expected case of `kinds`. A sweep proves nothing
/// about other cases.
fn sweep(family: Family, seeds: &Seeds, kinds: &[Kind]) {
    if let Some(seed) = number("MUX_SESSION_SEED") {
        world::run(family, seed, true);
        return;
    }
    let first = number("MUX_SESSION_SEEDS").unwrap_or(seeds.first);
    let begin: u64 = rand::random();
    eprintln!(
        "{} seeds from {begin} on, next to the first {first}",
        seeds.drawn
    );
    let drawn = (0..seeds.drawn).map(|number| begin.wrapping_add(number));
    let found = seeds.found.iter().copied();
    let seeds: Vec<_> = (0..first).chain(found).chain(drawn).collect();
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let (next, sums) = (AtomicUsize::new(0), Mutex::default());
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| scope.spawn(|| work(family, &next, &seeds, &sums)))
            .collect();
        for worker in workers {
            if let Err(cause) = worker.join() {
                std::panic::resume_unwind(cause);
            }
        }
    });
    let sums: Sums = sums.into_inner().unwrap();
    let mut missed = Vec::new();
    for kind in kinds {
        for seen in Seen::expected(*kind) {
            let count = sums.get(&(*kind, seen)).copied().unwrap_or_default();
            eprintln!("{kind:?} {seen:?}: {count}");
            if count == 0 {
                missed.push((*kind, seen));
            }
        }
    }
    assert!(missed.is_empty(), "no run covered {missed:?}");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let exact = (0..).filter(|seed| Profile::draw(Family::Frames, *seed).is_exact());
    for seed in exact.take(10) {
        let hash = || world::run(Family::Frames, seed, false).hash;
        assert_eq!(hash(), hash(), "seed {seed}");
    }
}
