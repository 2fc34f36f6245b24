//! The rates of frames.

#![allow(clippy::unwrap_used, reason = "a test")]

use super::*;

fn head(kind: u8, stream: u32, length: usize) -> Head {
    let mut bytes = [0; 9];
    bytes[..3].copy_from_slice(&(length as u32).to_be_bytes()[1..]);
    bytes[3] = kind;
    bytes[5..].copy_from_slice(&stream.to_be_bytes());
    Head::read(bytes)
}

/// Passes a frame of the peer, in any number of turns.
fn receives(meter: &mut Meter, head: Head, now: Instant) {
    while meter.receives(head, false, now) == Verdict::Waits && meter.excess().is_none() {
        meter.begin_turn();
    }
}

/// How often `cost` is free at one moment, and then in each second.
fn rate(cost: impl Fn(&mut Meter, u32, Instant)) -> (u64, u64) {
    let (mut meter, start) = (Meter::default(), Instant::now());
    let mut stream = 1;
    let mut until_excess = |meter: &mut Meter, now| {
        let mut count = 0;
        while meter.excess.take().is_none() && count < 600_000 {
            cost(meter, stream, now);
            stream += 2;
            count += 1;
        }
        count - 1
    };
    let burst = until_excess(&mut meter, start);
    let second = until_excess(&mut meter, start + Duration::from_secs(1));
    (burst, second)
}

#[test]
fn what_a_peer_may_cost_has_a_rate() {
    let rapid = rate(|meter, stream, now| {
        receives(meter, head(HEADERS, stream, 20), now);
        receives(meter, head(RST_STREAM, stream, 4), now);
    });
    assert_eq!(rapid, (4096, 256));
    let errors = rate(|meter, stream, now| meter.sends(head(RST_STREAM, stream, 4), 3, now));
    assert_eq!(errors, (256, 32));
    for code in [STREAM_CLOSED, REFUSED_STREAM] {
        let late = rate(|meter, stream, now| meter.sends(head(RST_STREAM, stream, 4), code, now));
        assert_eq!(late, (16_384, 1024));
    }
    let empty = rate(|meter, stream, now| receives(meter, head(DATA, stream, 0), now));
    assert_eq!(empty, (10_000, 1000));
    let (burst, second) = SMALL;
    let small = rate(|meter, stream, now| receives(meter, head(DATA, stream, 1), now));
    // Frames count by whole turns.
    let turn = TURN_FRAMES as u64;
    let (at_once, later) = (small.0 - burst * second.as_secs(), small.1 - burst);
    assert!(at_once <= turn && later <= turn, "{small:?}");
}

#[test]
fn what_an_honest_peer_does_is_free() {
    const NOT_LIMITED: (u64, u64) = (599_999, 599_999);
    // The stream was answered, or has lived for a while.
    let answered = rate(|meter, stream, now| {
        receives(meter, head(HEADERS, stream, 20), now);
        meter.sends(head(HEADERS, stream, 20), 0, now);
        receives(meter, head(RST_STREAM, stream, 4), now);
    });
    assert_eq!(answered, NOT_LIMITED);
    let later = rate(|meter, stream, now| {
        receives(meter, head(HEADERS, stream, 20), now);
        receives(meter, head(RST_STREAM, stream, 4), now + YOUNG);
    });
    assert_eq!(later, NOT_LIMITED);
    for code in [NO_ERROR, CANCEL, CONNECT_ERROR] {
        let own = rate(|meter, stream, now| meter.sends(head(RST_STREAM, stream, 4), code, now));
        assert_eq!(own, NOT_LIMITED);
    }
    let small = rate(|meter, stream, now| receives(meter, head(DATA, stream, SMALL_BYTES), now));
    assert_eq!(small, NOT_LIMITED);
    // This side keeps up with the peer.
    let read_at_once = rate(|meter, stream, now| {
        receives(meter, head(DATA, stream, 1), now);
        meter.begin_turn();
    });
    assert_eq!(read_at_once, NOT_LIMITED);
}

#[test]
fn few_streams_are_remembered() {
    let (mut meter, start) = (Meter::default(), Instant::now());
    for stream in (1..100_000).step_by(2) {
        receives(&mut meter, head(HEADERS, stream, 20), start);
        assert!(meter.young.len() <= YOUNG_MAX);
    }
    receives(&mut meter, head(HEADERS, 100_001, 20), start + YOUNG);
    assert_eq!(meter.young.len(), 1);
}
