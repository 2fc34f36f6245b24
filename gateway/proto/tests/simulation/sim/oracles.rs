//! Properties of arbitrary input. The fuzz targets run them, and `cargo test` replays the corpora.

mod kcp;
mod session;

use std::fmt::Debug;

use muxtunnel_proto::{jmux, native};

use super::{Choices, run};

pub use kcp::kcp;
pub use session::session_input;

/// A decoded JMUX frame stays within the input, and its encoding decodes to the same frame.
pub fn codec_jmux(input: &[u8]) {
    use jmux::codec::{Decoded, decode, encode};
    match decode(input) {
        Ok(Decoded::Control { control, consumed }) => {
            let again = decode(&encode(&control));
            check_consumed(input, consumed, &control);
            // The encoder truncates a description that is too long.
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

/// A decoded native frame stays within the input, and its encoding decodes to the same frame.
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

/// Runs two sessions that comply with the protocol. The input selects the events.
pub fn pair(input: &[u8]) {
    run(None, Choices::of_bytes(input), false);
}
