//! Severe bugs of other projects. Each test shows that the protocol core does not have the bug in
//! the test's name.
//!
//! The driver's timeouts end half-closed flows (openziti#4273, linkerd2#8033):
//! `a_stream_that_is_half_closed_and_quiet_is_reset_and_one_that_is_open_stays` in
//! `gateway/tests/limits.rs`. Tests for bugs outside the mux are in the affected modules.

#![allow(
    clippy::disallowed_methods,
    reason = "a test's clock needs a starting time"
)]

use std::time::{Duration, Instant};

use muxtunnel_proto::native::codec::{Frame, HelloAck, Parameters, VERSION, encode, stream_header};
use muxtunnel_proto::{
    CarrierId, Event, Header, NativeConfig, NativeSession, Priority, ResetCode, Session,
    SessionError, StreamId, Token,
};

use crate::sim::{Choices, ENTRY, EXIT, End, Ending, Faults, Profile, Protocol, World};

fn world(profile: Profile) -> World {
    World::new(profile, Choices::Seed(0))
}

/// A dialled session. The test acts as the peer.
struct Dialled {
    session: NativeSession,
    now: Instant,
}

impl Dialled {
    fn new(parameters: Parameters) -> Self {
        let now = Instant::now();
        let mut dialled = Self {
            session: NativeSession::dial(NativeConfig::default(), now),
            now,
        };
        let ack = HelloAck {
            version: VERSION,
            features: 0,
            session_id: [1; 16],
            token: [2; 32],
            parameters,
        };
        dialled.hear(&Frame::HelloAck(ack));
        assert_eq!(
            dialled.events(),
            [
                Event::Ready,
                Event::CarrierUp {
                    carrier: CarrierId::FIRST
                }
            ]
        );
        dialled
    }

    fn hear(&mut self, frame: &Frame) {
        self.hear_bytes(&encode(frame)).unwrap();
    }

    fn hear_bytes(&mut self, bytes: &[u8]) -> Result<Header, SessionError> {
        self.session
            .handle_header(self.now, CarrierId::FIRST, bytes)
    }

    fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.session.poll_event()).collect()
    }

    /// Returns the streams that are woken. Panics on any other event.
    fn woken(&mut self) -> Vec<StreamId> {
        let events = self.events().into_iter();
        let woken = events.map(|event| match event {
            Event::Writable { stream } => stream,
            other => panic!("{other:?}"),
        });
        woken.collect()
    }

    fn open(&mut self) -> StreamId {
        self.session
            .open(self.now, "tcp://a:1", Priority::Auto, None)
            .unwrap()
    }

    /// Sends as many bytes as the stream accepts now.
    fn send_all(&mut self, stream: StreamId) -> u64 {
        let capacity = self.session.send_capacity(stream).unwrap().bytes;
        if capacity > 0 {
            self.session
                .source_ready(stream, capacity as usize, 0, Token(stream.number()));
        } else {
            self.session.want_credit(stream);
        }
        capacity
    }

    fn transmit_all(&mut self) {
        while self
            .session
            .poll_transmit(self.now, CarrierId::FIRST)
            .is_some()
        {}
    }
}

fn parameters() -> Parameters {
    Parameters {
        initial_max_data: 100,
        initial_max_stream_data: 1000,
        initial_max_streams: 100,
        frame_max: 16 << 10,
    }
}

/// A reply queue with one slot blocked the reader. When both directions were full, one ping ended
/// the session.
#[test]
fn rust_yamux_227_pings_while_both_directions_are_full_stop_nothing() {
    let mut world = world(Profile {
        pipe_bytes: 1,
        ..Profile::plain(Protocol::Native)
    });
    world.settle();
    for side in [ENTRY, EXIT] {
        world.open(side, u64::MAX, Ending::Finish).unwrap();
    }
    world.settle();
    let mut before = 0;
    for round in 1..=3000 {
        // The test sends a PING every few rounds. First, each side writes until its pipe is full.
        // One frame fills a pipe.
        world.advance_to(world.now + Duration::from_millis(300));
        for side in [ENTRY, EXIT] {
            let ids: Vec<StreamId> = world.sides[side].sockets.keys().copied().collect();
            for id in ids {
                world.source(side, id, 3000);
                world.sink(side, id, u64::MAX);
            }
            world.transmit(side, usize::MAX);
        }
        for side in [ENTRY, EXIT] {
            world.receive(side, usize::MAX);
        }
        let delivered: u64 = world
            .model
            .streams
            .iter()
            .flat_map(|stream| &stream.flows)
            .map(|flow| flow.delivered)
            .sum();
        if round % 20 == 0 {
            assert!(delivered > before, "no payload arrived");
            before = delivered;
        }
    }
    assert!(world.wire.pongs() > 100, "{}", world.wire.pongs());
}

