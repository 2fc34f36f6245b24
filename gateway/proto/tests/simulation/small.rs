//! Tests for how long small streams affect bulk.

#![allow(
    clippy::disallowed_methods,
    reason = "a test's clock needs a starting time"
)]

use std::time::{Duration, Instant};

use muxtunnel_proto::{CarrierId, Session, Token};

use super::resume::{opened, ready};

#[test]
fn a_small_stream_counts_as_active_for_a_second_or_two_after_it_has_sent() {
    let (now, second) = (Instant::now(), Duration::from_secs(1));
    let (mut session, _) = ready(now);
    let (stream, _) = opened(&mut session, now);
    assert!(!session.has_small());
    session.source_ready(stream, 64, 64, Token(0));
    while session.poll_transmit(now, CarrierId::FIRST).is_some() {}
    for (seconds, has_small) in [(0, true), (1, true), (2, false)] {
        session.handle_timeout(now + seconds * second).unwrap();
        assert_eq!(session.has_small(), has_small, "after {seconds} s");
    }
}

#[test]
fn the_first_bytes_of_a_bulk_stream_do_not_count() {
    const BATCH: usize = 16 << 10;
    let now = Instant::now();
    let (mut session, _) = ready(now);
    let (stream, _) = opened(&mut session, now);
    let sent_as_small = (0..4).map(|batch| {
        session.source_ready(stream, BATCH, BATCH, Token(batch));
        while session.poll_transmit(now, CarrierId::FIRST).is_some() {}
        session.has_small()
    });
    assert_eq!(
        sent_as_small.collect::<Vec<_>>(),
        [true, true, false, false]
    );
}
