use super::*;

const MS: Duration = Duration::from_millis(1);
const BULK: u32 = 0x1000_0000;
const OTHER: u32 = 0x9000_0000;
const SPARSE: u32 = 0xf000_0000;

fn begin() -> Instant {
    #[expect(
        clippy::disallowed_methods,
        reason = "a beginning for a test's own clock"
    )]
    Instant::now()
}

/// Items are (flow, number).
type Queue = FqCodel<(u32, usize)>;

fn queue() -> Queue {
    FqCodel::new(FqCodelConfig::default())
}

fn never(_: &mut (u32, usize)) -> bool {
    false
}

fn fill(queue: &mut Queue, now: Instant, flow: u32, count: usize, length: usize) {
    for number in 0..count {
        assert!(queue.push(now, flow, length, (flow, number)).is_empty());
    }
}

#[test]
fn a_flow_is_served_in_order() {
    let (mut queue, now) = (queue(), begin());
    fill(&mut queue, now, BULK, 100, 1400);
    assert_eq!((queue.len(), queue.bytes()), (100, 140_000));
    for number in 0..100 {
        assert_eq!(queue.pop(now, &mut never), Some((BULK, number)));
    }
    assert_eq!(queue.pop(now, &mut never), None);
    assert!(queue.is_empty());
    assert_eq!(
        (queue.bytes(), queue.counters()),
        (0, QueueCounters::default())
    );
}

#[test]
fn two_flows_share_by_bytes_whatever_their_packets() {
    let (mut queue, now) = (queue(), begin());
    fill(&mut queue, now, BULK, 60, 65_000);
    fill(&mut queue, now, OTHER, 2000, 1000);
    let mut bytes = [0_usize; 2];
    while bytes[0] + bytes[1] < 2_000_000 {
        match queue.pop(now, &mut never) {
            Some((BULK, _)) => bytes[0] += 65_000,
            Some(_) => bytes[1] += 1000,
            None => panic!("it is not empty"),
        }
        let difference = bytes[0].abs_diff(bytes[1]);
        assert!(difference <= 65_000 + (16 << 10), "{bytes:?}");
    }
}

#[test]
fn a_sparse_flow_goes_before_all_that_wait() {
    let (mut queue, mut now) = (queue(), begin());
    fill(&mut queue, now, BULK, 50, 65_000);
    fill(&mut queue, now, OTHER, 50, 65_000);
    queue.pop(now, &mut never);
    queue.pop(now, &mut never);
    for number in 0..10 {
        now += MS;
        fill(&mut queue, now, SPARSE, 1, 100);
        assert_eq!(
            queue.pop(now, &mut never),
            Some((SPARSE, 0)),
            "ping {number}"
        );
        assert_ne!(
            queue.pop(now, &mut never).map(|(flow, _)| flow),
            Some(SPARSE)
        );
    }
}

#[test]
fn a_flow_that_is_never_empty_is_new_for_one_quantum_alone() {
    let (mut queue, now) = (queue(), begin());
    fill(&mut queue, now, BULK, 10, 65_000);
    queue.pop(now, &mut never);
    fill(&mut queue, now, OTHER, 100, 1000);
    let flows: Vec<_> = (0..40).filter_map(|_| queue.pop(now, &mut never)).collect();
    let before = flows.iter().take_while(|(flow, _)| *flow == OTHER).count();
    // Its first quantum as a new flow, and four while the other pays for its super-packet.
    assert!((17..=83).contains(&before) || before == 40, "{before}");
    let (mut queue, now) = (self::queue(), begin());
    fill(&mut queue, now, BULK, 100, 1000);
    queue.pop(now, &mut never);
    for _ in 0..20 {
        queue.pop(now, &mut never);
    }
    // The first is old by now, so the new one goes first, for 17 packets.
    fill(&mut queue, now, OTHER, 100, 1000);
    let flows: Vec<_> = (0..40).filter_map(|_| queue.pop(now, &mut never)).collect();
    assert!(flows[..17].iter().all(|(flow, _)| *flow == OTHER));
    assert_eq!(flows[17].0, BULK);
}

#[test]
fn a_standing_queue_of_100_ms_is_dropped_from() {
    let (mut queue, mut now) = (queue(), begin());
    fill(&mut queue, now, BULK, 100, 1400);
    let mut sent = 0;
    for number in 0..1000 {
        now += MS;
        queue.push(now, BULK, 1400, (BULK, number));
        sent += usize::from(queue.pop(now, &mut never).is_some());
    }
    let dropped = queue.counters().dropped_codel;
    assert!((10..100).contains(&dropped), "{dropped}");
    assert_eq!(sent, 1000);
    assert_eq!(queue.len() + usize::try_from(dropped).unwrap(), 100);
}

#[test]
fn a_queue_below_the_target_is_not_dropped_from() {
    let (mut queue, mut now) = (queue(), begin());
    // Four packets, so each waits 4 ms.
    fill(&mut queue, now, BULK, 4, 1400);
    for number in 0..1000 {
        queue.push(now, BULK, 1400, (BULK, number));
        queue.pop(now, &mut never);
        now += MS;
    }
    assert_eq!(queue.counters().dropped_codel, 0);
}

#[test]
fn a_queue_that_was_long_once_is_not_dropped_from() {
    let (mut queue, begin) = (queue(), begin());
    fill(&mut queue, begin, BULK, 90, 1400);
    // It is empty before an interval has passed.
    for at in 0..90 {
        assert!(queue.pop(begin + MS * at, &mut never).is_some());
    }
    assert_eq!(queue.counters().dropped_codel, 0);
}

