//! The bounds of the data that a session retains in case a carrier is lost.

#![allow(
    clippy::disallowed_methods,
    reason = "a test's clock needs a starting time"
)]

use std::time::Instant;

use muxtunnel_proto::native::codec::{self, Frame, HelloAck, Parameters, VERSION};
use muxtunnel_proto::native::{RETAINED_OVERHEAD_BYTES, SessionCode};
use muxtunnel_proto::{
    CarrierId, NativeConfig, NativeSession, Pool, Priority, Session, SessionError, StreamId, Token,
    Transmit,
};

/// Maximum number of bytes of unacknowledged control frames on a carrier: the session's bound of
/// 1 MiB plus the longest frame.
const CONTROL_BYTES_MAX: usize = (1 << 20) + 1100;

pub(super) fn hear(session: &mut NativeSession, now: Instant, carrier: CarrierId, frame: &Frame) {
    let bytes = codec::encode(frame);
    session.handle_header(now, carrier, &bytes).unwrap();
}

pub(super) fn transmit(
    session: &mut NativeSession,
    now: Instant,
    carrier: CarrierId,
) -> Vec<Vec<u8>> {
    let frames = std::iter::from_fn(|| session.poll_transmit(now, carrier));
    frames
        .map(|frame| match frame {
            Transmit::Control { bytes, .. } => bytes,
            other => panic!("{other:?}"),
        })
        .collect()
}

pub(super) fn ready(now: Instant) -> (NativeSession, Frame) {
    ready_with(now, 1 << 30)
}

/// A session whose peer grants `data` bytes of session credit, and the peer's hello.
pub(super) fn ready_with(now: Instant, data: u64) -> (NativeSession, Frame) {
    let config = NativeConfig {
        streams_max: 10_000,
        ..NativeConfig::default()
    };
    let mut session = NativeSession::dial(config, now);
    transmit(&mut session, now, CarrierId::FIRST);
    let ack = Frame::HelloAck(HelloAck {
        version: VERSION,
        features: codec::RESUME,
        session_id: [1; 16],
        token: [2; 32],
        parameters: Parameters {
            initial_max_data: data,
            initial_max_stream_data: 1 << 20,
            initial_max_streams: 10_000,
            frame_max: 1 << 20,
        },
    });
    hear(&mut session, now, CarrierId::FIRST, &ack);
    (session, ack)
}

/// Acknowledges all frames on the first carrier: PING and one OPEN. Returns the number of bytes.
fn acknowledge_all(session: &mut NativeSession, now: Instant) -> u64 {
    let received = 16 + 26;
    let ack = Frame::Ack { received };
    hear(session, now, CarrierId::FIRST, &ack);
    received
}

/// An open stream, and the number of bytes that the peer has received.
pub(super) fn opened(session: &mut NativeSession, now: Instant) -> (StreamId, u64) {
    let stream = session
        .open(now, "tcp://a:1", Priority::Auto, None)
        .unwrap();
    transmit(session, now, CarrierId::FIRST);
    let opened = Frame::Opened {
        stream,
        address: String::new(),
    };
    hear(session, now, CarrierId::FIRST, &opened);
    (stream, acknowledge_all(session, now))
}

#[test]
fn a_session_says_when_what_it_may_keep_gets_scarce() {
    let now = Instant::now();
    let (mut session, _) = ready(now);
    let (stream, before) = opened(&mut session, now);
    let half = NativeConfig::default().retain / 2 - RETAINED_OVERHEAD_BYTES;
    let mut sent = 0;
    for (held, scarce) in [(half as usize, false), (1, true)] {
        session.source_ready(stream, 1, held, Token(sent));
        while session.poll_transmit(now, CarrierId::FIRST).is_some() {}
        sent += 1;
        let capacity = session.send_capacity(stream).unwrap();
        assert_eq!(capacity.retain_scarce, scarce);
    }
    let received = before + sent * (codec::HEADER_BYTES as u64 + 1);
    let ack = Frame::Ack { received };
    hear(&mut session, now, CarrierId::FIRST, &ack);
    assert!(!session.send_capacity(stream).unwrap().retain_scarce);
}

/// If only the payload counted, 64 MiB of payload in frames of one byte would need gigabytes of
/// tables.
#[test]
fn small_frames_count_with_what_they_take_beyond_their_payload() {
    let now = Instant::now();
    let (mut session, _) = ready(now);
    let (stream, _) = opened(&mut session, now);
    let retain = NativeConfig::default().retain;
    let each = 1 + RETAINED_OVERHEAD_BYTES;
    let most = retain.div_ceil(each);
    let mut frames = 0;
    while session.send_capacity(stream).unwrap().bytes > 0 {
        // This bound protects the test's own memory.
        assert!(frames < most, "more than {most} frames are retained");
        session.source_ready(stream, 1, 1, Token(frames));
        while session.poll_transmit(now, CarrierId::FIRST).is_some() {}
        frames += 1;
    }
    assert_eq!(frames, most);
    assert_eq!(session.retained_bytes(), frames * each);
}

