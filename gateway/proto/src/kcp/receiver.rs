//! The receiving half: ordered payload, early payload, and acknowledgements to send.

use std::collections::VecDeque;

use super::segment::{PAYLOAD_BYTES_MAX, expand};

/// Maximum number of queued acknowledgements. Further segments get no acknowledgement of their own.
/// The peer sends them again, or the next cumulative serial acknowledges them.
const ACKS_MAX: usize = 8192;

/// The receiving half of a connection.
#[derive(Debug)]
pub(super) struct Receiver {
    /// The serial of the next segment in order.
    next: u64,
    /// Size of the buffer in bytes: the maximum of ordered and early payload together.
    limit: usize,
    /// Ordered payload that has not been read.
    ready: VecDeque<u8>,
    /// Payload of the segments from `next` on that arrived early.
    early: VecDeque<Option<Box<[u8]>>>,
    /// The direction has ended after `ready`.
    ended: bool,
    /// Serials and times of the acknowledgements to send, in order of arrival.
    acks: VecDeque<(u32, u32)>,
    /// The window that was last sent to the peer.
    told: u16,
    /// Whether the window must be sent, even without another segment.
    tell: bool,
}

impl Receiver {
    pub(super) fn new(first: u64, limit: usize) -> Self {
        Self {
            next: first,
            limit,
            ready: VecDeque::new(),
            early: VecDeque::new(),
            ended: false,
            acks: VecDeque::new(),
            told: 0,
            tell: false,
        }
    }

    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Number of segments of the largest size that fit into the buffer. Smaller segments leave more
    /// room, so the sum of this number and [`Self::next`] never decreases.
    fn room(&self) -> u64 {
        let free = self.limit.saturating_sub(self.ready.len());
        (free / PAYLOAD_BYTES_MAX) as u64
    }

    /// The number of segments that fit into the buffer, at most 65,535, for the window field on the
    /// wire.
    pub(super) fn window(&self) -> u16 {
        u16::try_from(self.room()).unwrap_or(u16::MAX)
    }

    /// Records that `window` has been sent to the peer.
    pub(super) fn told(&mut self, window: u16) {
        self.told = window;
        self.tell = false;
    }

    /// Handles a payload segment. Returns whether the segment was new and fitted into the buffer.
    pub(super) fn push(&mut self, serial: u32, time: u32, payload: &[u8]) -> bool {
        let Some(at) = expand(self.next, serial) else {
            return false;
        };
        let ahead = at.checked_sub(self.next);
        if ahead.is_some_and(|ahead| ahead >= self.room()) {
            return false;
        }
        if self.acks.len() < ACKS_MAX {
            self.acks.push_back((serial, time));
        }
        match ahead {
            None => false,
            Some(0) => {
                self.take(payload);
                self.early.pop_front();
                while let Some(slot) = self.early.front_mut() {
                    let Some(payload) = slot.take() else { break };
                    self.early.pop_front();
                    self.take(&payload);
                }
                true
            }
            Some(ahead) => {
                // `ahead` is below the room, so below 2^32.
                let ahead = ahead as usize;
                if self.early.len() <= ahead {
                    self.early.resize_with(ahead + 1, || None);
                }
                match self.early.get_mut(ahead) {
                    Some(slot @ None) => {
                        *slot = Some(payload.into());
                        true
                    }
                    _ => false,
                }
            }
        }
    }

    /// Accepts the next segment in order.
    fn take(&mut self, payload: &[u8]) {
        self.next += 1;
        if payload.is_empty() {
            self.ended = true;
        }
        if !self.ended {
            self.ready.extend(payload);
        }
    }

    /// Reads ordered payload. `None`: no payload has arrived. 0: the direction has ended.
    pub(super) fn read(&mut self, bytes: &mut [u8]) -> Option<usize> {
        if self.ready.is_empty() {
            return self.ended.then_some(0);
        }
        let length = bytes.len().min(self.ready.len());
        let (first, second) = self.ready.as_slices();
        let of_first = length.min(first.len());
        let (begin, end) = bytes[..length].split_at_mut(of_first);
        begin.copy_from_slice(&first[..of_first]);
        end.copy_from_slice(&second[..length - of_first]);
        self.ready.drain(..length);
        // The window that was last sent to the peer is small, so the larger window must be sent.
        if self.room() > 2 * u64::from(self.told)
            && self.room() * 2 >= (self.limit / PAYLOAD_BYTES_MAX) as u64
        {
            self.tell = true;
        }
        Some(length)
    }

