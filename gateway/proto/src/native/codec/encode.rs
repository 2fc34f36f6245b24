//! Encodes frames.

use super::*;

/// The header of a STREAM frame. `length` is the number of payload bytes, at most
/// [`FRAME_BYTES_MAX`]. `offset` is the position of the payload in the stream, at most
/// [`OFFSET_MAX`].
#[must_use]
pub fn stream_header(stream: StreamId, offset: u64, length: u32, fin: bool) -> [u8; HEADER_BYTES] {
    let frame_type = if fin { STREAM_FIN } else { STREAM };
    header(frame_type, length, stream.0, offset)
}

/// The header of a DATAGRAM frame with a packet of `length` bytes, 1 to [`DATAGRAM_BYTES_MAX`].
#[must_use]
pub fn datagram_header(length: u32) -> [u8; HEADER_BYTES] {
    debug_assert!((1..=DATAGRAM_BYTES_MAX as u32).contains(&length));
    header(DATAGRAM, length, 0, 0)
}

fn header(frame_type: u8, length: u32, stream: u64, offset: u64) -> [u8; HEADER_BYTES] {
    debug_assert!(length <= FRAME_BYTES_MAX && stream <= OFFSET_MAX && offset <= OFFSET_MAX);
    let wide = u128::from(frame_type) << 120
        | u128::from(length & 0x00ff_ffff) << 96
        | u128::from(stream & OFFSET_MAX) << 48
        | u128::from(offset & OFFSET_MAX);
    wide.to_be_bytes()
}

/// The header of a frame about the session.
fn session_header(frame_type: u8, length: usize, number: u32, value: u64) -> [u8; HEADER_BYTES] {
    let wide = u128::from(frame_type) << 120
        | (length as u128 & 0x00ff_ffff) << 96
        | u128::from(number) << 64
        | u128::from(value);
    wide.to_be_bytes()
}

/// Encodes a frame. Texts are cut at [`TEXT_BYTES_MAX`], targets at [`TARGET_LENGTH_MAX`].
/// [`crate::Session::open`] refuses longer targets earlier.
#[must_use]
pub fn encode(frame: &Frame) -> Vec<u8> {
    let about_session = |frame_type, value| session_header(frame_type, 0, 0, value).to_vec();
    match frame {
        Frame::Hello(hello) => with_body(HELLO, 0, 0, &hello.write()),
        Frame::HelloAck(ack) => with_body(HELLO_ACK, 0, 0, &ack.write()),
        Frame::SessionClose { code, reason } => with_text(SESSION_CLOSE, 0, *code, reason),
        Frame::Ping(value) => about_session(PING, *value),
        Frame::Pong(value) => about_session(PONG, *value),
        Frame::GoAway { last } => header(GOAWAY, 0, last.0, 0).to_vec(),
        Frame::Open {
            stream,
            priority,
            source,
            target,
        } => {
            let mut body = vec![*priority];
            if let Some(source) = source {
                source::write(*source, &mut body);
            }
            body.extend(cut(target, TARGET_LENGTH_MAX).bytes());
            let frame_type = if source.is_some() { OPEN_FROM } else { OPEN };
            with_body(frame_type, stream.0, 0, &body)
        }
        Frame::Opened { stream, address } => {
            with_body(OPENED, stream.0, 0, cut(address, TEXT_BYTES_MAX).as_bytes())
        }
        Frame::MaxStreamData { stream, limit } => {
            header(MAX_STREAM_DATA, 0, stream.0, *limit).to_vec()
        }
        Frame::MaxData(limit) => about_session(MAX_DATA, *limit),
        Frame::MaxStreams(limit) => about_session(MAX_STREAMS, *limit),
        Frame::ResetStream {
            stream,
            code,
            final_size,
            reason,
        } => {
            let mut body = code.to_be_bytes().to_vec();
            body.extend(cut(reason, TEXT_BYTES_MAX).bytes());
            with_body(RESET_STREAM, stream.0, *final_size, &body)
        }
        Frame::StopSending { stream, code } => {
            header(STOP_SENDING, 0, stream.0, u64::from(*code)).to_vec()
        }
        Frame::Ack { received } => about_session(ACK, *received),
        Frame::CarrierLost { carrier, received } => {
            session_header(CARRIER_LOST, 0, *carrier, *received).to_vec()
        }
        Frame::Carriers { count, serial } => session_header(CARRIERS, 0, *count, *serial).to_vec(),
        Frame::Retire => header(RETIRE, 0, 0, 0).to_vec(),
        Frame::Assign(assignment) => with_body(ASSIGN, 0, 0, &assignment.encode()),
        Frame::Listen {
            listen,
            priority,
            address,
        } => {
            let address = cut(address, LISTEN_ADDRESS_LENGTH_MAX);
            let mut out = session_header(LISTEN, 1 + address.len(), listen.0, 0).to_vec();
            out.push(*priority);
            out.extend(address.bytes());
            out
        }
        Frame::Listening { listen, address } => with_text(LISTENING, listen.0, 0, address),
        Frame::Unlisten {
            listen,
            code,
            reason,
        } => with_text(UNLISTEN, listen.0, *code, reason),
    }
}

fn with_body(frame_type: u8, stream: u64, offset: u64, body: &[u8]) -> Vec<u8> {
    debug_assert!(body.len() <= BODY_BYTES_MAX);
    let mut out = header(frame_type, body.len() as u32, stream, offset).to_vec();
    out.extend(body);
    out
}

/// Encodes a frame about the session whose body is a text.
fn with_text(frame_type: u8, number: u32, value: u64, text: &str) -> Vec<u8> {
    let text = cut(text, TEXT_BYTES_MAX);
    let mut out = session_header(frame_type, text.len(), number, value).to_vec();
    out.extend(text.bytes());
    out
}

fn cut(text: &str, length_max: usize) -> &str {
    &text[..text.floor_char_boundary(length_max)]
}
