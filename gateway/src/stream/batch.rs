//! Payload read from a local socket, in slots of one packet each.
//!
//! Each slot has room for a header in front of the payload, so that a full buffer is sent in one
//! contiguous write. [`Appetite`] adapts the size of a read to the stream.

use std::io::IoSliceMut;
use std::ops::Range;

use super::buffers::{Buffer, LARGE_BYTES, Permit, SMALL_BYTES, Size};

/// Maximum number of slots that one read fills. With JMUX's default packet size, a large buffer has
/// fewer slots.
pub(crate) const SLOTS_MAX: usize = 64;

/// Maximum number of bytes in a batch, including headers. The value is just below four times 65,160
/// bytes, the size of a group of Ethernet segments that the kernel sends together. A segment on
/// loopback is slightly larger, with 65,483 bytes. So a larger batch could require a fifth group or
/// segment.
pub(crate) const BATCH_BYTES_MAX: usize = 63 * 4096;
const _: () = assert!(BATCH_BYTES_MAX <= 4 * 65_160 && BATCH_BYTES_MAX <= LARGE_BYTES);

/// How a buffer is cut into packets.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout {
    header: usize,
    payload: usize,
}

impl Layout {
    /// `header` and `payload` are the number of header and payload bytes of a full packet.
    /// `payload` is at least 1. `buffer_bytes` is the size of the buffer.
    pub(crate) fn new(header: usize, payload: usize, buffer_bytes: usize) -> Self {
        debug_assert!(payload > 0);
        Self {
            header,
            payload: payload.min(buffer_bytes - header),
        }
    }

    /// The position of payload byte `index` in the buffer.
    fn position(self, index: usize) -> usize {
        index / self.payload * (self.header + self.payload) + self.header + index % self.payload
    }

    /// Number of bytes, including headers, that `length` payload bytes occupy from the buffer's
    /// start.
    pub(crate) fn span(self, length: usize) -> usize {
        length + length.div_ceil(self.payload) * self.header
    }

    /// Puts slices for up to `limit` payload bytes into `slots`, packet by packet. Returns the
    /// number of slots and of bytes.
    pub(crate) fn fill<'a>(
        self,
        bytes: &'a mut [u8],
        limit: usize,
        slots: &mut [IoSliceMut<'a>; SLOTS_MAX],
    ) -> (usize, usize) {
        let (mut count, mut total) = (0, 0);
        for (packet, slot) in bytes.chunks_mut(self.header + self.payload).zip(slots) {
            let Some((_, payload)) = packet.split_at_mut_checked(self.header) else {
                break;
            };
            let length = payload.len().min(limit - total);
            if length == 0 {
                break;
            }
            *slot = IoSliceMut::new(&mut payload[..length]);
            count += 1;
            total += length;
        }
        (count, total)
    }
}

/// Payload in a buffer. The headers of its packets are written later.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) buffer: Buffer,
    pub(crate) layout: Layout,
}

impl Batch {
    /// One packet, without room for its header.
    pub(crate) fn of_packet(payload: Vec<u8>) -> Self {
        let buffer = Buffer::from(payload);
        let layout = Layout::new(0, buffer.len(), buffer.len());
        Self { buffer, layout }
    }

    /// Writes a header in front of payload byte `start`, which is the first byte of a packet.
    pub(crate) fn put_header(&mut self, start: usize, header: &[u8]) {
        debug_assert_eq!(start % self.layout.payload, 0);
        debug_assert_eq!(header.len(), self.layout.header);
        let position = self.layout.position(start);
        self.buffer[position - header.len()..position].copy_from_slice(header);
    }

    /// The bytes in `range` of the buffer: headers and payload, as the carrier sends them.
    pub(crate) fn bytes(&self, range: Range<usize>) -> &[u8] {
        &self.buffer[range]
    }

    /// The range of the buffer that has the payload bytes `range`. These bytes must belong to one
    /// packet.
    pub(crate) fn place(&self, range: &Range<usize>) -> Range<usize> {
        let start = self.layout.position(range.start);
        let end = start + range.len();
        debug_assert!(range.is_empty() || self.layout.position(range.end - 1) + 1 == end);
        start..end
    }

