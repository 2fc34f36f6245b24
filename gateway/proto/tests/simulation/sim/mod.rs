//! Deterministic simulation of two sessions. Every decision comes from one source of choices, so
//! the same harness is used for a sweep over seeds, for a replay, and as a fuzz target.
//!
//! [`world`] has the state and advances the clock. [`application`], [`event`], [`carrier`],
//! [`pool`] and [`fault`] are the possible actions. [`model`] checks the events that sessions
//! report to applications. [`wire`] checks the frames that they send to each other. [`check`] has
//! the invariants of every step. [`ending`] ends a run.

#![allow(
    unreachable_pub,
    clippy::disallowed_methods,
    reason = "a test module that starts its own virtual clock"
)]

mod application;
mod carrier;
mod check;
mod choice;
mod ending;
mod event;
mod fault;
mod link;
mod listens;
mod model;
pub mod oracles;
mod pipe;
mod pool;
mod profile;
mod seen;
mod socket;
mod trace;
mod wire;
mod world;

pub use choice::Choices;
pub use profile::{End, Faults, Profile, Protocol};
pub use seen::{Seen, Sometimes};
pub use socket::Ending;
pub use world::{ENTRY, EXIT, World};

/// Number of actions in a run before its fair end.
const STEPS: usize = 1000;
/// Number of actions between two comparisons of the states of both ends.
const STEPS_BETWEEN_RESTS: usize = 200;

/// One run from its first choice to its end.
pub fn run(forced: Option<Protocol>, choices: Choices, printed: bool) -> World {
    let mut world = World::drawn(forced, choices);
    world.trace.printed = printed;
    for step in 1..=STEPS {
        world.step();
        if step % STEPS_BETWEEN_RESTS == 0 {
            world.settle_and_check();
        }
        if world.choices.exhausted() {
            break;
        }
    }
    world.finish_fairly();
    if world.wire.pongs() > 0 {
        world.see(Seen::Pong);
    }
    world
}