#[test]
fn one_super_packet_that_waits_is_no_standing_queue() {
    let (mut queue, mut now) = (queue(), begin());
    fill(&mut queue, now, BULK, 1, 65_000);
    for number in 0..100 {
        queue.push(now, BULK, 65_000, (BULK, number));
        now += MS * 50;
        assert!(queue.pop(now, &mut never).is_some());
    }
    assert_eq!(queue.counters().dropped_codel, 0);
}

#[test]
fn a_packet_that_can_be_marked_is_not_dropped() {
    let (mut queue, mut now) = (queue(), begin());
    fill(&mut queue, now, BULK, 100, 1400);
    let mut marked = 0;
    for number in 0..1000 {
        now += MS;
        queue.push(now, BULK, 1400, (BULK, number));
        let mut mark = |item: &mut (u32, usize)| {
            item.0 = OTHER;
            true
        };
        let (flow, _) = queue.pop(now, &mut mark).unwrap();
        marked += u64::from(flow == OTHER);
    }
    let counters = queue.counters();
    assert!(marked >= 10, "{marked}");
    assert_eq!((counters.dropped_codel, counters.marked), (0, marked));
    assert_eq!(queue.len(), 100);
}

#[test]
fn over_the_limit_the_longest_flow_loses_up_to_half() {
    let config = FqCodelConfig {
        bytes_max: 1_000_000,
        ..FqCodelConfig::default()
    };
    let (mut queue, now) = (FqCodel::new(config), begin());
    fill(&mut queue, now, SPARSE, 1, 100);
    fill(&mut queue, now, BULK, 8, 65_000);
    fill(&mut queue, now, OTHER, 7, 65_000);
    let dropped = queue.push(now, OTHER, 65_000, (OTHER, 7));
    assert_eq!(dropped.len(), 4);
    let first = dropped[0].0;
    let expected: Vec<_> = (0..4).map(|number| (first, number)).collect();
    assert_eq!(dropped, expected);
    assert!(first == BULK || first == OTHER);
    assert_eq!(queue.counters().dropped_overlimit, 4);
    assert_eq!((queue.len(), queue.bytes()), (13, 780_100));
}

#[test]
fn small_packets_are_bounded_by_their_number_and_dropped_in_batches() {
    let config = FqCodelConfig {
        packets_max: 1000,
        ..FqCodelConfig::default()
    };
    let (mut queue, now) = (FqCodel::new(config), begin());
    fill(&mut queue, now, BULK, 1000, 40);
    assert_eq!(queue.push(now, OTHER, 40, (OTHER, 0)).len(), 64);
    for number in 0..100_000 {
        queue.push(now, BULK, 40, (BULK, number));
        assert!(queue.len() <= 1000);
    }
    assert!(queue.entries.len() <= 1001);
    let mut left = 0;
    while queue.pop(now, &mut never).is_some() {
        left += 1;
    }
    assert_eq!(left + queue.counters().dropped_overlimit, 101_001);
}

#[test]
fn a_packet_longer_than_the_limit_is_dropped_itself() {
    let config = FqCodelConfig {
        bytes_max: 100,
        ..FqCodelConfig::default()
    };
    let mut queue = FqCodel::new(config);
    assert_eq!(queue.push(begin(), BULK, 101, 7), [7]);
    assert!(queue.is_empty());
    assert_eq!(queue.pop(begin(), &mut |_| false), None);
}

#[test]
fn limits_of_nothing_are_taken_as_one() {
    let config = FqCodelConfig {
        flows: 0,
        quantum: 0,
        packets_max: 0,
        ..FqCodelConfig::default()
    };
    let mut queue = FqCodel::new(config);
    assert!(queue.push(begin(), u32::MAX, 100, 1).is_empty());
    assert_eq!(queue.pop(begin(), &mut |_| false), Some(1));
}

#[test]
fn any_schedule_keeps_its_sums_and_each_flows_order() {
    let mut seed = 1_u64;
    let mut draw = |below: u64| {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    let config = FqCodelConfig {
        flows: 7,
        quantum: 1500,
        bytes_max: 300_000,
        packets_max: 300,
        ..FqCodelConfig::default()
    };
    let mut queue = FqCodel::new(config);
    let mut now = begin();
    let (mut pushed, mut popped, mut dropped) = (0_u64, 0_u64, 0_u64);
    let mut last = std::collections::BTreeMap::new();
    for number in 0..200_000_u64 {
        now += Duration::from_micros(draw(400));
        if draw(5) < 3 {
            let flow = u32::try_from(draw(10)).unwrap() << 28;
            let length = usize::try_from(draw(3000)).unwrap();
            dropped += queue.push(now, flow, length, (flow, number)).len() as u64;
            pushed += 1;
        } else if let Some((flow, number)) = queue.pop(now, &mut |(flow, _)| *flow == 0) {
            popped += 1;
            assert!(
                last.insert(flow, number)
                    .is_none_or(|before| before < number)
            );
        }
        assert!(queue.bytes() <= 300_000 && queue.len() <= 300);
    }
    let counters = queue.counters();
    assert_eq!(dropped, counters.dropped_overlimit);
    assert!(counters.dropped_codel > 0 && counters.marked > 0 && dropped > 0);
    assert_eq!(
        pushed,
        popped + dropped + counters.dropped_codel + queue.len() as u64
    );
    now += Duration::from_secs(1);
    while queue.pop(now, &mut |_| true).is_some() {}
    assert_eq!((queue.len(), queue.bytes()), (0, 0));
}
