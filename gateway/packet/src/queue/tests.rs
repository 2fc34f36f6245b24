use super::*;

/// The hash of a flow. The shift gives small numbers different queues.
fn flow(number: u32) -> u32 {
    number << 28
}

fn queue(bytes_max: usize) -> FqCodel<(u32, u32)> {
    FqCodel::new(FqCodelConfig {
        bytes_max,
        ..FqCodelConfig::default()
    })
}

/// Pops a packet. No packet can be marked.
fn pop(queue: &mut FqCodel<(u32, u32)>, now: Instant) -> Option<(u32, u32)> {
    queue.pop(now, &mut |_| false)
}

#[test]
fn packets_of_a_flow_leave_in_order_and_flows_share_by_bytes() {
    let (mut queue, now) = (queue(1 << 20), Instant::now());
    for number in 0..8 {
        assert!(queue.push(now, flow(1), 64 << 10, (1, number)).is_empty());
    }
    for number in 0..64 {
        assert!(queue.push(now, flow(2), 8 << 10, (2, number)).is_empty());
    }
    assert_eq!((queue.bytes(), queue.len()), (1 << 20, 72));
    let (mut bytes, mut seen) = ([0_usize; 3], [0_u32; 3]);
    while let Some((flow, number)) = pop(&mut queue, now) {
        assert_eq!(number, seen[flow as usize], "flow {flow} is out of order");
        seen[flow as usize] += 1;
        bytes[flow as usize] += if flow == 1 { 64 << 10 } else { 8 << 10 };
        if !queue.is_empty() {
            let ahead = bytes[1].abs_diff(bytes[2]);
            let both_wait = seen[1] < 8 && seen[2] < 64;
            assert!(!both_wait || ahead <= 96 << 10, "{bytes:?}");
        }
    }
    assert_eq!((seen[1], seen[2], queue.bytes()), (8, 64, 0));
}

#[test]
fn a_flow_that_has_little_to_send_goes_first() {
    let (mut queue, now) = (queue(8 << 20), Instant::now());
    for number in 0..64 {
        queue.push(now, flow(1), 64 << 10, (1, number));
    }
    pop(&mut queue, now).unwrap();
    for number in 0..10 {
        queue.push(now, flow(2), 100, (2, number));
        assert_eq!(pop(&mut queue, now), Some((2, number)));
        assert_eq!(pop(&mut queue, now).map(|(flow, _)| flow), Some(1));
    }
}

#[test]
fn a_full_queue_drops_from_the_head_of_the_flow_that_has_most() {
    let (mut queue, now) = (queue(100_000), Instant::now());
    queue.push(now, flow(2), 1_000, (2, 0));
    for number in 0..9 {
        assert!(queue.push(now, flow(1), 11_000, (1, number)).is_empty());
    }
    let dropped = queue.push(now, flow(3), 5_000, (3, 0));
    assert_eq!(dropped, [(1, 0)], "only one packet must be dropped");
    assert!(queue.bytes() <= 100_000);
    assert_eq!(queue.counters().dropped_overlimit, 1);
}

#[test]
fn small_packets_have_a_bound_of_their_own() {
    let mut queue: FqCodel<u32> = FqCodel::new(FqCodelConfig {
        packets_max: 100,
        ..FqCodelConfig::default()
    });
    let now = Instant::now();
    let dropped: usize = (0..10_000)
        .map(|n| queue.push(now, flow(n % 7), 1, n).len())
        .sum();
    assert!(queue.len() <= 100);
    assert_eq!(dropped + queue.len(), 10_000);
}

#[test]
fn a_standing_queue_is_marked_where_it_can_be_and_dropped_else() {
    for can_mark in [false, true] {
        let (mut queue, start) = (queue(64 << 20), Instant::now());
        for number in 0..2000 {
            queue.push(start, 1, 1500, (1, number));
        }
        let mut sent = 0;
        for at in 0..400 {
            let now = start + Duration::from_millis(at);
            if queue.pop(now, &mut |_| can_mark).is_some() {
                sent += 1;
            }
        }
        let counters = queue.counters();
        assert_eq!(sent, 400);
        match can_mark {
            true => assert!(
                counters.marked > 3 && counters.dropped_codel == 0,
                "{counters:?}"
            ),
            false => assert!(
                counters.dropped_codel > 3 && counters.marked == 0,
                "{counters:?}"
            ),
        }
    }
}

#[test]
fn whatever_is_pushed_is_popped_or_dropped_once() {
    let mut queue: FqCodel<u32> = FqCodel::new(FqCodelConfig {
        flows: 16,
        bytes_max: 50_000,
        packets_max: 64,
        ..FqCodelConfig::default()
    });
    let start = Instant::now();
    let mut seed = 7_u32;
    let mut random = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        seed >> 8
    };
    let (mut seen, mut given) = (vec![0; 20_000], 0);
    for step in 0..20_000_u32 {
        let now = start + Duration::from_micros(u64::from(step) * 700);
        let length = 1 + random() as usize % 9_000;
        for item in queue.push(now, random() << 8, length, step) {
            seen[item as usize] += 1;
        }
        if random() % 3 > 0
            && let Some(item) = queue.pop(now, &mut |_| false)
        {
            seen[item as usize] += 1;
            given += 1;
        }
    }
    let end = start + Duration::from_secs(20);
    while let Some(item) = queue.pop(end, &mut |_| true) {
        seen[item as usize] += 1;
    }
    let codel = usize::try_from(queue.counters().dropped_codel).unwrap();
    assert!(given > 10_000 && seen.iter().all(|times| *times <= 1));
    assert_eq!(seen.iter().filter(|times| **times == 0).count(), codel);
    assert_eq!((queue.bytes(), queue.len()), (0, 0));
}
