//! The delivery of bytes over a lossy path, and its rate.

use std::time::Duration;

use muxtunnel_proto::kcp::Failure;

use super::world::{Path, World};

/// Transfers `bytes` in one direction. Returns the rate in bytes per second.
fn rate(world: &mut World, bytes: u64) -> u64 {
    world.run(Duration::from_secs(600));
    assert_eq!(world.ends[1].read, bytes, "{}", world.progress());
    bytes * 1_000_000 / world.elapsed().as_micros() as u64
}

#[test]
fn bytes_arrive_as_they_were_sent_whatever_the_path_does() {
    for seed in 0..20 {
        for loss in [0, 10, 50, 200] {
            for (reorder, duplicate) in [(0, 0), (100, 20), (500, 300)] {
                let path = Path {
                    reorder,
                    duplicate,
                    ..Path::FAR.losing(loss)
                };
                let mut world = World::new(seed, path, [300_000, 70_001]);
                world.run(Duration::from_secs(120));
                let read = [world.ends[0].read, world.ends[1].read];
                assert_eq!(read, [70_001, 300_000], "{}", world.progress());
            }
        }
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    let run = || {
        let mut world = World::new(3, Path::FAR.losing(50), [2_000_000, 0]);
        world.run(Duration::from_secs(60));
        (world.elapsed(), world.datagrams)
    };
    assert_eq!(run(), run());
}

/// The path has 100 Mbit/s and a delay of 50 ms in each direction. The start overflows the path's
/// queue once. For comparison: TCP with Reno sends 1.2 sqrt(1/p) segments per round trip at a loss
/// of p. On this path that is 1.3 Mbit/s at a loss of 1 %, and 0.6 Mbit/s at 5 %.
#[test]
fn loss_costs_about_what_is_lost() {
    const BYTES: u64 = 60_000_000;
    for (loss, least) in [(0, 80), (10, 75), (50, 65), (200, 20)] {
        let mut world = World::new(1, Path::FAR.losing(loss), [BYTES, 0]);
        let percent = rate(&mut world, BYTES) * 100 / Path::FAR.rate;
        assert!(percent >= least, "{loss}: {percent} % {}", world.progress());
        let resent = world.ends[0].connection.path().resent;
        let segments = BYTES / 1376;
        assert!(
            resent * 1000 <= segments * (loss * 3 + 80),
            "{loss}: {resent} of {segments} segments were sent again"
        );
    }
}

#[test]
fn a_queue_that_holds_little_is_no_reason_to_send_twice() {
    const BYTES: u64 = 60_000_000;
    let path = Path {
        queue: 60_000,
        ..Path::FAR
    };
    let mut world = World::new(1, path, [BYTES, 0]);
    let percent = rate(&mut world, BYTES) * 100 / path.rate;
    assert!(percent >= 60, "{percent} % {}", world.progress());
    let resent = world.ends[0].connection.path().resent;
    assert!(
        resent * 4 < BYTES / 1376,
        "{resent} segments were sent again"
    );
}

#[test]
fn a_gigabit_over_a_hundred_milliseconds_fits_into_the_window() {
    const BYTES: u64 = 400_000_000;
    let path = Path {
        rate: 125_000_000,
        queue: 8 << 20,
        ..Path::FAR
    };
    let mut world = World::beginning_at(1, path, [BYTES, 0], 0, 64 << 20);
    let percent = rate(&mut world, BYTES) * 100 / path.rate;
    assert!(percent >= 60, "{percent} % {}", world.progress());
}

#[test]
fn numbers_begin_again_without_a_trace() {
    let first = (1 << 32) - 100;
    let path = Path {
        reorder: 100,
        duplicate: 50,
        ..Path::FAR.losing(50)
    };
    let mut world = World::beginning_at(1, path, [1_000_000, 1_000_000], first, 4 << 20);
    world.run(Duration::from_secs(60));
    assert_eq!(world.ends[0].read, 1_000_000);
}

#[test]
fn a_reader_that_pauses_closes_the_window_and_opens_it_again() {
    for loss in [0, 100] {
        let mut world = World::beginning_at(1, Path::FAR.losing(loss), [4_000_000, 0], 0, 1 << 20);
        world.ends[1].reads_from = world.now + Duration::from_secs(4);
        world.run(Duration::from_secs(30));
        assert_eq!(world.ends[1].read, 4_000_000);
        assert!(
            world.elapsed() < Duration::from_secs(8),
            "{}",
            world.progress()
        );
    }
}

#[test]
fn an_end_that_has_vanished_is_noticed_busy_or_idle() {
    for idle in [false, true] {
        let bytes = if idle { 100 } else { 40_000_000 };
        let mut world = World::new(1, Path::FAR, [bytes, 1_000]);
        let cut = world.now + Duration::from_secs(2);
        world.cut = Some(cut);
        world.ends[1].finishes = false;
        while world.ends[0].connection.failure().is_none() {
            assert!(
                world.elapsed() < Duration::from_secs(40),
                "{}",
                world.progress()
            );
            world.step();
        }
        assert_eq!(world.ends[0].connection.failure(), Some(Failure::Vanished));
        let after = world.now - cut;
        assert!(after < Duration::from_secs(16), "{after:?}");
    }
}

/// A satellite link, or a full queue of a mobile network.
#[test]
fn a_round_trip_of_ten_seconds_with_loss_is_no_vanished_peer() {
    for seed in 1..=8 {
        let path = Path {
            delay: Duration::from_secs(5),
            ..Path::FAR.losing(70)
        };
        let mut world = World::new(seed, path, [200_000, 200_000]);
        world.run(Duration::from_secs(600));
        let failures = [0, 1].map(|end| world.ends[end].connection.failure());
        assert_eq!(failures, [None; 2], "{}", world.progress());
    }
}
