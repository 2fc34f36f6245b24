//! Golden vectors (the tables of docs/protocol.md) and properties of the codec.

use muxtunnel_testkit::hex::bytes;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::*;
use crate::session::{ASSIGNED_ADDRESSES_MAX, DNS_DOMAINS_MAX, DNS_SERVERS_MAX, ListenId};

const PARAMETERS: Parameters = Parameters {
    initial_max_data: 0x1000_0000,
    initial_max_stream_data: 0x1_0000,
    initial_max_streams: 4096,
    frame_max: 0x10_0000,
};

const PARAMETERS_HEX: &str = "0001 0008 0000000010000000 0002 0008 0000000000010000 \
     0003 0008 0000000000001000 0004 0004 00100000";

fn id(number: u64) -> StreamId {
    StreamId(number)
}

#[test]
fn nothing_shows_a_token() {
    for (frame, _) in golden_hellos() {
        let shown = format!("{frame:?} {frame:#?}").replace(char::is_whitespace, "");
        assert!(
            !shown.contains("token") && !shown.contains("29,30,31"),
            "{shown}"
        );
    }
}

fn golden_hellos() -> Vec<(Frame, Vec<u8>)> {
    let token: [u8; 32] = std::array::from_fn(|i| i as u8);
    vec![
        (
            Frame::Hello(Hello {
                version_min: 1,
                version_max: 2,
                features: 3,
                carrier: 4,
                session_id: [5; 16],
                token,
                parameters: PARAMETERS,
            }),
            bytes(&format!(
                "01 000070 000000000000 000000000000 4d555854554e454c 0001 0002 00000003 00000004 \
                 05050505050505050505050505050505 \
                 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f {PARAMETERS_HEX}"
            )),
        ),
        (
            Frame::HelloAck(HelloAck {
                version: 1,
                features: 2,
                session_id: [0xab; 16],
                token,
                parameters: PARAMETERS,
            }),
            bytes(&format!(
                "02 000064 000000000000 000000000000 0001 0000 00000002 \
                 abababababababababababababababab \
                 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f {PARAMETERS_HEX}"
            )),
        ),
    ]
}

fn golden_session_frames() -> Vec<(Frame, &'static str)> {
    vec![
        (
            Frame::SessionClose {
                code: 0x101,
                reason: "bye".into(),
            },
            "03 000003 00000000 0000000000000101 627965",
        ),
        (
            Frame::Ping(0x0102_0304_0506_0708),
            "04 000000 00000000 0102030405060708",
        ),
        (Frame::Pong(u64::MAX), "05 000000 00000000 ffffffffffffffff"),
        (
            Frame::GoAway { last: id(6) },
            "06 000000 000000000006 000000000000",
        ),
        (
            Frame::GoAway { last: id(0) },
            "06 000000 000000000000 000000000000",
        ),
        (
            Frame::MaxData(1 << 40),
            "19 000000 00000000 0000010000000000",
        ),
        (
            Frame::MaxStreams(4097),
            "1a 000000 00000000 0000000000001001",
        ),
        (
            Frame::Ack { received: 262_144 },
            "20 000000 00000000 0000000000040000",
        ),
        (
            Frame::CarrierLost {
                carrier: 3,
                received: 1000,
            },
            "21 000000 00000003 00000000000003e8",
        ),
        (
            Frame::Carriers {
                count: 4,
                serial: 258,
            },
            "22 000000 00000004 0000000000000102",
        ),
        (Frame::Retire, "23 000000 000000000000 000000000000"),
        (
            Frame::Listen {
                listen: ListenId(7),
                priority: 2,
                address: "[::]:80".into(),
            },
            "28 000008 00000007 0000000000000000 02 5b3a3a5d3a3830",
        ),
        (
            Frame::Listening {
                listen: ListenId(7),
                address: "[::]:80".into(),
            },
            "29 000007 00000007 0000000000000000 5b3a3a5d3a3830",
        ),
        (
            Frame::Unlisten {
                listen: ListenId(7),
                code: 2,
                reason: "no".into(),
            },
            "2a 000002 00000007 0000000000000002 6e6f",
        ),
        (
            Frame::Assign(Assignment {
                addresses: vec!["10.72.0.9".parse().unwrap()],
                dns_servers: vec!["fd72::53".parse().unwrap()],
                dns_domains: vec!["a.b".into()],
            }),
            "31 000023 000000000000 000000000000 0001 0004 0a480009 \
             0002 0010 fd720000000000000000000000000053 0003 0003 612e62",
        ),
    ]
}