    pub(super) fn is_readable(&self) -> bool {
        self.ended || !self.ready.is_empty()
    }

    /// Raises the size of the buffer to `bytes`. A lower value has no effect.
    pub(super) fn receive_up_to(&mut self, bytes: usize) {
        if bytes > self.limit {
            self.limit = bytes;
            self.tell = true;
        }
    }

    /// Handles the peer's request for the window.
    pub(super) fn asked(&mut self) {
        self.tell = true;
    }

    /// Queues an acknowledgement. If it answers a challenge, the sender of the challenge uses only
    /// `time`.
    pub(super) fn acknowledge(&mut self, serial: u32, time: u32) {
        if self.acks.len() < ACKS_MAX {
            self.acks.push_back((serial, time));
        }
    }

    pub(super) fn next_ack(&mut self) -> Option<(u32, u32)> {
        self.acks.pop_front()
    }

    /// Whether the window must be sent without another segment.
    pub(super) fn is_to_tell(&self) -> bool {
        self.tell
    }

    /// Number of held bytes.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        let early = self.early.iter().flatten().map(|payload| payload.len());
        self.ready.len() + early.sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(receiver: &mut Receiver) -> Vec<u8> {
        let mut all = vec![0; 1 << 16];
        let length = receiver.read(&mut all).unwrap_or(0);
        all.truncate(length);
        all
    }

    #[test]
    fn segments_are_put_in_order_across_the_end_of_their_numbers() {
        let mut receiver = Receiver::new((1 << 32) - 2, 100 * PAYLOAD_BYTES_MAX);
        assert!(receiver.push(1, 0, b"four"));
        assert!(receiver.push(u32::MAX, 0, b"two "));
        assert!(!receiver.push(u32::MAX, 0, b"two "), "a duplicate");
        assert_eq!(read(&mut receiver), b"");
        assert!(receiver.push(u32::MAX - 1, 0, b"one "));
        assert_eq!(read(&mut receiver), b"one two ");
        assert!(receiver.push(0, 0, b"three "));
        assert!(!receiver.push(0, 0, b"three "), "read before");
        assert_eq!(read(&mut receiver), b"three four");
        assert_eq!(receiver.next(), (1 << 32) + 2);
        assert!(receiver.push(2, 0, b""));
        assert!(receiver.push(3, 0, b"behind the end"));
        assert_eq!(receiver.read(&mut [0; 8]), Some(0));
        let acks = std::iter::from_fn(|| receiver.next_ack()).count();
        assert_eq!(acks, 8, "duplicates are acknowledged again");
    }

    #[test]
    fn what_is_held_is_bounded_and_the_window_says_so() {
        let limit = 10 * PAYLOAD_BYTES_MAX;
        let mut receiver = Receiver::new(0, limit);
        let full = [7; PAYLOAD_BYTES_MAX];
        let mut edge = 0;
        for serial in [
            9,
            10,
            3,
            0,
            1,
            2,
            4,
            5,
            6,
            7,
            8,
            9,
            10,
            11,
            1 << 31,
            1 << 30,
        ] {
            receiver.push(serial, 0, &full);
            assert!(receiver.held() <= limit);
            let now = receiver.next() + u64::from(receiver.window());
            assert!(now >= edge, "the window's end decreased");
            edge = now;
        }
        assert_eq!((receiver.next(), receiver.window()), (10, 0));
        receiver.told(0);
        assert!(!receiver.is_to_tell());
        let mut bytes = vec![0; 6 * PAYLOAD_BYTES_MAX];
        assert_eq!(receiver.read(&mut bytes), Some(bytes.len()));
        assert!(receiver.is_to_tell(), "the last window sent was 0");
        assert_eq!(receiver.window(), 6);
        receiver.told(6);
        assert!(!receiver.is_to_tell());
    }
}
