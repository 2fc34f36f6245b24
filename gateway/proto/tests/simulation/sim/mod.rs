//! Deterministic simulation of two sessions: everything is drawn from one source of choices, so the
//! same harness is a sweep over seeds, a replay and a fuzz target.
//!
//! [`world`] is the stage and moves the clock; [`application`], [`event`], [`carrier`], [`pool`] and [`fault`] are
//! what can happen on it; [`model`] and [`wire`] judge what sessions say to applications and to each other;
//! [`check`] holds at every moment; [`ending`] lets a run come to its end.

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

/// Things that happen in a run before its fair end.
const STEPS: usize = 1000;
/// Steps between two comparisons of both ends' books.
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
