//! Payload that a local socket has not taken yet.
//!
//! Filled only when the socket's own buffer is full. Bounded by the stream's credit; chunks of one
//! size, so that what is allocated exceeds what is useful by at most one chunk.

use std::collections::VecDeque;
use std::io::IoSlice;

/// Bytes of one chunk: the least window, so that a stream never holds more than its window + one.
const CHUNK_BYTES: usize = muxtunnel_proto::jmux::WINDOW_BYTES_MIN as usize;
/// Slices of one write.
const SLICES_MAX: usize = 16;

/// A byte queue.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    chunks: VecDeque<Vec<u8>>,
    /// Bytes of the first chunk that are gone.
    taken: usize,
}

impl Inbox {
    pub(crate) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    pub(crate) fn push(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match self
                .chunks
                .back_mut()
                .filter(|chunk| chunk.len() < CHUNK_BYTES)
            {
                Some(chunk) => {
                    let room = (CHUNK_BYTES - chunk.len()).min(bytes.len());
                    chunk.extend_from_slice(&bytes[..room]);
                    bytes = &bytes[room..];
                }
                None => self.chunks.push_back(Vec::with_capacity(CHUNK_BYTES)),
            }
        }
    }

    /// The oldest bytes, as many as one write takes and at most `limit`.
    pub(crate) fn slices(&self, limit: usize) -> Vec<IoSlice<'_>> {
        let (mut skip, mut left) = (self.taken, limit);
        let slices = self.chunks.iter().take(SLICES_MAX).map(|chunk| {
            let length = (chunk.len() - skip).min(left);
            let slice = IoSlice::new(&chunk[skip..skip + length]);
            left -= length;
            skip = 0;
            slice
        });
        slices.collect()
    }

    /// Forgets the oldest `length` bytes.
    pub(crate) fn consume(&mut self, length: usize) {
        self.taken += length;
        while let Some(first) = self.chunks.front().map(Vec::len) {
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
            let mut inbox = Inbox::default();
            let mut model = VecDeque::new();
            let mut next = 0u8;
            for (push, take) in steps {
                let bytes: Vec<u8> = std::iter::repeat_with(|| { next = next.wrapping_add(1); next }).take(push).collect();
                inbox.push(&bytes);
                model.extend(&bytes);
                let out: Vec<u8> = inbox.slices(take).iter().flat_map(|slice| slice.to_vec()).collect();
                let expected: Vec<u8> = model.drain(..out.len()).collect();
                prop_assert_eq!(&out, &expected);
                inbox.consume(out.len());
                prop_assert_eq!(inbox.is_empty(), model.is_empty());
            }
        }
    }
}
