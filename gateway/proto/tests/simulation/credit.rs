//! Tests which streams are woken by session credit.

#![allow(
    clippy::disallowed_methods,
    reason = "a test's clock needs a starting time"
)]

use std::time::Instant;

use muxtunnel_proto::native::codec::Frame;
use muxtunnel_proto::{CarrierId, Event, NativeSession, Priority, Session, StreamId, Token};

use super::resume::{hear, ready_with, transmit};

/// Number of bytes that a stream reads first.
const READ: u64 = 16 << 10;

fn woken(session: &mut NativeSession) -> Vec<StreamId> {
    let events = std::iter::from_fn(|| session.poll_event());
    let woken = events.filter_map(|event| match event {
        Event::Writable { stream } => Some(stream),
        _ => None,
    });
    woken.collect()
}

/// Returns a session with ten streams. All except the first wait for session credit.
fn waiting(now: Instant) -> (NativeSession, Vec<StreamId>) {
    let (mut session, _) = ready_with(now, 1);
    let mut open = || {
        session
            .open(now, "tcp://a:1", Priority::Auto, None)
            .unwrap()
    };
    let streams: Vec<_> = std::iter::repeat_with(&mut open).take(10).collect();
    transmit(&mut session, now, CarrierId::FIRST);
    session.source_ready(streams[0], 1, 1, Token(0));
    for stream in &streams[1..] {
        assert_eq!(session.send_capacity(*stream).unwrap().bytes, 0);
        session.want_credit(*stream);
    }
    assert_eq!(woken(&mut session), []);
    (session, streams)
}

#[test]
fn credit_wakes_as_many_as_it_is_for_and_what_one_leaves_the_next_one() {
    let now = Instant::now();
    let (mut session, streams) = waiting(now);
    let more = Frame::MaxData(1 + 2 * READ);
    hear(&mut session, now, CarrierId::FIRST, &more);
    assert_eq!(woken(&mut session), streams[1..3]);
    // One stream uses little credit, one has no data to send, one has ended, and one is cut.
    session.source_ready(streams[1], 1, 1, Token(1));
    assert_eq!(woken(&mut session), streams[3..4]);
    session.want_credit(streams[2]);
    assert_eq!(woken(&mut session), streams[4..5]);
    session.finish(streams[3]);
    assert_eq!(woken(&mut session), streams[5..6]);
    session.reset(streams[4], muxtunnel_proto::ResetCode::Cancelled);
    assert!(woken(&mut session).starts_with(&streams[6..7]));
    // The last stream uses all remaining credit, so no other stream is woken.
    let left = session.send_capacity(streams[5]).unwrap().bytes;
    assert_eq!(left, 2 * READ - 1);
    session.source_ready(streams[5], left as usize, left as usize, Token(2));
    assert_eq!(woken(&mut session), []);
}
