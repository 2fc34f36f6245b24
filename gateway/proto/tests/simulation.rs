//! Random schedules of two sessions: byte-exact delivery, conservation of credit, no silent
//! truncation, no leak, and an end to everything.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a test"
)]

mod sim;

use sim::{Sometimes, World};

/// Seeds of one `cargo test`; `MUX_SIM_SEEDS=N` runs more.
const SEEDS_DEFAULT: u64 = 400;
const STEPS: usize = 600;

fn run(seed: u64) -> Sometimes {
    let mut world = World::new(seed);
    for step in 0..STEPS {
        world.step();
        if step % 150 == 149 {
            world.settle_and_check_conservation();
        }
    }
    world.finish_fairly();
    world.sometimes
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is not a number: {text}"))
    })
}

#[test]
fn any_schedule_delivers_exactly_what_was_sent_and_conserves_credit() {
    if let Some(seed) = number("MUX_SIM_SEED") {
        run(seed);
        return;
    }
    let mut sum = Sometimes::default();
    for seed in 0..number("MUX_SIM_SEEDS").unwrap_or(SEEDS_DEFAULT) {
        let seen = std::panic::catch_unwind(|| run(seed)).unwrap_or_else(|cause| {
            eprintln!(
                "replay: MUX_SIM_SEED={seed} cargo test -p muxtunnel-proto --test simulation"
            );
            std::panic::resume_unwind(cause)
        });
        sum.credit_exhausted += seen.credit_exhausted;
        sum.header_cut += seen.header_cut;
        sum.refused += seen.refused;
        sum.resets += seen.resets;
        sum.clean_ends += seen.clean_ends;
        sum.late_answers += seen.late_answers;
        sum.discarded += seen.discarded;
        sum.windows_grown += seen.windows_grown;
    }
    let Sometimes {
        credit_exhausted,
        header_cut,
        refused,
        resets,
        clean_ends,
        late_answers,
        discarded,
        windows_grown,
    } = sum;
    for (what, count) in [
        ("credit exhausted", credit_exhausted),
        ("header cut", header_cut),
        ("open refused", refused),
        ("stream reset", resets),
        ("clean end", clean_ends),
        ("open timed out", late_answers),
        ("payload discarded", discarded),
        ("window grown", windows_grown),
    ] {
        assert!(count > 0, "no schedule reached: {what}");
    }
}

#[test]
fn a_lost_carrier_resets_every_stream_and_leaves_nothing() {
    for seed in 0..50 {
        let mut world = World::new(seed);
        for _ in 0..STEPS {
            world.step();
        }
        for side in &mut world.sides {
            let before = side.session.stream_count();
            side.session
                .handle_carrier_lost(muxtunnel_proto::CarrierId::ONLY);
            let events = std::iter::from_fn(|| side.session.poll_event()).count();
            assert_eq!(events, before, "seed {seed}: each stream ends in one event");
            assert_eq!(
                (
                    side.session.stream_count(),
                    side.session.receive_budget_used()
                ),
                (0, 0)
            );
        }
    }
}
