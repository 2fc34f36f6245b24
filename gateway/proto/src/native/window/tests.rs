#![allow(
    clippy::disallowed_methods,
    reason = "a test's clock needs a starting time"
)]

use super::*;

const RECEIVE: u64 = 64 << 20;
const RTT: Duration = Duration::from_millis(100);

fn both() -> (Instant, SessionWindow, StreamWindow) {
    let now = Instant::now();
    let mut session = SessionWindow::new(RECEIVE);
    let stream = StreamWindow::new(now, 0, initial(RECEIVE), &mut session);
    (now, session, stream)
}

fn pass(stream: &mut StreamWindow, session: &mut SessionWindow, now: Instant, length: u64) {
    let end = stream.received() + length;
    stream.ingest(now, end, session).unwrap();
    stream.consume(now, length, RTT, session);
}

#[test]
fn a_window_consumed_within_two_round_trips_doubles() {
    let (now, mut session, mut stream) = both();
    let size = stream.size;
    pass(&mut stream, &mut session, now + RTT, size / 2);
    assert_eq!(stream.size, 2 * size);
    assert_eq!(stream.advertise(), size / 2 + 2 * size);
}

#[test]
fn a_slow_stream_keeps_its_window() {
    let (now, mut session, mut stream) = both();
    let size = stream.size;
    pass(&mut stream, &mut session, now + 3 * RTT, size / 2);
    assert_eq!(stream.size, size);
}

#[test]
fn windows_leave_a_quarter_of_the_memory_free() {
    let (mut now, mut session, mut stream) = both();
    for _ in 0..100 {
        now += RTT / 10;
        let length = stream.credit();
        pass(&mut stream, &mut session, now, length);
        stream.advertise();
        session.advertise();
    }
    assert!(session.windows <= RECEIVE / 4 * 3, "{}", session.windows);
    assert!(stream.size > RECEIVE / 4);
}

#[test]
fn a_window_keeps_to_its_share_of_what_the_path_holds() {
    let (mut now, mut session, mut stream) = both();
    session.set_rtt(Some(Duration::from_micros(200)));
    // 1 GB/s.
    for _ in 0..100_000 {
        now += Duration::from_micros(10);
        let length = stream.credit().min(10_000);
        pass(&mut stream, &mut session, now, length);
        stream.advertise();
        session.advertise();
    }
    assert!((1 << 20..3 << 20).contains(&stream.size), "{}", stream.size);
    assert_eq!(session.windows, stream.size);
    // From here on, two streams share the rate of one.
    let mut other = StreamWindow::new(now, 0, initial(RECEIVE), &mut session);
    for _ in 0..100_000 {
        now += Duration::from_micros(5);
        for stream in [&mut stream, &mut other] {
            let length = stream.credit().min(5_000);
            pass(stream, &mut session, now, length);
            stream.advertise();
            session.advertise();
        }
    }
    assert!(session.windows < 5 << 20, "{}", session.windows);
    assert_eq!(session.windows, stream.size + other.size);
}

#[test]
fn an_idle_stream_falls_back_and_is_given_nothing_until_the_promise_is_used() {
    let (now, mut session, mut stream) = both();
    let first = stream.size;
    pass(&mut stream, &mut session, now, first);
    stream.advertise();
    let promised = stream.credit();
    assert_eq!(stream.shrink(now, &mut session), Some(now + IDLE));
    assert_eq!(stream.shrink(now + IDLE, &mut session), None);
    assert_eq!((stream.size, session.windows), (first, 0));
    assert_eq!((stream.credit(), stream.owed()), (promised, 0));
    // Only the buffered bytes count in the sum of all windows. After the next consumption, the
    // whole window counts.
    stream
        .ingest(now + IDLE, first + 100, &mut session)
        .unwrap();
    assert_eq!((stream.size, session.windows), (first, 100));
    stream.consume(now + IDLE, 100, RTT, &mut session);
    assert_eq!((stream.size, session.windows), (first, first));
}

#[test]
fn credit_that_is_owed_to_a_stream_is_given_back_however_long_it_was_idle() {
    let (now, mut session, mut stream) = both();
    let first = stream.size;
    pass(&mut stream, &mut session, now, first);
    let owed = stream.owed();
    assert_eq!(stream.shrink(now + IDLE, &mut session), None);
    assert!(owed > 0 && stream.owed() >= first && stream.due());
}

