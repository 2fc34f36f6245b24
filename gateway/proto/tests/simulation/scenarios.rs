//! Deliberate schedules: one stalled reader, many stalled readers, bulk next to small streams, a
//! lost carrier. A round is one round trip of a carrier with one millisecond of delay. No test
//! waits for a clock.

use std::time::Duration;

use muxtunnel_proto::{Priority, StreamId};

use crate::sim::{Choices, ENTRY, EXIT, End, Ending, Profile, Protocol, World};

/// Maximum number of bytes that every source sends in one round.
const ROUND_BYTES: usize = 20_000;

fn world(profile: Profile) -> World {
    World::new(profile, Choices::Seed(0))
}

/// Runs one round trip. Both sides write as much as the carrier accepts, and up to `bytes` arrive.
fn exchange(world: &mut World, bytes: usize) {
    for _ in 0..2 {
        for side in [ENTRY, EXIT] {
            world.transmit(side, usize::MAX);
        }
        let arrival = world.now + world.profile.delay;
        world.advance_to(arrival);
        for side in [ENTRY, EXIT] {
            world.receive(side, bytes);
        }
        world.check();
    }
}

/// Opens endless streams from the entry. The exit accepts the streams.
fn open(world: &mut World, count: usize) -> Vec<StreamId> {
    open_as(world, &vec![Priority::Auto; count])
}

/// Opens endless streams from the entry, one with each of `priorities`. The exit accepts the
/// streams.
fn open_as(world: &mut World, priorities: &[Priority]) -> Vec<StreamId> {
    exchange(world, usize::MAX);
    let mut open = |priority| world.open_as(ENTRY, u64::MAX, Ending::Finish, priority);
    let streams = priorities.iter().map(|priority| open(*priority).unwrap());
    let streams: Vec<StreamId> = streams.collect();
    exchange(world, usize::MAX);
    exchange(world, usize::MAX);
    for side in &world.sides {
        assert_eq!(side.session.stream_count(), priorities.len());
    }
    streams
}

/// Runs one round. The sockets of `senders` may send. All readers of the exit except the first
/// `stalled` read all data.
fn round(world: &mut World, senders: &[StreamId], stalled: u32, bytes: usize) {
    for &id in senders {
        world.source(ENTRY, id, ROUND_BYTES);
    }
    exchange(world, bytes);
    let readers: Vec<StreamId> = world.sides[EXIT]
        .sockets
        .iter()
        .filter(|(_, socket)| socket.label >= stalled)
        .map(|(id, _)| *id)
        .collect();
    for id in readers {
        world.sink(EXIT, id, u64::MAX);
    }
}

fn delivered(world: &World, labels: std::ops::Range<usize>) -> Vec<u64> {
    labels
        .map(|label| world.model.streams[label].flows[ENTRY].delivered)
        .collect()
}

/// Returns the bytes that each stream after the first `stalled` delivers. The first `stalled`
/// streams do not read or, if `silent`, do not send.
fn others(protocol: Protocol, stalled: usize, silent: bool) -> Vec<u64> {
    let mut world = world(Profile {
        pipe_bytes: usize::MAX,
        ..Profile::plain(protocol)
    });
    let streams = open(&mut world, 40);
    // First all readers read, so that the windows of the later stalled streams have grown.
    for _ in 0..100 {
        round(&mut world, &streams, 0, usize::MAX);
    }
    let senders = if silent {
        &streams[stalled..]
    } else {
        &streams[..]
    };
    for _ in 0..1000 {
        round(&mut world, senders, stalled as u32, usize::MAX);
    }
    delivered(&world, stalled..40)
}