/// The session never got back the credit for bytes of a reset stream that were in flight. In the
/// end no credit was left.
#[test]
fn h2_183_334_and_envoy_40085_resets_with_data_in_flight_lose_no_session_credit() {
    for protocol in Protocol::ALL {
        let mut world = world(Profile {
            ends: [End {
                receive_budget: 1 << 20,
                streams_max: 8,
                ..End::plain(protocol)
            }; 2],
            faults: Faults {
                slow_accepts: true,
                ..Faults::default()
            },
            ..Profile::plain(protocol)
        });
        world.settle();
        for turn in 0..3000 {
            let id = world.open(ENTRY, u64::MAX, Ending::Finish).unwrap();
            world.source(ENTRY, id, 5000);
            world.settle();
            let accepted = turn % 4 > 0;
            world.answer_all(EXIT, accepted);
            world.settle();
            // Some bytes are in flight, and other bytes wait.
            world.source(ENTRY, id, 5000);
            world.transmit(ENTRY, 1);
            world.source(ENTRY, id, 5000);
            let side = if turn % 4 == 1 { ENTRY } else { EXIT };
            let ids: Vec<StreamId> = world.sides[side].sockets.keys().copied().collect();
            for id in ids {
                world.give_up(side, id, ResetCode::Cancelled);
            }
            world.settle_and_check();
        }
        for side in &world.sides {
            assert_eq!(side.session.stream_count(), 0);
            assert_eq!(side.session.receive_budget_used(), 0);
        }
        // As many bytes pass as before the resets.
        world.open(ENTRY, 20 << 20, Ending::Finish).unwrap();
        world.finish_fairly();
    }
}

/// Callbacks reordered the list of streams during its iteration: one stream was woken twice,
/// another never.
#[test]
fn envoy_47351_every_stream_that_waits_is_woken_once_whatever_the_others_do_then() {
    let mut dialled = Dialled::new(parameters());
    let streams: Vec<StreamId> = (0..8).map(|_| dialled.open()).collect();
    assert_eq!(dialled.send_all(streams[0]), 100);
    let waiting: Vec<StreamId> = streams[1..].to_vec();
    for &stream in &waiting {
        assert_eq!(dialled.send_all(stream), 0);
    }
    dialled.transmit_all();
    // The first stream uses all credit, a second stream is cut, and a new stream waits.
    dialled.hear(&Frame::MaxData(1050));
    assert_eq!(dialled.woken(), [waiting[0]]);
    assert_eq!(dialled.send_all(waiting[0]), 950);
    dialled.session.reset(streams[4], ResetCode::Cancelled);
    let new = dialled.open();
    assert_eq!(dialled.send_all(new), 0);
    assert_eq!(dialled.woken(), []);
    // Each remaining stream is woken once, and the new stream is woken last. One stream uses its
    // credit and waits again. Another stream has no data to send, so the next stream is woken.
    let left = waiting[1..].iter().filter(|stream| **stream != streams[4]);
    let left: Vec<StreamId> = left.copied().chain([new]).collect();
    let mut woken: Vec<StreamId> = Vec::new();
    for data in 0.. {
        dialled.transmit_all();
        dialled.hear(&Frame::MaxData(1051 + data));
        let takes = dialled.woken();
        woken.extend(&takes);
        let [takes] = takes[..] else {
            panic!("{takes:?} are woken, expected one stream for one byte of credit");
        };
        dialled.session.want_credit(takes);
        let next = dialled.woken();
        woken.extend(&next);
        let [next] = next[..] else {
            panic!("{next:?} are woken, expected the next stream for the byte left");
        };
        assert_eq!(dialled.send_all(next), 1);
        if woken.len() >= left.len() {
            break;
        }
    }
    assert_eq!(woken, left);
}

/// A peer sent all data and closed the stream before the open was accepted. The end was handled
/// first, and the data was lost.
#[test]
fn rust_yamux_25_what_came_before_the_accept_is_delivered_and_then_its_end() {
    let mut world = world(Profile {
        faults: Faults {
            slow_accepts: true,
            ..Faults::default()
        },
        ..Profile::plain(Protocol::Native)
    });
    world.settle();
    let id = world.open(ENTRY, 10_000, Ending::Finish).unwrap();
    assert!(world.source(ENTRY, id, 10_000) && world.source(ENTRY, id, 0));
    world.settle();
    let socket = &world.sides[EXIT].sockets[&id];
    assert_eq!((socket.held, socket.finish_seen), (10_000, true));
    world.answer_all(EXIT, true);
    world.finish_fairly();
    let stream = &world.model.streams[0];
    assert_eq!(stream.flows[ENTRY].delivered, 10_000);
}

/// A peer sent fragments of one byte with gaps between them. The other project limited the bytes,
/// but not the records about the gaps. A single carrier has no gaps, so the session needs no
/// records.
#[test]
fn rustsec_2026_0185_fragments_leave_no_trace_but_their_bytes() {
    let mut dialled = Dialled::new(parameters());
    let stream = dialled.open();
    dialled.transmit_all();
    dialled.hear(&Frame::Opened {
        stream,
        address: String::new(),
    });
    dialled.events();
    let before = format!("{:?}", dialled.session).len();
    for offset in 0..10_000 {
        dialled
            .hear_bytes(&stream_header(stream, offset, 1, false))
            .unwrap();
        let now = dialled.now;
        dialled.session.payload_moved(now, CarrierId::FIRST, 1);
    }
    assert_eq!(dialled.session.receive_budget_used(), 10_000);
    let after = format!("{:?}", dialled.session).len();
    assert!(after < before + 100, "{before} to {after}");
    let gap = dialled.hear_bytes(&stream_header(stream, 10_001, 1, false));
    assert!(
        matches!(gap, Err(SessionError::Violation { .. })),
        "{gap:?}"
    );
}