fn golden_stream_frames() -> Vec<(Frame, &'static str)> {
    vec![
        (
            Frame::Open {
                stream: id(2),
                priority: 0,
                source: None,
                target: "tcp://a:1".into(),
            },
            "08 00000a 000000000002 000000000000 00 7463703a2f2f613a31",
        ),
        (
            Frame::Open {
                stream: id(2),
                priority: 1,
                source: Some(Source::Unknown),
                target: "a".into(),
            },
            "0a 000003 000000000002 000000000000 01 00 61",
        ),
        (
            Frame::Open {
                stream: id(2),
                priority: 0,
                source: Some(tcp_source("192.0.2.7:50000", "10.0.0.1:80")),
                target: "a".into(),
            },
            "0a 00000f 000000000002 000000000000 00 04 c0000207 0a000001 c350 0050 61",
        ),
        (
            Frame::Open {
                stream: id(2),
                priority: 0,
                source: Some(tcp_source("[2001:db8::7]:50000", "[::1]:80")),
                target: "a".into(),
            },
            "0a 000027 000000000002 000000000000 00 06 20010db8000000000000000000000007 \
             00000000000000000000000000000001 c350 0050 61",
        ),
        (
            Frame::Opened {
                stream: id(OFFSET_MAX),
                address: "192.0.2.1:80".into(),
            },
            "09 00000c ffffffffffff 000000000000 3139322e302e322e313a3830",
        ),
        (
            Frame::MaxStreamData {
                stream: id(3),
                limit: OFFSET_MAX,
            },
            "18 000000 000000000003 ffffffffffff",
        ),
        (
            Frame::ResetStream {
                stream: id(3),
                code: 0x105,
                final_size: 77,
                reason: "no".into(),
            },
            "1b 000004 000000000003 00000000004d 0105 6e6f",
        ),
        (
            Frame::StopSending {
                stream: id(3),
                code: 1,
            },
            "1c 000000 000000000003 000000000001",
        ),
    ]
}

fn golden() -> Vec<(Frame, Vec<u8>)> {
    let short = golden_session_frames()
        .into_iter()
        .chain(golden_stream_frames());
    let short = short.map(|(frame, hex)| (frame, bytes(hex)));
    golden_hellos().into_iter().chain(short).collect()
}

#[test]
fn frames_have_the_golden_bytes() {
    for (frame, wire) in golden() {
        assert_eq!(encode(&frame), wire, "{frame:?}");
        let consumed = wire.len();
        assert_eq!(decode(&wire), Ok(Decoded::Frame { frame, consumed }));
    }
}

#[test]
fn stream_headers_have_the_golden_bytes() {
    for (fin, wire) in [
        (false, "10 010000 000000000002 000000004000"),
        (true, "11 010000 000000000002 000000004000"),
    ] {
        let header = stream_header(id(2), 0x4000, 0x1_0000, fin);
        assert_eq!(header.to_vec(), bytes(wire));
        let decoded = Decoded::Stream {
            stream: id(2),
            offset: 0x4000,
            length: 0x1_0000,
            fin,
        };
        assert_eq!(decode(&header), Ok(decoded));
    }
}

#[test]
fn what_is_not_a_frame_is_refused_at_its_first_byte() {
    for first in [0x00, 0x07, b'G', b'S', 0x12, 0x1d, 0x24, 0xff] {
        assert_eq!(decode(&[first]), Err(DecodeError::UnknownType(first)));
    }
    assert_eq!(decode(&[]), Ok(Decoded::Incomplete { needed: 16 }));
}

#[test]
fn another_magic_is_another_protocol() {
    let (_, mut wire) = golden_hellos().remove(0);
    wire[HEADER_BYTES] = b'm';
    assert_eq!(decode(&wire), Err(DecodeError::NotNative));
}

#[test]
fn lengths_that_cannot_be_are_refused_from_the_header_alone() {
    for wire in [
        "01 000043",
        "01 000401",
        "02 000037",
        "02 000401",
        "03 000101",
        "04 000001",
        "05 000001",
        "06 000001",
        "08 000001",
        "08 000402",
        "09 000101",
        "10 100001",
        "11 100001",
        "18 000001",
        "19 000001",
        "1a 000001",
        "1b 000001",
        "1b 000103",
        "1c 000001",
        "20 000001",
        "21 000001",
        "22 000001",
        "23 000001",
        "28 000001",
        "28 000042",
        "29 000101",
        "2a 000101",
        "31 000801",
    ] {
        let mut wire = bytes(wire);
        wire.resize(HEADER_BYTES, 0);
        assert!(
            matches!(decode(&wire), Err(DecodeError::BadLength { .. })),
            "{wire:02x?}"
        );
    }
}