#[test]
fn control_frames_that_nobody_acknowledges_are_bounded_and_go_again_in_order() {
    let now = Instant::now();
    let (mut session, ack) = ready(now);
    let (_, before) = opened(&mut session, now);
    let target = format!("tcp://{}:1", "a".repeat(1000));
    for _ in 0..3000 {
        session.open(now, &target, Priority::Auto, None).unwrap();
    }
    let first = transmit(&mut session, now, CarrierId::FIRST);
    let bytes: usize = first.iter().map(Vec::len).sum();
    assert!(((1 << 20)..CONTROL_BYTES_MAX).contains(&bytes), "{bytes}");
    session.wanting(&mut |carrier| panic!("{carrier:?} wants to transmit"));

    // An acknowledgement makes room for the same number of bytes.
    let received = before + first[..501].iter().map(Vec::len).sum::<usize>() as u64;
    hear(
        &mut session,
        now,
        CarrierId::FIRST,
        &Frame::Ack { received },
    );
    let more = transmit(&mut session, now, CarrierId::FIRST);
    assert!((490..=510).contains(&more.len()), "{}", more.len());

    // Unacknowledged frames are sent again, up to the bound, before frames that waited.
    session.handle_carrier_lost(now, CarrierId::FIRST);
    let second = session.add_carrier(now).unwrap();
    transmit(&mut session, now, second);
    hear(&mut session, now, second, &ack);
    let lost = Frame::CarrierLost {
        carrier: 0,
        received,
    };
    hear(&mut session, now, second, &lost);
    let again = transmit(&mut session, now, second);
    let expected: Vec<&Vec<u8>> = first[501..].iter().chain(&more).collect();
    // The first frame is our own CARRIER_LOST.
    assert!(
        again.len() > 900
            && again[1..]
                .iter()
                .eq(expected[..again.len() - 1].iter().copied())
    );
    let bytes: usize = again.iter().map(Vec::len).sum();
    assert!(bytes < CONTROL_BYTES_MAX, "{bytes}");
}

#[test]
fn a_peer_that_never_settles_a_lost_carrier_ends_the_session_in_time() {
    let began = Instant::now();
    let (mut session, ack) = ready(began);
    let config = NativeConfig::default();
    session.handle_carrier_lost(began, CarrierId::FIRST);
    let second = session.add_carrier(began).unwrap();
    transmit(&mut session, began, second);
    hear(&mut session, began, second, &ack);
    let end = began + config.resume_timeout;
    assert_eq!(session.poll_timeout(), Some(end));
    let error = session.handle_timeout(end);
    assert_eq!(error, Err(SessionError::ResumeTimeout));
}

#[test]
fn a_carrier_that_leads_to_another_peer_ends_alone_and_the_session_waits_for_its_own() {
    let now = Instant::now();
    let (mut session, ack) = ready(now);
    let unknown = Frame::SessionClose {
        code: SessionCode::UnknownSession as u64,
        reason: "no such session".to_owned(),
    };
    let stream = session
        .open(now, "tcp://a:1", Priority::Auto, None)
        .unwrap();
    transmit(&mut session, now, CarrierId::FIRST);
    session.handle_carrier_lost(now, CarrierId::FIRST);
    let elsewhere = session.add_carrier(now).unwrap();
    session.may_lead_elsewhere(elsewhere);
    transmit(&mut session, now, elsewhere);
    hear(&mut session, now, elsewhere, &unknown);
    assert!(!session.is_over());
    assert_eq!(session.streams(), [stream]);
    let own = session.add_carrier(now).unwrap();
    transmit(&mut session, now, own);
    hear(&mut session, now, own, &ack);
    assert!(!session.is_over());

    // The report of the session's own peer is accepted.
    session.handle_carrier_lost(now, own);
    let own = session.add_carrier(now).unwrap();
    transmit(&mut session, now, own);
    let error = session.handle_header(now, own, &codec::encode(&unknown));
    assert!(
        matches!(error, Err(SessionError::ClosedByPeer { .. })),
        "{error:?}"
    );
}

#[test]
fn carriers_have_a_bound() {
    let now = Instant::now();
    let (mut session, ack) = ready(now);
    for _ in 1..muxtunnel_proto::native::CARRIERS_MAX {
        let carrier = session.add_carrier(now).unwrap();
        // The session permits one hello at a time.
        assert_eq!(session.add_carrier(now), None);
        transmit(&mut session, now, carrier);
        hear(&mut session, now, carrier, &ack);
    }
    assert_eq!(session.add_carrier(now), None);
    // A lost carrier counts towards the bound until the peer has reported the number of received
    // bytes.
    session.handle_carrier_lost(now, CarrierId::FIRST);
    assert_eq!(session.add_carrier(now), None);
}

#[test]
fn a_session_that_has_lost_half_of_its_carriers_dials_as_many_again() {
    let now = Instant::now();
    let (mut session, ack) = ready(now);
    let half = muxtunnel_proto::native::CARRIERS_MAX / 2;
    let mut carriers = vec![CarrierId::FIRST];
    for _ in 1..half {
        let carrier = session.add_carrier(now).unwrap();
        transmit(&mut session, now, carrier);
        hear(&mut session, now, carrier, &ack);
        carriers.push(carrier);
    }
    for carrier in carriers {
        session.handle_carrier_lost(now, carrier);
    }
    for _ in 0..half {
        let carrier = session.add_carrier(now).unwrap();
        transmit(&mut session, now, carrier);
        hear(&mut session, now, carrier, &ack);
    }
}
