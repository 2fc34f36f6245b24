//! Buffers for payload on its way from local sockets to the carrier.
//!
//! A batch is read into slots of one packet each, with room for the header in front, so that a full
//! buffer leaves in one contiguous write. The pool bounds what all streams of a carrier hold.

use std::cell::RefCell;
use std::io::IoSliceMut;
use std::rc::Rc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes of one buffer: prototype runs with 64, 128 and 256 KiB had 128 KiB ahead
/// (docs/performance.md).
pub(crate) const BUFFER_BYTES: usize = 128 << 10;
/// Buffers of one carrier: 2 MiB in all.
pub(crate) const BUFFERS: usize = 16;
/// Slots filled by one read; the kernel takes up to 1,024.
const SLOTS_MAX: usize = 256;

/// [`BUFFERS`] buffers, handed out first come first served.
#[derive(Debug)]
pub(crate) struct BufferPool {
    available: std::sync::Arc<Semaphore>,
    idle: Rc<RefCell<Vec<Box<[u8]>>>>,
}

impl BufferPool {
    pub(crate) fn new() -> Self {
        Self {
            available: std::sync::Arc::new(Semaphore::new(BUFFERS)),
            idle: Rc::default(),
        }
    }

    /// Waits for a buffer; `None` once the pool is closed.
    pub(crate) async fn acquire(&self) -> Option<Buffer> {
        let permit = self.available.clone().acquire_owned().await.ok()?;
        let bytes = self.idle.borrow_mut().pop();
        Some(Buffer {
            bytes: bytes.unwrap_or_else(|| vec![0; BUFFER_BYTES].into_boxed_slice()),
            idle: Rc::clone(&self.idle),
            _permit: permit,
        })
    }

    /// No buffer is handed out any more.
    pub(crate) fn close(&self) {
        self.available.close();
    }
}

/// One buffer; goes back when dropped.
#[derive(Debug)]
pub(crate) struct Buffer {
    bytes: Box<[u8]>,
    idle: Rc<RefCell<Vec<Box<[u8]>>>>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.idle.borrow_mut().push(std::mem::take(&mut self.bytes));
    }
}

/// How a buffer is cut into packets.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout {
    header: usize,
    payload: usize,
}

impl Layout {
    /// `header` and `payload` bytes of a full packet; `payload` at least 1 and at most a buffer.
    pub(crate) fn new(header: usize, payload: usize) -> Self {
        debug_assert!(payload > 0 && header + payload <= BUFFER_BYTES);
        Self { header, payload }
    }

    /// Where payload byte `index` lies.
    fn position(self, index: usize) -> usize {
        index / self.payload * (self.header + self.payload) + self.header + index % self.payload
    }

    /// Bytes, headers included, that `length` payload bytes take from the buffer's start.
    pub(crate) fn span(self, length: usize) -> usize {
        length + length.div_ceil(self.payload) * self.header
    }

    /// Slices for up to `limit` payload bytes, packet after packet.
    pub(crate) fn slots<'a>(self, buffer: &'a mut Buffer, limit: usize) -> Vec<IoSliceMut<'a>> {
        let mut left = limit;
        let mut slots = Vec::with_capacity(
            BUFFER_BYTES
                .div_ceil(self.header + self.payload)
                .min(SLOTS_MAX),
        );
        for packet in buffer
            .bytes
            .chunks_mut(self.header + self.payload)
            .take(SLOTS_MAX)
        {
            let Some((_, payload)) = packet.split_at_mut_checked(self.header) else {
                break;
            };
            let length = payload.len().min(left);
            if length == 0 {
                break;
            }
            left -= length;
            slots.push(IoSliceMut::new(&mut payload[..length]));
        }
        slots
    }
}

/// Payload in a buffer, waiting for its headers.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) buffer: Buffer,
    pub(crate) layout: Layout,
}

impl Batch {
    /// Puts the header of the packet that begins at payload byte `start` before it.
    pub(crate) fn put_header(&mut self, start: usize, header: &[u8]) {
        debug_assert_eq!(start % self.layout.payload, 0);
        debug_assert_eq!(header.len(), self.layout.header);
        let position = self.layout.position(start);
        self.buffer.bytes[position - header.len()..position].copy_from_slice(header);
    }

    /// The first `span` bytes, ready for the carrier.
    pub(crate) fn frames(&self, span: usize) -> &[u8] {
        &self.buffer.bytes[..span]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_batch_read_into_slots_is_contiguous_frames() {
        let pool = BufferPool::new();
        let mut buffer = pool.acquire().await.unwrap();
        let layout = Layout::new(2, 3);
        let input = b"abcdefgh";
        let mut at = 0;
        for slot in &mut layout.slots(&mut buffer, input.len()) {
            let length = slot.len();
            slot.copy_from_slice(&input[at..at + length]);
            at += length;
        }
        let mut batch = Batch { buffer, layout };
        for start in [0, 3, 6] {
            batch.put_header(start, b"--");
        }
        assert_eq!(batch.frames(layout.span(input.len())), b"--abc--def--gh");
    }

    #[tokio::test]
    async fn the_pool_hands_out_its_number_of_buffers_and_takes_them_back() {
        let pool = BufferPool::new();
        let mut held = Vec::new();
        for _ in 0..BUFFERS {
            held.push(pool.acquire().await.unwrap());
        }
        assert_eq!(pool.available.available_permits(), 0);
        held.pop();
        assert!(pool.acquire().await.is_some());
        pool.close();
        assert!(pool.acquire().await.is_none());
    }
}