#[test]
fn idle_first_windows_leave_all_of_the_memory_to_a_stream_that_is_busy() {
    let (now, mut session, mut stream) = both();
    let mut idle: Vec<_> = (0..4096)
        .map(|_| StreamWindow::new(now, 0, initial(RECEIVE), &mut session))
        .collect();
    let mut now = now + IDLE;
    for other in &mut idle {
        assert_eq!(other.shrink(now, &mut session), None);
    }
    for _ in 0..100 {
        now += RTT / 10;
        let length = stream.credit();
        pass(&mut stream, &mut session, now, length);
        stream.advertise();
        session.advertise();
    }
    assert!(stream.size > RECEIVE / 4, "{}", stream.size);
}

#[test]
fn a_local_socket_that_takes_crumbs_is_stalled_since_it_took_more() {
    let (now, mut session, mut stream) = both();
    let second = Duration::from_secs(1);
    assert_eq!(stream.stalled_since(0), None);
    stream.ingest(now + second, 10_000, &mut session).unwrap();
    assert_eq!(
        stream.stalled_since(0),
        None,
        "the socket cannot take payload after a gap"
    );
    assert_eq!(stream.stalled_since(10_000), Some(now + second));
    stream.consume(now + 2 * second, 100, RTT, &mut session);
    assert_eq!(stream.stalled_since(10_000), Some(now + second));
    stream.consume(now + 3 * second, PROGRESS_BYTES, RTT, &mut session);
    assert_eq!(stream.stalled_since(10_000), Some(now + 3 * second));
    let rest = stream.buffered();
    stream.consume(now + 4 * second, rest, RTT, &mut session);
    assert_eq!(stream.stalled_since(10_000), None);
}

#[test]
fn more_than_either_limit_is_refused_before_it_is_stored() {
    let (now, mut session, mut stream) = both();
    let beyond = stream.credit() + 1;
    assert_eq!(stream.ingest(now, beyond, &mut session), Err(LimitExceeded));
    assert_eq!((stream.buffered(), session.buffered()), (0, 0));
    let mut small = SessionWindow::new(10);
    let mut stream = StreamWindow::new(now, 0, 100, &mut small);
    assert_eq!(stream.ingest(now, 11, &mut small), Err(LimitExceeded));
    assert_eq!(stream.buffered(), 0);
}

#[test]
fn what_a_stream_leaves_behind_goes_back_to_the_session() {
    let (now, mut session, mut stream) = both();
    stream.ingest(now, 1000, &mut session).unwrap();
    stream.release(&mut session);
    assert_eq!((session.buffered(), session.windows), (0, 0));
}

#[test]
fn credit_goes_round_where_stalled_streams_hold_nearly_all_of_it() {
    let (now, mut session, mut stalled) = both();
    stalled.advertised = RECEIVE;
    stalled.ingest(now, RECEIVE - 1000, &mut session).unwrap();
    let mut stream = StreamWindow::new(now, 0, initial(RECEIVE), &mut session);
    pass(&mut stream, &mut session, now, 400);
    assert!(!session.due());
    pass(&mut stream, &mut session, now, 100);
    assert!(session.due());
}

#[test]
fn an_offset_never_passes_48_bits() {
    let (now, mut session, mut stream) = both();
    session.receive = OFFSET_MAX * 2;
    session.advertise();
    stream.advertised = OFFSET_MAX - 1;
    stream.received = OFFSET_MAX - 1;
    stream.consumed = OFFSET_MAX - 1;
    stream.consumed_before = OFFSET_MAX - 1;
    assert_eq!(stream.advertise(), OFFSET_MAX);
    pass(&mut stream, &mut session, now, 1);
    assert_eq!(stream.owed(), 0);
}

#[test]
fn the_last_credit_is_returned_even_if_it_is_small() {
    let (now, mut session) = (Instant::now(), SessionWindow::new(RECEIVE));
    let first = OFFSET_MAX - initial(RECEIVE) - 1;
    let mut stream = StreamWindow::new(now, first, initial(RECEIVE), &mut session);
    stream.ingest(now, first + 1, &mut session).unwrap();
    stream.consume(now, 1, Duration::ZERO, &mut session);
    assert!(stream.owed() == 1 && stream.due());
    assert_eq!(stream.advertise(), OFFSET_MAX);
    assert!(!stream.due());
}
