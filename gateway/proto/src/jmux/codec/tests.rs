//! Golden vectors and property tests of the codec. The vector of OPEN is from JMUX-spec.md.

use muxtunnel_testkit::hex::bytes;
use proptest::prelude::*;

use super::*;

fn golden() -> Vec<(Control, Vec<u8>)> {
    let id = ChannelId;
    let mut open = bytes("64 0022 00 00000001 00000400 0400");
    open.extend(b"tcp://google.com:443");
    let mut failure = bytes("66 001f 00 00000001 00000005");
    failure.extend(b"connection refused."); // 12 + 19 = 31
    vec![
        (
            Control::Open {
                sender: id(1),
                window: 1024,
                packet_max: 1024,
                extensions: 0,
                target: "tcp://google.com:443".into(),
            },
            open,
        ),
        (
            Control::Opened {
                recipient: id(1),
                sender: id(0x0203_0405),
                window: 67_108_864,
                packet_max: 4096,
                extensions: EXTENSION_ABORT,
            },
            bytes("65 0012 01 00000001 02030405 04000000 1000"),
        ),
        (
            Control::OpenFailed {
                recipient: id(1),
                reason: 5,
                description: "connection refused.".into(),
            },
            failure,
        ),
        (
            Control::Credit {
                recipient: id(7),
                increment: 8192,
            },
            bytes("67 000c 00 00000007 00002000"),
        ),
        (
            Control::Finish { recipient: id(7) },
            bytes("69 0008 00 00000007"),
        ),
        (
            Control::Close {
                recipient: id(7),
                abort: false,
            },
            bytes("6a 0008 00 00000007"),
        ),
        (
            Control::Close {
                recipient: id(7),
                abort: true,
            },
            bytes("6a 0008 01 00000007"),
        ),
    ]
}

#[test]
fn control_messages_have_the_golden_bytes() {
    for (control, wire) in golden() {
        assert_eq!(encode(&control), wire, "{control:?}");
        let consumed = wire.len();
        assert_eq!(decode(&wire), Ok(Decoded::Control { control, consumed }));
    }
}

#[test]
fn a_data_header_has_the_golden_bytes() {
    assert_eq!(
        data_header(ChannelId(1), 4088).to_vec(),
        bytes("68 1000 00 00000001")
    );
    assert_eq!(
        decode(&bytes("68 1000 00 00000001")),
        Ok(Decoded::Data {
            recipient: ChannelId(1),
            length: 4088,
            consumed: 8
        })
    );
}

#[test]
fn data_of_length_zero_is_accepted() {
    assert_eq!(
        decode(&bytes("68 0008 00 00000001")),
        Ok(Decoded::Data {
            recipient: ChannelId(1),
            length: 0,
            consumed: 8
        })
    );
}

#[test]
fn flags_of_messages_without_extensions_are_ignored() {
    let Ok(Decoded::Control { control, .. }) = decode(&bytes("67 000c ff 00000007 00002000"))
    else {
        panic!()
    };
    assert_eq!(
        control,
        Control::Credit {
            recipient: ChannelId(7),
            increment: 8192
        }
    );
}

#[test]
fn what_is_not_jmux_is_refused_at_its_first_byte() {
    assert_eq!(decode(b"G"), Err(DecodeError::UnknownType(b'G')));
    assert_eq!(decode(b"SSH-2.0"), Err(DecodeError::UnknownType(b'S')));
}

#[test]
fn sizes_that_cannot_be_are_refused_from_the_header_alone() {
    for wire in [
        "64 000d 00",
        "64 ffff 00",
        "65 0011 00",
        "66 000b 00",
        "67 000d 00",
        "68 0007 00",
        "69 0009 00",
        "6a 0000 00",
    ] {
        assert!(
            matches!(decode(&bytes(wire)), Err(DecodeError::BadSize { .. })),
            "{wire}"
        );
    }
}

#[test]
fn a_text_that_is_not_utf8_is_refused() {
    let wire = bytes("64 000f 00 00000001 00000400 0400 ff");
    assert_eq!(decode(&wire), Err(DecodeError::NotUtf8(OPEN)));
}

fn any_control() -> impl Strategy<Value = Control> {
    let id = || any::<u32>().prop_map(ChannelId);
    prop_oneof![
        (id(), any::<u32>(), any::<u16>(), any::<u8>(), ".{0,64}").prop_map(
            |(sender, window, packet_max, extensions, target)| Control::Open {
                sender,
                window,
                packet_max,
                extensions,
                target
            }
        ),
        (id(), id(), any::<u32>(), any::<u16>(), any::<u8>()).prop_map(
            |(recipient, sender, window, packet_max, extensions)| Control::Opened {
                recipient,
                sender,
                window,
                packet_max,
                extensions
            }
        ),
        (id(), any::<u32>(), ".{0,40}").prop_map(|(recipient, reason, description)| {
            Control::OpenFailed {
                recipient,
                reason,
                description,
            }
        }),
        (id(), any::<u32>()).prop_map(|(recipient, increment)| Control::Credit {
            recipient,
            increment
        }),
        (id(), any::<bool>()).prop_map(|(recipient, is_answer)| Control::Probe {
            recipient,
            is_answer,
        }),
        id().prop_map(|recipient| Control::Finish { recipient }),
        (id(), any::<bool>()).prop_map(|(recipient, abort)| Control::Close { recipient, abort }),
    ]
}

proptest! {
    #[test]
    fn decode_of_encode_is_the_message(control in any_control()) {
        let wire = encode(&control);
        prop_assert_eq!(decode(&wire), Ok(Decoded::Control { control, consumed: wire.len() }));
    }

    #[test]
    fn a_message_cut_anywhere_is_incomplete_and_says_how_much_it_needs(control in any_control()) {
        let wire = encode(&control);
        for cut in 0..wire.len() {
            match decode(&wire[..cut]) {
                Ok(Decoded::Incomplete { needed }) => prop_assert!(cut < needed && needed <= wire.len()),
                other => prop_assert!(false, "cut at {}: {:?}", cut, other),
            }
        }
    }

    #[test]
    fn what_follows_a_message_does_not_change_it(control in any_control(), rest in proptest::collection::vec(any::<u8>(), 0..40)) {
        let mut wire = encode(&control);
        let consumed = wire.len();
        wire.extend(rest);
        prop_assert_eq!(decode(&wire), Ok(Decoded::Control { control, consumed }));
    }

    #[test]
    fn no_input_panics_and_no_frame_is_longer_than_its_bytes(input in proptest::collection::vec(any::<u8>(), 0..200), message_type in 99u8..=107) {
        for mut input in [input.clone(), { let mut i = input; i.insert(0, message_type); i }] {
            if input.len() > 2 { input[1] = 0; }
            if let Ok(Decoded::Control { consumed, .. } | Decoded::Data { consumed, .. }) = decode(&input) {
                prop_assert!(consumed <= input.len());
            }
        }
    }

    #[test]
    fn data_headers_round_trip(channel in any::<u32>(), length in 0u16..=65_527) {
        prop_assert_eq!(
            decode(&data_header(ChannelId(channel), length)),
            Ok(Decoded::Data { recipient: ChannelId(channel), length: usize::from(length), consumed: DATA_OVERHEAD })
        );
    }
}