/// The entry has received payload that its socket has not taken.
#[test]
fn a_stream_that_has_used_all_its_offsets_leaves_no_payload() {
    let mut world = world(Profile {
        bytes_left: Some(5 * ROUND_BYTES as u64),
        ..Profile::plain(Protocol::Native)
    });
    let streams = open(&mut world, 1);
    let id = streams[0];
    let target = world.sides[EXIT].sockets.get_mut(&id).unwrap();
    target.plan = u64::MAX;
    assert!(world.source(EXIT, id, ROUND_BYTES));
    exchange(&mut world, usize::MAX);
    assert_eq!(world.sides[ENTRY].sockets[&id].held, ROUND_BYTES as u64);
    for _ in 0..8 {
        world.source(ENTRY, id, ROUND_BYTES);
        world.drain_events(ENTRY);
        exchange(&mut world, usize::MAX);
        world.sink(EXIT, id, u64::MAX);
    }
    for side in &world.sides {
        assert_eq!(side.session.stream_count(), 0);
        assert_eq!(side.session.receive_budget_used(), 0);
    }
}

#[test]
fn beside_stalled_readers_the_others_deliver_as_much_as_without_them() {
    for protocol in Protocol::ALL {
        for stalled in [1, 39] {
            let beside = others(protocol, stalled, false);
            let without = others(protocol, stalled, true);
            assert_eq!(beside, without, "{protocol:?}, {stalled} stalled");
            assert!(
                beside
                    .iter()
                    .all(|bytes| *bytes >= 1000 * ROUND_BYTES as u64)
            );
        }
    }
}

#[test]
fn the_others_share_what_stalled_readers_leave_of_the_memory() {
    // 60 first windows of 16 KiB use most of the budget of 1 MiB.
    let mut world = world(Profile {
        ends: [End {
            receive_budget: 1 << 20,
            ..End::plain(Protocol::Native)
        }; 2],
        ..Profile::plain(Protocol::Native)
    });
    let streams = open(&mut world, 62);
    for _ in 0..1000 {
        round(&mut world, &streams, 60, usize::MAX);
    }
    let buffered = world.sides[EXIT].session.receive_budget_used();
    assert!(buffered >= 59 * (16 << 10), "{buffered}");
    let readers = delivered(&world, 60..62);
    assert!(
        readers.iter().all(|bytes| *bytes > 8_000_000),
        "{readers:?}"
    );
}

/// Number of streams that do not read. Their first windows of 16 KiB exceed 1 MiB.
const STALLED: usize = 65;

/// Streams that do not read use the whole memory of 1 MiB. Two other streams read.
fn starved() -> (World, Vec<StreamId>) {
    let mut world = world(Profile {
        ends: [End {
            receive_budget: 1 << 20,
            streams_max: 67,
            ..End::plain(Protocol::Native)
        }; 2],
        ..Profile::plain(Protocol::Native)
    });
    let streams = open(&mut world, STALLED + 2);
    for _ in 0..100 {
        round(&mut world, &streams[..STALLED], STALLED as u32, usize::MAX);
    }
    let buffered = world.sides[EXIT].session.receive_budget_used();
    assert_eq!(buffered, 1 << 20);
    (world, streams)
}

#[test]
fn stalled_readers_that_hold_all_of_the_memory_give_way_after_a_minute() {
    let (mut world, streams) = starved();
    for _ in 0..100 {
        round(&mut world, &streams, STALLED as u32, usize::MAX);
    }
    assert_eq!(
        delivered(&world, STALLED..STALLED + 2),
        [0, 0],
        "readers got credit before a stalled stream was reset"
    );
    world.advance_to(world.now + Duration::from_secs(60));
    for _ in 0..5_000 {
        round(&mut world, &streams, STALLED as u32, usize::MAX);
    }
    let readers = delivered(&world, STALLED..STALLED + 2);
    assert!(
        readers.iter().all(|bytes| *bytes > 10_000_000),
        "{readers:?}"
    );
    // Only as many streams as necessary were ended. All of these streams had a stalled client.
    let left = world.sides[EXIT].session.stream_count();
    assert!((57..67).contains(&left), "{left} streams are left");
    for stream in &streams[STALLED..] {
        assert!(world.sides[ENTRY].session.credit(*stream).is_some());
    }
}