#[test]
fn fields_that_a_frame_does_not_use_are_refused_when_they_are_not_zero() {
    for (index, (frame, wire)) in golden().into_iter().enumerate() {
        let unused: &[usize] = match frame {
            Frame::Hello(_) => &[4, 9, 10, 15],
            Frame::HelloAck(_) => &[4, 9, 10, 15, 16 + 2, 16 + 3],
            Frame::SessionClose { .. }
            | Frame::Ping(_)
            | Frame::Pong(_)
            | Frame::MaxData(_)
            | Frame::MaxStreams(_)
            | Frame::Ack { .. } => &[4, 5, 6, 7],
            Frame::GoAway { .. } | Frame::Open { .. } | Frame::Opened { .. } => &[10, 12, 15],
            // The code takes the last 16 bits of a field of 48 bits; the other bytes must be zero.
            Frame::StopSending { .. } => &[10, 11, 12, 13],
            Frame::Retire | Frame::Assign(_) => &[4, 9, 10, 15],
            Frame::Listen { .. } | Frame::Listening { .. } => &[8, 15],
            Frame::CarrierLost { .. }
            | Frame::Carriers { .. }
            | Frame::Unlisten { .. }
            | Frame::MaxStreamData { .. }
            | Frame::ResetStream { .. } => &[],
        };
        for &at in unused {
            let mut wire = wire.clone();
            wire[at] ^= 0x80;
            assert_eq!(
                decode(&wire),
                Err(DecodeError::BadField(wire[0])),
                "vector {index}, byte {at}"
            );
        }
    }
}

#[test]
fn a_frame_about_no_stream_is_refused() {
    for (frame, hex) in golden_stream_frames() {
        let mut wire = bytes(hex);
        wire[4..10].fill(0);
        assert_eq!(
            decode(&wire),
            Err(DecodeError::BadField(wire[0])),
            "{frame:?}"
        );
    }
    let header = stream_header(id(0), 0, 10, false);
    assert_eq!(decode(&header), Err(DecodeError::BadField(header[0])));
}

#[test]
fn texts_that_are_not_utf8_are_refused() {
    for (wire, at) in [
        ("03 000001 000000000000 000000000000 ff", 3),
        ("08 000002 000000000002 000000000000 00 ff", 8),
        ("09 000001 000000000002 000000000000 ff", 9),
        ("1b 000003 000000000002 000000000000 0001 ff", 0x1b),
    ] {
        assert_eq!(decode(&bytes(wire)), Err(DecodeError::NotUtf8(at)));
    }
}

/// Decodes a HELLO_ACK with these parameters.
fn ack_with(parameters: &str) -> Result<Decoded, DecodeError> {
    let parameters = bytes(parameters);
    let mut wire = bytes("02 000000 000000000000 000000000000 0001 0000 00000000");
    wire.resize(HEADER_BYTES + 56, 0);
    wire[3] = (56 + parameters.len()) as u8;
    wire.extend(parameters);
    decode(&wire)
}

#[test]
fn parameters_that_are_missing_have_their_defaults_and_unknown_ones_are_skipped() {
    for parameters in ["", "0009 0000", "ffff 0003 010203"] {
        let Ok(Decoded::Frame {
            frame: Frame::HelloAck(ack),
            ..
        }) = ack_with(parameters)
        else {
            panic!("{parameters}")
        };
        assert_eq!(ack.parameters, Parameters::default());
    }
}

#[test]
fn parameters_that_are_malformed_are_refused() {
    for (parameters, at) in [
        ("00", 0),
        ("0001 00", 0),
        ("0001 0008 00", 1),
        ("0001 0007 00000000000000", 1),
        ("0002 0008 0001000000000000", 2),
        ("0003 0008 0000000000000001 0003 0008 0000000000000001", 3),
        ("0004 0004 00003fff", 4),
        ("0004 0004 00100001", 4),
        ("0004 0002 4000", 4),
        ("0007 0005 00", 7),
    ] {
        assert_eq!(
            ack_with(parameters),
            Err(DecodeError::BadParameter(at)),
            "{parameters}"
        );
    }
}

