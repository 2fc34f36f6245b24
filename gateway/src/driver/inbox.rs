//! Payload that a local socket has not taken yet.
//!
//! Filled only when the socket's own buffer is full. Bounded by the stream's credit. In the worker's
//! buffers: small ones first, large ones once as much is held, so that what is held exceeds what is
//! useful by at most a small buffer, or twice.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::rc::Rc;

use super::buffers::{Buffer, LARGE_BYTES, Pool, SMALL_BYTES, Size};

/// Slices of one write.
pub(super) const SLICES_MAX: usize = 16;

/// Chunks of the one kind before one of the other: what a chunk wastes is less than what is held.
const LARGE_FROM: usize = LARGE_BYTES / SMALL_BYTES;

/// A byte queue.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    chunks: VecDeque<Chunk>,
    /// Bytes of the first chunk that are gone.
    taken: usize,
}

#[derive(Debug)]
struct Chunk {
    buffer: Buffer,
    length: usize,
}

impl Inbox {
    pub(crate) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    pub(super) fn push(&mut self, pool: &Rc<Pool>, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match self.chunks.back_mut() {
                Some(Chunk { buffer, length }) if *length < buffer.len() => {
                    let room = (buffer.len() - *length).min(bytes.len());
                    buffer[*length..*length + room].copy_from_slice(&bytes[..room]);
                    *length += room;
                    bytes = &bytes[room..];
                }
                _ => {
                    let large = self.chunks.len() >= LARGE_FROM;
                    self.chunks.push_back(Chunk {
                        buffer: pool.take(if large { Size::Large } else { Size::Small }),
                        length: 0,
                    });
                }
            }
        }
    }

    /// Puts the oldest bytes, as many as one write takes and at most `limit`, into `slices`; returns how
    /// many slices and bytes these are.
    pub(super) fn slices<'a>(
        &'a self,
        limit: usize,
        slices: &mut [IoSlice<'a>; SLICES_MAX],
    ) -> (usize, usize) {
        let (mut count, mut total, mut skip) = (0, 0, self.taken);
        for (chunk, slice) in self.chunks.iter().zip(slices) {
            let length = (chunk.length - skip).min(limit - total);
            if length == 0 {
                break;
            }
            *slice = IoSlice::new(&chunk.buffer[skip..skip + length]);
            count += 1;
            total += length;
            skip = 0;
        }
        (count, total)
    }

    /// Forgets the oldest `length` bytes.
    pub(crate) fn consume(&mut self, length: usize) {
        self.taken += length;
        while let Some(first) = self.chunks.front().map(|chunk| chunk.length) {
            if self.taken < first {
                break;
            }
            self.taken -= first;
            self.chunks.pop_front();
        }
        debug_assert!(!self.chunks.is_empty() || self.taken == 0);
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn bytes_come_out_in_the_order_they_went_in(
            steps in proptest::collection::vec((0usize..40_000, 0usize..60_000), 1..20)
        ) {
            let pool = Rc::new(Pool::default());
            let mut inbox = Inbox::default();
            let mut model = VecDeque::new();
            let mut next = 0u8;
            for (push, take) in steps {
                let bytes: Vec<u8> = std::iter::repeat_with(|| { next = next.wrapping_add(1); next }).take(push).collect();
                inbox.push(&pool, &bytes);
                model.extend(&bytes);
                let mut slices = [IoSlice::new(&[]); SLICES_MAX];
                let (count, _) = inbox.slices(take, &mut slices);
                let out: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.to_vec()).collect();
                let expected: Vec<u8> = model.drain(..out.len()).collect();
                prop_assert_eq!(&out, &expected);
                inbox.consume(out.len());
                prop_assert_eq!(inbox.is_empty(), model.is_empty());
            }
        }
    }
}