#[test]
fn stalled_readers_keep_their_streams_while_nobody_waits_for_what_they_hold() {
    let mut world = world(Profile {
        ends: [End {
            receive_budget: 1 << 20,
            streams_max: 66,
            ..End::plain(Protocol::Native)
        }; 2],
        ..Profile::plain(Protocol::Native)
    });
    let streams = open(&mut world, 60);
    for _ in 0..100 {
        round(&mut world, &streams, 60, usize::MAX);
    }
    for _ in 0..600 {
        world.advance_to(world.now + Duration::from_secs(1));
        round(&mut world, &streams, 60, usize::MAX);
    }
    assert_eq!(world.sides[EXIT].session.stream_count(), 60);
}

#[test]
fn streams_that_are_gone_leave_their_part_of_the_memory_to_others() {
    for protocol in Protocol::ALL {
        let mut world = world(Profile {
            ends: [End {
                receive_budget: 2 << 20,
                ..End::plain(protocol)
            }; 2],
            ..Profile::plain(protocol)
        });
        exchange(&mut world, usize::MAX);
        for _ in 0..1000 {
            let id = world.open(ENTRY, 1000, Ending::Finish).unwrap();
            let ends = (0..1000).any(|_| {
                world.fair_round();
                exchange(&mut world, usize::MAX);
                !world.sides[ENTRY].sockets.contains_key(&id)
            });
            assert!(ends, "{protocol:?}: {id:?} hangs");
        }
        // Only the last stream remains, and only its window limits it: small streams have no effect
        // any more.
        world.advance_to(world.now + Duration::from_secs(1));
        world.open(ENTRY, u64::MAX, Ending::Finish).unwrap();
        let mut most = 0;
        for _ in 0..200 {
            world.fair_round();
            exchange(&mut world, usize::MAX);
            let sockets = world.sides[EXIT].sockets.values();
            most = most.max(sockets.map(|socket| socket.window_max).sum());
        }
        assert!(most >= 512 << 10, "{protocol:?}: a window of {most} bytes");
    }
}

/// Two bulk streams, and `small` streams of `bytes` in each round trip, over a carrier that limits
/// them. Returns the bytes that each stream delivered, and how often a small stream waited longer
/// than a round.
fn bulk_beside(protocol: Protocol, small: usize, bytes: usize) -> (Vec<u64>, u64) {
    beside_bulk(protocol, &[Priority::Auto; 2], small, bytes)
}

/// Like [`bulk_beside`], with one endless stream of each of these priorities.
fn beside_bulk(
    protocol: Protocol,
    endless: &[Priority],
    small: usize,
    bytes: usize,
) -> (Vec<u64>, u64) {
    let mut world = world(Profile {
        pipe_bytes: CARRIER_BYTES,
        ends: [End {
            frame_max: 16 << 10,
            ..End::plain(protocol)
        }; 2],
        ..Profile::plain(protocol)
    });
    let small = vec![Priority::Auto; small];
    let streams = open_as(&mut world, &[endless, &small].concat());
    let mut waited = 0;
    for turn in 0..ROUNDS {
        for &id in &streams[..endless.len()] {
            world.source(ENTRY, id, CARRIER_BYTES);
        }
        for &id in &streams[endless.len()..] {
            let late = !world.source(ENTRY, id, bytes);
            // In the first turns, the bulk streams are new, so the session treats them as small.
            waited += u64::from(late && turn > 100);
        }
        round(&mut world, &[], 0, CARRIER_BYTES);
    }
    (delivered(&world, 0..streams.len()), waited)
}

const ROUNDS: usize = 2000;
/// Bytes that a carrier accepts in one direction in half a round.
const CARRIER_BYTES: usize = 32 << 10;

#[test]
fn small_streams_do_not_wait_for_bulk() {
    for protocol in Protocol::ALL {
        let (delivered, waited) = bulk_beside(protocol, 10, 200);
        assert_eq!(waited, 0, "{protocol:?}");
        assert!(
            delivered[2..]
                .iter()
                .all(|bytes| *bytes > 200 * (ROUNDS as u64 - 2))
        );
        let fair = (ROUNDS * CARRIER_BYTES / 4) as u64;
        assert!(
            delivered[..2].iter().all(|bytes| *bytes > fair),
            "{delivered:?}"
        );
    }
}