    /// The first `length` payload bytes, without headers.
    pub(crate) fn payload(&self, length: usize) -> impl Iterator<Item = &[u8]> {
        let starts = (0..length).step_by(self.layout.payload);
        starts.map(move |start| {
            let end = length.min(start + self.layout.payload);
            &self.buffer[self.place(&(start..end))]
        })
    }

    /// Takes the permit of the buffer out of the batch. The permit belongs to the session's share.
    pub(crate) fn take_permit(&mut self) -> Option<Permit> {
        self.buffer.take_permit()
    }
}

/// The size of a stream's next read. The size starts small, grows while reads fill their room, and
/// shrinks when reads leave most of the room empty.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Appetite {
    bytes: usize,
}

impl Default for Appetite {
    fn default() -> Self {
        Self { bytes: SMALL_BYTES }
    }
}

impl Appetite {
    /// The buffer to read into.
    pub(crate) fn size(self) -> Size {
        if self.bytes <= SMALL_BYTES {
            Size::Small
        } else {
            Size::Large
        }
    }

    /// The size in bytes.
    pub(crate) fn bytes(self) -> usize {
        self.bytes
    }

    /// Adapts to a read of `length` bytes into `room` bytes.
    pub(crate) fn learn(&mut self, length: usize, room: usize) {
        if length == room {
            self.bytes = (self.bytes * 2).min(BATCH_BYTES_MAX);
        } else if length < room / 4 {
            self.bytes = (self.bytes / 2).max(SMALL_BYTES);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::super::buffers::Pool;
    use super::*;

    #[test]
    fn a_batch_read_into_slots_is_contiguous_frames() {
        let pool = Rc::new(Pool::default());
        let mut buffer = pool.take(Size::Small);
        let layout = Layout::new(2, 3, SMALL_BYTES);
        let input = b"abcdefgh";
        let mut slots = std::array::from_fn(|_| IoSliceMut::new(&mut []));
        let (count, room) = layout.fill(&mut buffer, input.len(), &mut slots);
        assert_eq!((count, room), (3, input.len()));
        let mut at = 0;
        for slot in &mut slots[..count] {
            let length = slot.len();
            slot.copy_from_slice(&input[at..at + length]);
            at += length;
        }
        let mut batch = Batch { buffer, layout };
        for start in [0, 3, 6] {
            batch.put_header(start, b"--");
        }
        let span = layout.span(input.len());
        assert_eq!(batch.bytes(0..span), b"--abc--def--gh");
        assert_eq!(
            batch.payload(7).collect::<Vec<_>>(),
            [&b"abc"[..], b"def", b"g"]
        );
        let kept = Batch {
            buffer: batch.buffer.fitted(span, 1),
            ..batch
        };
        assert_eq!(kept.bytes(kept.place(&(4..6))), b"ef");
        assert_eq!(kept.bytes(kept.place(&(7..8))), b"h");
    }

    #[test]
    fn a_buffer_is_one_frame_where_frames_may_be_as_long() {
        let pool = Rc::new(Pool::default());
        let mut buffer = pool.take(Size::Large);
        let layout = Layout::new(16, 1 << 20, LARGE_BYTES);
        let mut slots = std::array::from_fn(|_| IoSliceMut::new(&mut []));
        let filled = layout.fill(&mut buffer, usize::MAX, &mut slots);
        assert_eq!(filled, (1, LARGE_BYTES - 16));
    }

    #[test]
    fn a_stream_reads_more_while_it_fills_its_reads_and_less_when_it_does_not() {
        let mut appetite = Appetite::default();
        assert_eq!(appetite.size(), Size::Small);
        for _ in 0..10 {
            appetite.learn(100, 100);
        }
        assert_eq!(appetite.bytes(), BATCH_BYTES_MAX);
        assert_eq!(appetite.size(), Size::Large);
        appetite.learn(50, 100);
        assert_eq!(appetite.bytes(), BATCH_BYTES_MAX);
        for _ in 0..10 {
            appetite.learn(1, 100);
        }
        assert_eq!(appetite.bytes(), SMALL_BYTES);
    }
}