#[test]
fn texts_that_are_too_long_are_cut_at_a_character() {
    let long = "ä".repeat(1000);
    for frame in [
        Frame::SessionClose {
            code: 0,
            reason: format!("a{long}"),
        },
        Frame::Opened {
            stream: id(2),
            address: format!("a{long}"),
        },
        Frame::ResetStream {
            stream: id(2),
            code: 1,
            final_size: 0,
            reason: format!("a{long}"),
        },
    ] {
        let wire = encode(&frame);
        assert!(wire.len() <= HEADER_BYTES + 2 + TEXT_BYTES_MAX);
        assert!(
            matches!(decode(&wire), Ok(Decoded::Frame { .. })),
            "{wire:02x?}"
        );
    }
}

fn any_parameters() -> impl Strategy<Value = Parameters> {
    let stream_data = 0..=OFFSET_MAX;
    let frame_max = FRAME_BYTES_MIN..=FRAME_BYTES_MAX;
    (any::<u64>(), stream_data, any::<u64>(), frame_max).prop_map(
        |(initial_max_data, initial_max_stream_data, initial_max_streams, frame_max)| Parameters {
            initial_max_data,
            initial_max_stream_data,
            initial_max_streams,
            frame_max,
        },
    )
}

fn any_hello() -> impl Strategy<Value = Frame> {
    let versions = (any::<u16>(), any::<u16>());
    let names = (any::<[u8; 16]>(), any::<[u8; 32]>());
    (
        versions,
        any::<u32>(),
        option::of(any::<u32>()),
        names,
        any_parameters(),
    )
        .prop_map(
            |((one, other), features, carrier, (session_id, token), parameters)| match carrier {
                Some(carrier) => Frame::Hello(Hello {
                    version_min: one.min(other),
                    version_max: one.max(other),
                    features,
                    carrier,
                    session_id,
                    token,
                    parameters,
                }),
                None => Frame::HelloAck(HelloAck {
                    version: one,
                    features,
                    session_id,
                    token,
                    parameters,
                }),
            },
        )
}

fn any_assignment() -> impl Strategy<Value = Assignment> {
    (
        vec(any::<std::net::IpAddr>(), 0..=ASSIGNED_ADDRESSES_MAX),
        vec(any::<std::net::IpAddr>(), 0..=DNS_SERVERS_MAX),
        vec("[a-z0-9_][a-z0-9_.-]{0,60}", 0..=DNS_DOMAINS_MAX),
    )
        .prop_map(|(addresses, dns_servers, dns_domains)| Assignment {
            addresses,
            dns_servers,
            dns_domains,
        })
}

fn any_session_frame() -> impl Strategy<Value = Frame> {
    let listen = || (1..=u32::MAX).prop_map(ListenId);
    prop_oneof![
        (any::<u64>(), ".{0,64}").prop_map(|(code, reason)| Frame::SessionClose { code, reason }),
        any::<u64>().prop_map(Frame::Ping),
        any::<u64>().prop_map(Frame::Pong),
        (0..=OFFSET_MAX).prop_map(|last| Frame::GoAway { last: id(last) }),
        any::<u64>().prop_map(Frame::MaxData),
        any::<u64>().prop_map(Frame::MaxStreams),
        any::<u64>().prop_map(|received| Frame::Ack { received }),
        (any::<u32>(), any::<u64>())
            .prop_map(|(carrier, received)| Frame::CarrierLost { carrier, received }),
        (any::<u32>(), any::<u64>()).prop_map(|(count, serial)| Frame::Carriers { count, serial }),
        Just(Frame::Retire),
        any_assignment().prop_map(Frame::Assign),
        (listen(), any::<u8>(), "[ -~]{1,64}").prop_map(|(listen, priority, address)| {
            Frame::Listen {
                listen,
                priority,
                address,
            }
        }),
        (listen(), ".{0,64}").prop_map(|(listen, address)| Frame::Listening { listen, address }),
        (listen(), any::<u64>(), ".{0,64}").prop_map(|(listen, code, reason)| {
            Frame::Unlisten {
                listen,
                code,
                reason,
            }
        }),
    ]
}

fn tcp_source(client: &str, server: &str) -> Source {
    Source::of(client.parse().unwrap(), server.parse().unwrap())
}