#[test]
fn an_interactive_stream_that_sends_without_end_goes_ahead_of_bulk_and_starves_nobody() {
    for protocol in Protocol::ALL {
        let endless = [
            Priority::Interactive,
            Priority::Auto,
            Priority::Auto,
            Priority::Bulk,
        ];
        let (delivered, waited) = beside_bulk(protocol, &endless, 10, 200);
        assert_eq!(waited, 0, "{protocol:?}");
        let all = (ROUNDS * CARRIER_BYTES) as u64;
        assert!(delivered[0] > all / 3, "{protocol:?}: {delivered:?}");
        let bulk = &delivered[1..4];
        assert!(
            bulk.iter().all(|bytes| *bytes > all / 12),
            "{protocol:?}: {delivered:?}"
        );
    }
}

#[test]
fn many_small_streams_do_not_starve_bulk() {
    for protocol in Protocol::ALL {
        // The total is more than the carrier accepts, but each stream sends too little to count as
        // bulk.
        let (delivered, waited) = bulk_beside(protocol, 60, 1500);
        assert!(waited > 0, "{protocol:?}: the carrier was not full");
        let least = (ROUNDS * CARRIER_BYTES / 10) as u64;
        assert!(
            delivered[..2].iter().all(|bytes| *bytes > least),
            "{delivered:?}"
        );
    }
}

#[test]
fn a_carrier_that_is_retired_under_load_leaves_nothing_to_send_again() {
    let mut world = world(Profile {
        pipe_bytes: CARRIER_BYTES,
        ..Profile::plain(Protocol::Native)
    });
    let streams = open(&mut world, 4);
    for _ in 0..2 {
        assert!(world.dial());
        exchange(&mut world, usize::MAX);
        exchange(&mut world, usize::MAX);
    }
    for _ in 0..100 {
        round(&mut world, &streams, 0, CARRIER_BYTES);
    }
    let sent = |world: &World| -> u64 { delivered(world, 0..4).iter().sum() };
    let before = sent(&world);
    for turn in 0..100 {
        if turn == 10 {
            let newest = world.links[2].ids[ENTRY].unwrap();
            assert!(world.sides[ENTRY].session.retire_carrier(newest));
            let other = world.links[1].ids[ENTRY].unwrap();
            let again = world.sides[ENTRY].session.retire_carrier(other);
            assert!(!again, "two carriers were retired at once");
        }
        round(&mut world, &streams, 0, CARRIER_BYTES);
    }
    // The records of the wire check that no payload is repeated without a loss.
    assert_eq!(world.links[2].gone, [true; 2]);
    assert!(world.lost_at.is_none() && sent(&world) > before);
    assert_eq!(world.alive(), 2);
    let express = world.links[0].ids[ENTRY].unwrap();
    assert!(!world.sides[ENTRY].session.retire_carrier(express));
}

#[test]
fn a_carrier_that_is_cut_while_it_is_retired_loses_nothing() {
    let mut world = world(Profile {
        pipe_bytes: CARRIER_BYTES,
        ..Profile::plain(Protocol::Native)
    });
    let streams = open(&mut world, 4);
    assert!(world.dial());
    exchange(&mut world, usize::MAX);
    exchange(&mut world, usize::MAX);
    for _ in 0..100 {
        round(&mut world, &streams, 0, CARRIER_BYTES);
    }
    for &id in &streams {
        world.source(ENTRY, id, ROUND_BYTES);
    }
    world.transmit(ENTRY, usize::MAX);
    assert!(world.links[1].pipes[ENTRY].flying_bytes() > ROUND_BYTES);
    let newest = world.links[1].ids[ENTRY].unwrap();
    assert!(world.sides[ENTRY].session.retire_carrier(newest));
    world.transmit(ENTRY, usize::MAX);
    for pipe in &mut world.links[1].pipes {
        pipe.cut(0);
    }
    let before = delivered(&world, 0..4);
    for _ in 0..100 {
        round(&mut world, &streams, 0, CARRIER_BYTES);
    }
    let after = delivered(&world, 0..4);
    let went_on = |(after, before): (&u64, &u64)| *after > before + 2 * ROUND_BYTES as u64;
    assert!(
        after.iter().zip(&before).all(went_on),
        "{before:?} {after:?}"
    );
}
