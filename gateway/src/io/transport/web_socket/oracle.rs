//! Properties of any input of a WebSocket peer, for tests and fuzz targets.

use super::*;

/// Checks that the parser finds the same request regardless of the bytes after the request. Bytes
/// after the request are read identically in pieces of any size, and the answer to a ping is a
/// frame. The first byte of `input` chooses the side that reads and the length of the pieces.
pub(crate) fn web_socket(input: &[u8]) {
    let Some((flags, bytes)) = input.split_first() else {
        return;
    };
    let config = WebSocket {
        path: "/carrier".to_owned(),
        origins: Vec::new(),
    };
    if let Ok(Some((length, answer))) = request(bytes, &config) {
        let alone = request(&bytes[..length], &config);
        assert_eq!(alone.ok().flatten(), Some((length, answer)));
        for end in [0, length / 2, length - 1] {
            assert!(!matches!(request(&bytes[..end], &config), Ok(Some(_))));
        }
    }
    let (side, piece) = match flags & 1 {
        0 => (Side::Accepts, 1 + usize::from(flags >> 1)),
        _ => (Side::Dials, 1 + usize::from(flags >> 1)),
    };
    let whole = read(side, bytes, bytes.len().max(1));
    assert_eq!(read(side, bytes, piece), whole);
}

/// The bytes that the pieces decode to, whether the end was read, and whether the protocol was
/// broken.
fn read(side: Side, bytes: &[u8], piece: usize) -> (Vec<u8>, bool, bool) {
    let mut messages = Messages::new(side);
    let (mut waiting, mut plain) = (Vec::new(), Vec::new());
    for part in bytes.chunks(piece) {
        waiting.extend_from_slice(part);
        loop {
            let mut room = [0; 512];
            match messages.open(&waiting, &mut room) {
                Ok(Opened::Incomplete) => break,
                Ok(Opened::Record { consumed, length }) => {
                    assert!(consumed > 0 && consumed <= waiting.len() && length <= room.len());
                    plain.extend_from_slice(&room[..length]);
                    waiting.drain(..consumed);
                }
                Ok(Opened::NoRoom { needed }) => assert!(needed <= room.len(), "{needed}"),
                Ok(Opened::End) => return (plain, true, false),
                Err(_) => return (plain, false, true),
            }
            if messages.owes_answer() {
                let mut frame = [0; HEADER_BYTES_MAX + CONTROL_BYTES_MAX];
                let length = messages.answer(&mut frame).unwrap_or_default();
                assert!(length > 0 && frame[0] == FINAL | PONG);
            }
        }
    }
    (plain, false, false)
}
