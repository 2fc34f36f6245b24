//! The frames that were transmitted on one carrier and are not acknowledged. The session sends
//! these frames again if the carrier is lost.
//!
//! Positions count the carrier's bytes after the hello. The driver holds the payload. The log has
//! only the payload's position. The session's `retain` bounds the payload. Control frames may take
//! [`CONTROL_BYTES_MAX`] and one more frame ([`SendLog::is_full`]).

use std::collections::VecDeque;

use super::codec::HEADER_BYTES;
use crate::session::{StreamId, Token};

/// While this many bytes of control frames are unacknowledged, no control frame is transmitted.
const CONTROL_BYTES_MAX: usize = 1 << 20;

/// The payload of one frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) stream: StreamId,
    /// Offset of the payload's first byte in the stream.
    pub(super) offset: u64,
    /// Length in bytes, at least 1.
    pub(super) length: u32,
    /// Memory of the batch in bytes. The whole batch is retained until its last byte is
    /// acknowledged.
    pub(super) held: u64,
    pub(super) token: Token,
    /// Offset of the payload's first byte in the batch.
    pub(super) start: usize,
}

/// A frame to send again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Again {
    Control(Vec<u8>),
    Payload(Sent),
}

#[derive(Debug)]
enum Entry {
    Control(Vec<u8>),
    Payload(Sent),
    /// The number of bytes of consecutive frames that apply only to their own carrier.
    Passing(u64),
}

impl Entry {
    fn bytes(&self) -> u64 {
        match self {
            Self::Control(bytes) => bytes.len() as u64,
            Self::Payload(sent) => HEADER_BYTES as u64 + u64::from(sent.length),
            Self::Passing(bytes) => *bytes,
        }
    }
}

/// The peer acknowledged bytes that were never sent, or fewer bytes than before.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Impossible;

#[derive(Debug, Default)]
pub(super) struct SendLog {
    entries: VecDeque<Entry>,
    /// Position of the first entry.
    start: u64,
    sent: u64,
    acknowledged: u64,
    control_bytes: usize,
}

impl SendLog {
    pub(super) fn sent(&self) -> u64 {
        self.sent
    }

    /// Whether there is no room for control frames.
    pub(super) fn is_full(&self) -> bool {
        self.control_bytes >= CONTROL_BYTES_MAX
    }

    /// Whether everything that could be sent again has been acknowledged.
    pub(super) fn is_settled(&self) -> bool {
        let passing = |entry: &Entry| matches!(entry, Entry::Passing(_));
        self.entries.iter().all(passing)
    }

    pub(super) fn push(&mut self, again: Again) {
        let entry = match again {
            Again::Control(bytes) => {
                self.control_bytes += bytes.len();
                Entry::Control(bytes)
            }
            Again::Payload(sent) => Entry::Payload(sent),
        };
        self.sent += entry.bytes();
        self.entries.push_back(entry);
    }

    /// Records a frame of `length` bytes that is never sent again.
    pub(super) fn push_passing(&mut self, length: usize) {
        self.sent += length as u64;
        match self.entries.back_mut() {
            Some(Entry::Passing(bytes)) => *bytes += length as u64,
            _ => self.entries.push_back(Entry::Passing(length as u64)),
        }
    }

    /// Records that the peer has received `received` bytes. Passes each fully acknowledged payload
    /// to `release`.
    pub(super) fn acknowledge(
        &mut self,
        received: u64,
        mut release: impl FnMut(&Sent),
    ) -> Result<(), Impossible> {
        if received > self.sent || received < self.acknowledged {
            return Err(Impossible);
        }
        self.acknowledged = received;
        while let Some(entry) = self.entries.front() {
            let end = self.start + entry.bytes();
            if end > received {
                break;
            }
            match entry {
                Entry::Control(bytes) => self.control_bytes -= bytes.len(),
                Entry::Payload(sent) => release(sent),
                Entry::Passing(_) => {}
            }
            self.start = end;
            self.entries.pop_front();
        }
        Ok(())
    }