fn any_source() -> impl Strategy<Value = Option<Source>> {
    let ends = (any::<std::net::SocketAddr>(), any::<std::net::SocketAddr>());
    // The wire format of an IPv6 address has no scope.
    let plain = |end: std::net::SocketAddr| std::net::SocketAddr::new(end.ip(), end.port());
    prop_oneof![
        Just(None),
        Just(Some(Source::Unknown)),
        ends.prop_map(move |(client, server)| Some(Source::of(plain(client), plain(server)))),
    ]
}

#[test]
fn a_source_that_is_not_whole_or_of_an_unknown_family_is_refused() {
    let whole = "00 04 c0000207 0a000001 c350 0050";
    // The last body has no target.
    for body in [
        "00 05 61",
        "00 04 c0000207 0a000001 c350",
        "00 06 c0000207 0a000001 c350 0050 61",
        whole,
    ] {
        let body = bytes(body);
        let length = format!("{:06x}", body.len());
        let head = bytes(&format!("0a {length} 000000000002 000000000000"));
        let error = decode(&[head, body].concat()).unwrap_err();
        assert_eq!(error, DecodeError::BadField(0x0a));
    }
}

fn any_stream_frame() -> impl Strategy<Value = Frame> {
    let stream = || (1..=OFFSET_MAX).prop_map(id);
    prop_oneof![
        (stream(), any::<u8>(), any_source(), ".{1,64}").prop_map(
            |(stream, priority, source, target)| Frame::Open {
                stream,
                priority,
                source,
                target
            }
        ),
        (stream(), ".{0,64}").prop_map(|(stream, address)| Frame::Opened { stream, address }),
        (stream(), 0..=OFFSET_MAX)
            .prop_map(|(stream, limit)| Frame::MaxStreamData { stream, limit }),
        (stream(), any::<u16>(), 0..=OFFSET_MAX, ".{0,64}").prop_map(
            |(stream, code, final_size, reason)| Frame::ResetStream {
                stream,
                code,
                final_size,
                reason
            }
        ),
        (stream(), any::<u16>()).prop_map(|(stream, code)| Frame::StopSending { stream, code }),
    ]
}

fn any_frame() -> impl Strategy<Value = Frame> {
    prop_oneof![any_hello(), any_session_frame(), any_stream_frame()]
}

proptest! {
    #[test]
    fn decode_of_encode_is_the_frame(frame in any_frame()) {
        let wire = encode(&frame);
        let consumed = wire.len();
        prop_assert_eq!(decode(&wire), Ok(Decoded::Frame { frame, consumed }));
    }

    #[test]
    fn a_frame_cut_anywhere_is_incomplete_and_says_how_much_it_needs(frame in any_frame()) {
        let wire = encode(&frame);
        for cut in 0..wire.len() {
            let needed = if cut < HEADER_BYTES { HEADER_BYTES } else { wire.len() };
            prop_assert_eq!(decode(&wire[..cut]), Ok(Decoded::Incomplete { needed }));
        }
    }

    #[test]
    fn what_follows_a_frame_does_not_change_it(frame in any_frame(), rest in vec(any::<u8>(), 0..40)) {
        let mut wire = encode(&frame);
        let consumed = wire.len();
        wire.extend(rest);
        prop_assert_eq!(decode(&wire), Ok(Decoded::Frame { frame, consumed }));
    }

    #[test]
    fn no_input_panics_and_no_frame_is_longer_than_its_bytes(
        frame_type in 0u8..0x26,
        length in 0u16..600,
        rest in vec(any::<u8>(), 12..700),
        zeros in any::<bool>(),
    ) {
        let mut input = vec![frame_type, 0];
        input.extend(length.to_be_bytes());
        input.extend(rest);
        if zeros {
            input[4..HEADER_BYTES].fill(0);
        }
        match decode(&input) {
            Ok(Decoded::Frame { consumed, .. } | Decoded::Datagram { consumed }) => {
                prop_assert_eq!(consumed, HEADER_BYTES + usize::from(length));
                prop_assert!(consumed <= input.len());
            }
            Ok(Decoded::Incomplete { needed }) => prop_assert!(needed > input.len()),
            Ok(Decoded::Stream { .. }) | Err(_) => {}
        }
    }

    #[test]
    fn stream_headers_round_trip(
        stream in 1..=OFFSET_MAX,
        offset in 0..=OFFSET_MAX,
        length in 0..=FRAME_BYTES_MAX,
        fin in any::<bool>(),
    ) {
        let stream = id(stream);
        let expected = Decoded::Stream { stream, offset, length, fin };
        prop_assert_eq!(decode(&stream_header(stream, offset, length, fin)), Ok(expected));
    }
}
