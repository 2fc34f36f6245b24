//! Payload: the bytes of DATA frames after the header section of a CONNECT (RFC 9114, section 4.4).

use bytes::{Buf, Bytes};
use muxtunnel_proto::ResetCode;
use quinn::VarInt;

use super::code;
use super::frame::{self, Head};
use crate::session::quic_streams::{Broken, Framing, Overhead, StreamOverhead};

/// A piece with less payload than this number of bytes is copied, since the piece would keep its
/// whole packet in memory.
const COPIED_MAX: usize = 1024;

/// The state of the peer's frames on one stream.
#[derive(Debug, Default)]
pub(crate) struct Data {
    head: Head,
    /// Number of bytes of the current frame that have not arrived yet.
    left: u64,
    /// Whether the current frame is skipped because of its unknown type.
    skips: bool,
    overhead: StreamOverhead,
}

impl Data {
    fn begin(&mut self, (kind, length): (u64, u64), overhead: &Overhead) -> Result<(), Broken> {
        if kind != frame::DATA && frame::is_known(kind)? {
            return Err(frame::unexpected(
                "the peer sent a frame other than DATA in a tunnel",
            ));
        }
        self.skips = kind != frame::DATA;
        self.left = length;
        if self.skips || length == 0 {
            self.overhead.count(overhead)?;
        } else {
            self.overhead.carried();
        }
        Ok(())
    }
}

impl Framing for Data {
    fn begin(bytes: usize, head: &mut Vec<u8>) {
        frame::push_head(head, frame::DATA, bytes);
    }

    fn code(code: ResetCode) -> VarInt {
        match code {
            ResetCode::NotTaken => code::REQUEST_REJECTED,
            // CONNECT_ERROR reports an error of the TCP connection, including a reset.
            _ => code::CONNECT_ERROR,
        }
    }

    /// Decodes the peer's code. NO_ERROR means that the peer needs no further bytes (section 4.1).
    fn reset_code(code: VarInt) -> Option<ResetCode> {
        match code {
            code::NO_ERROR => None,
            code::REQUEST_REJECTED => Some(ResetCode::NotTaken),
            code::CONNECT_ERROR | code::REQUEST_CANCELLED => Some(ResetCode::Cancelled),
            code => {
                let code = u16::try_from(code.into_inner()).unwrap_or(u16::MAX);
                Some(ResetCode::Other(code))
            }
        }
    }

    fn payload(&mut self, pieces: Vec<Bytes>, overhead: &Overhead) -> Result<Vec<Bytes>, Broken> {
        let mut payload = Vec::with_capacity(pieces.len());
        let mut copied = Vec::new();
        for mut piece in pieces {
            let whole = piece.len();
            while piece.has_remaining() {
                if self.left == 0 {
                    let taken = self.head.fill(&piece);
                    piece.advance(taken);
                    if let Some(head) = self.head.take() {
                        self.begin(head, overhead)?;
                    }
                    continue;
                }
                let length = usize::try_from(self.left).unwrap_or(usize::MAX);
                let part = piece.split_to(length.min(piece.len()));
                self.left -= part.len() as u64;
                if self.skips {
                    continue;
                }
                if part.len() < COPIED_MAX.min(whole) {
                    copied.extend_from_slice(&part);
                    continue;
                }
                if !copied.is_empty() {
                    payload.push(std::mem::take(&mut copied).into());
                }
                payload.push(part);
            }
        }
        if !copied.is_empty() {
            payload.push(copied.into());
        }
        Ok(payload)
    }

    fn end(&self) -> Result<(), Broken> {
        match self.left > 0 || self.head.has_begun() {
            true => Err(frame::TRUNCATED),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(frames: &[(u64, usize)]) -> (Vec<u8>, Vec<u8>) {
        let (mut wire, mut payload) = (Vec::new(), Vec::new());
        for (number, (kind, length)) in frames.iter().enumerate() {
            let body = vec![number as u8; *length];
            frame::push(&mut wire, *kind, &body);
            if *kind == frame::DATA {
                payload.extend(body);
            }
        }
        (wire, payload)
    }

    #[test]
    fn payload_is_what_frames_of_data_have_however_it_comes() {
        let grease = 0x1f * 3 + 0x21;
        let frames = [
            (0, 5),
            (0, 0),
            (grease, 70),
            (0, 3000),
            (0, 1),
            (grease, 0),
            (0, 2),
        ];
        let (wire, payload) = sent(&frames);
        for step in [1, 2, 3, 7, 1000, wire.len()] {
            let mut data = Data::default();
            let pieces = wire.chunks(step).map(Bytes::copy_from_slice).collect();
            let parts = data.payload(pieces, &Overhead::default()).unwrap();
            assert!(parts.concat() == payload, "{step}");
            assert_eq!(data.end(), Ok(()));
            let mut data = Data::default();
            let mut came = Vec::new();
            for piece in wire.chunks(step).map(Bytes::copy_from_slice) {
                came.extend(
                    data.payload(vec![piece], &Overhead::default())
                        .unwrap()
                        .concat(),
                );
            }
            assert!(came == payload, "{step}");
        }
    }

    #[test]
    fn small_frames_hold_no_more_than_their_payload() {
        let (wire, payload) = sent(&[(0, 1); 400]);
        let parts = Data::default()
            .payload(vec![wire.into()], &Overhead::default())
            .unwrap();
        assert_eq!((parts.len(), parts.concat()), (1, payload));
        let large = Bytes::from(sent(&[(0, 10_000)]).0);
        let parts = Data::default()
            .payload(vec![large.clone()], &Overhead::default())
            .unwrap();
        // The large piece is not copied.
        assert_eq!(parts[0].as_ptr(), large[large.len() - 10_000..].as_ptr());
    }

    #[test]
    fn an_end_within_a_frame_is_none() {
        let (wire, _) = sent(&[(0, 5)]);
        for end in 1..wire.len() {
            let mut data = Data::default();
            let piece = Bytes::copy_from_slice(&wire[..end]);
            data.payload(vec![piece], &Overhead::default()).unwrap();
            assert_eq!(data.end(), Err(frame::TRUNCATED), "{end}");
        }
    }

    #[test]
    fn other_known_frames_have_no_place_in_a_tunnel() {
        for kind in [1, 2, 3, 4, 5, 6, 7, 8, 9, 0xd] {
            let (wire, _) = sent(&[(0, 2), (kind, 0)]);
            let broken = Data::default()
                .payload(vec![wire.into()], &Overhead::default())
                .unwrap_err();
            assert_eq!(broken.code, code::FRAME_UNEXPECTED, "{kind}");
        }
    }
}
