//! Properties of any input at all: what the fuzz targets run, and what the committed corpora replay.

mod session;

use std::fmt::Debug;

use muxtunnel_proto::{jmux, native};

use super::{Choices, run};

pub use session::session_input;

/// An input to nothing but zero, one or two frames of JMUX.
pub fn codec_jmux(input: &[u8]) {
    use jmux::codec::{Decoded, decode, encode};
    match decode(input) {
        Ok(Decoded::Control { control, consumed }) => {
            let again = decode(&encode(&control));
            check_consumed(input, consumed, &control);
            // A description that is too long is cut when it is sent.
            if let Ok(Decoded::Control { control: same, .. }) = again
                && !matches!(control, jmux::codec::Control::OpenFailed { .. })
            {
                assert_eq!(same, control);
            }
        }
        Ok(Decoded::Data { consumed, .. }) => check_consumed(input, consumed, &"payload"),
        Ok(Decoded::Incomplete { needed }) => check_needed(input, needed),
        Err(_) => {}
    }
}

/// The same for the native protocol.
pub fn codec_native(input: &[u8]) {
    use native::codec::{Decoded, datagram_header, decode, encode, stream_header};
    match decode(input) {
        Ok(Decoded::Frame { frame, consumed }) => {
            check_consumed(input, consumed, &frame);
            let wire = encode(&frame);
            let consumed = wire.len();
            assert_eq!(decode(&wire), Ok(Decoded::Frame { frame, consumed }));
        }
        Ok(Decoded::Stream {
            stream,
            offset,
            length,
            fin,
        }) => assert_eq!(stream_header(stream, offset, length, fin), input[..16]),
        Ok(Decoded::Datagram { consumed }) => {
            check_consumed(input, consumed, &"a datagram");
            let length = u32::try_from(consumed - 16).unwrap();
            assert_eq!(datagram_header(length), input[..16]);
        }
        Ok(Decoded::Incomplete { needed }) => check_needed(input, needed),
        Err(_) => {}
    }
}

fn check_consumed(input: &[u8], consumed: usize, what: &dyn Debug) {
    assert!(
        (1..=input.len()).contains(&consumed),
        "{consumed} of {what:?}"
    );
}

fn check_needed(input: &[u8], needed: usize) {
    let most = muxtunnel_proto::HEADER_BYTES_MAX + muxtunnel_proto::DATAGRAM_BYTES_MAX;
    assert!((input.len() + 1..=most).contains(&needed), "{needed}");
}

/// Two honest sessions; the input decides what happens.
pub fn pair(input: &[u8]) {
    run(None, Choices::of_bytes(input), false);
}