    /// Ends the log of a lost carrier, on which the peer has received `received` bytes: whole
    /// frames, and possibly a part of one payload. Returns the frames to send again, in order.
    pub(super) fn end(
        mut self,
        received: u64,
        release: impl FnMut(&Sent),
    ) -> Result<VecDeque<Again>, Impossible> {
        self.acknowledge(received, release)?;
        let mut begun = received - self.start;
        let mut again = VecDeque::with_capacity(self.entries.len());
        for entry in self.entries {
            let before = std::mem::take(&mut begun);
            match entry {
                // Frames that apply only to their own carrier are not sent again, even if the peer
                // received only a part of them.
                Entry::Passing(_) => {}
                Entry::Control(bytes) if before == 0 => again.push_back(Again::Control(bytes)),
                Entry::Payload(sent) if before == 0 => again.push_back(Again::Payload(sent)),
                Entry::Payload(sent) => {
                    let taken = before.checked_sub(HEADER_BYTES as u64).ok_or(Impossible)?;
                    again.push_back(Again::Payload(Sent {
                        offset: sent.offset + taken,
                        // `sent.length` is below 2^32, and `taken` is smaller.
                        length: sent.length - taken as u32,
                        start: sent.start + taken as usize,
                        ..sent
                    }));
                }
                Entry::Control(_) => return Err(Impossible),
            }
        }
        Ok(again)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(offset: u64, length: u32) -> Sent {
        Sent {
            stream: StreamId(2),
            offset,
            length,
            held: 100,
            token: Token(offset),
            start: 0,
        }
    }

    /// A log with, in this order: a control frame of 20 bytes, a payload of 100 bytes in a frame of
    /// 116 bytes, two passing frames of 30 bytes together, a payload of 50 bytes in a frame of 66
    /// bytes.
    fn log() -> SendLog {
        let mut log = SendLog::default();
        log.push(Again::Control(vec![7; 20]));
        log.push(Again::Payload(payload(0, 100)));
        log.push_passing(14);
        log.push_passing(16);
        log.push(Again::Payload(payload(100, 50)));
        log
    }

    fn end(received: u64) -> Result<(Vec<Again>, Vec<u64>), Impossible> {
        let mut released = Vec::new();
        let again = log().end(received, |sent| released.push(sent.token.0))?;
        Ok((again.into(), released))
    }

    #[test]
    fn what_is_not_acknowledged_goes_again_in_order() {
        let all = vec![
            Again::Control(vec![7; 20]),
            Again::Payload(payload(0, 100)),
            Again::Payload(payload(100, 50)),
        ];
        assert_eq!(end(0).unwrap(), (all.clone(), vec![]));
        assert_eq!(end(20).unwrap(), (all[1..].to_vec(), vec![]));
        assert_eq!(end(136).unwrap(), (all[2..].to_vec(), vec![0]));
        assert_eq!(end(150).unwrap(), (all[2..].to_vec(), vec![0]));
        assert_eq!(end(232).unwrap(), (vec![], vec![0, 100]));
    }

    #[test]
    fn half_a_frame_goes_on_where_it_stopped() {
        let (again, released) = end(20 + 16 + 30).unwrap();
        let rest = Sent {
            start: 30,
            token: Token(0),
            ..payload(30, 70)
        };
        assert_eq!(again[0], Again::Payload(rest));
        assert_eq!((again.len(), released.len()), (2, 0));
        // The peer received the whole header, but no byte of the payload.
        assert_eq!(end(36).unwrap().0[0], Again::Payload(payload(0, 100)));
    }

    #[test]
    fn nobody_receives_half_a_control_frame_or_half_a_header() {
        for received in [1, 19, 21, 35, 166 + 1, 166 + 15] {
            assert_eq!(end(received), Err(Impossible), "{received}");
        }
    }

    #[test]
    fn nobody_receives_more_than_was_sent_or_less_than_before() {
        let mut log = log();
        assert_eq!(log.acknowledge(log.sent() + 1, |_| {}), Err(Impossible));
        let mut released = 0;
        log.acknowledge(136, |_| released += 1).unwrap();
        assert_eq!(log.acknowledge(135, |_| {}), Err(Impossible));
        assert_eq!(released, 1);
        assert!(!log.is_settled());
        log.acknowledge(log.sent(), |_| {}).unwrap();
        assert!(log.is_settled());
    }

    #[test]
    fn control_frames_have_a_bound() {
        let mut log = SendLog::default();
        while !log.is_full() {
            log.push(Again::Control(vec![0; 1000]));
        }
        assert!(log.sent() < CONTROL_BYTES_MAX as u64 + 1000);
        log.acknowledge(1000, |_| {}).unwrap();
        assert!(!log.is_full());
    }
}
