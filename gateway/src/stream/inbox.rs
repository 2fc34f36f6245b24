//! Payload that a local socket has not taken yet.
//!
//! The inbox is filled while the socket's own buffer is full, while the stream's open is
//! unanswered, or if the stream's forward has a rate limit. The stream's credit bounds the inbox.
//! Spliced payload stays in a few pipes. Other payload is in the worker's buffers: first in small
//! buffers, then in large buffers once the inbox holds as much as a large buffer. So the allocated
//! bytes exceed the held bytes by at most one small buffer, or are at most twice the held bytes.

use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice};
use std::rc::Rc;

use super::buffers::{Buffer, LARGE_BYTES, Pool, SMALL_BYTES, Size};
use super::pipe::Pipe;
use crate::io::local_end::LocalEnd;

/// Maximum number of slices in one write.
pub(crate) const SLICES_MAX: usize = 16;

/// Number of small chunks before the first large chunk, so that the unused part of a chunk is
/// smaller than the held bytes.
const LARGE_FROM: usize = LARGE_BYTES / SMALL_BYTES;

#[derive(Debug, Default)]
pub(crate) struct Inbox {
    chunks: VecDeque<Chunk>,
    /// Number of bytes of the first chunk that have been written.
    taken: usize,
}

#[derive(Debug)]
enum Chunk {
    Memory { buffer: Buffer, length: usize },
    Pipe(Pipe),
}

impl Chunk {
    /// The chunk's bytes; `None`: the bytes are in a pipe.
    fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Memory { buffer, length } => Some(&buffer[..*length]),
            Self::Pipe(_) => None,
        }
    }
}

impl Inbox {
    pub(crate) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// The number of pipes in the queue.
    pub(crate) fn pipes(&self) -> usize {
        let pipes = self.chunks.iter().filter(|chunk| chunk.bytes().is_none());
        pipes.count()
    }

    /// The pipe at the end of the queue, if the last bytes are in a pipe.
    pub(crate) fn last_pipe(&mut self) -> Option<&mut Pipe> {
        match self.chunks.back_mut() {
            Some(Chunk::Pipe(pipe)) => Some(pipe),
            Some(Chunk::Memory { .. }) | None => None,
        }
    }

    /// Appends the content of `pipe`.
    pub(crate) fn push_pipe(&mut self, pipe: Pipe) {
        self.chunks.push_back(Chunk::Pipe(pipe));
    }

    pub(crate) fn push(&mut self, pool: &Rc<Pool>, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match self.chunks.back_mut() {
                Some(Chunk::Memory { buffer, length }) if *length < buffer.len() => {
                    let room = (buffer.len() - *length).min(bytes.len());
                    buffer[*length..*length + room].copy_from_slice(&bytes[..room]);
                    *length += room;
                    bytes = &bytes[room..];
                }
                _ => {
                    let large = self.chunks.len() >= LARGE_FROM;
                    self.chunks.push_back(Chunk::Memory {
                        buffer: pool.take(if large { Size::Large } else { Size::Small }),
                        length: 0,
                    });
                }
            }
        }
    }

    /// Writes the oldest bytes: as many as one call takes, but at most `limit`. Returns their
    /// number.
    ///
    /// # Errors
    /// The error of writev(2) or splice(2).
    pub(crate) fn write(&mut self, to: &dyn LocalEnd, limit: usize) -> std::io::Result<usize> {
        if let Some(Chunk::Pipe(pipe)) = self.chunks.front_mut() {
            let plain = to.plain().ok_or(ErrorKind::Unsupported)?;
            let length = pipe.drain(plain, limit)?;
            if pipe.held() == 0 {
                self.chunks.pop_front();
            }
            return Ok(length);
        }
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let count = self.slices(limit, &mut slices);
        let length = to.try_write(&slices[..count])?;
        self.consume(length);
        Ok(length)
    }

    /// Puts the oldest bytes, up to a pipe, into `slices`: as many as one write takes, but at most
    /// `limit`. Returns the number of slices.
    pub(crate) fn slices<'a>(
        &'a self,
        limit: usize,
        slices: &mut [IoSlice<'a>; SLICES_MAX],
    ) -> usize {
        let (mut count, mut total, mut skip) = (0, 0, self.taken);
        for (bytes, slice) in self.chunks.iter().map_while(Chunk::bytes).zip(slices) {
            let length = (bytes.len() - skip).min(limit - total);
            if length == 0 {
                break;
            }
            *slice = IoSlice::new(&bytes[skip..skip + length]);
            count += 1;
            total += length;
            skip = 0;
        }
        count
    }

    /// Drops the oldest `length` bytes, which are in memory and not in a pipe.
    pub(crate) fn consume(&mut self, length: usize) {
        self.taken += length;
        while let Some(first) = self.chunks.front().and_then(Chunk::bytes).map(<[u8]>::len) {
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
    use muxtunnel_testkit::socket::pair;
    use proptest::prelude::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::super::pipe::{Held, Way};
    use super::*;
    use crate::io::duplex::writable;
    use crate::io::local_socket::LocalSocket;

    #[tokio::test]
    async fn what_is_in_pipes_and_in_memory_comes_out_in_the_order_it_went_in() {
        let ((mut client, from), (to, mut server)) = (pair().await, pair().await);
        client.write_all(b"-one--two-").await.unwrap();
        from.readable().await.unwrap();
        let pool = Rc::new(Pool::default());
        let mut inbox = Inbox::default();
        inbox.push(&pool, b"begin");
        for _ in 0..2 {
            let mut pipe = pool.pipes.take(Way::ToLocal, &Held::default(), 1).unwrap();
            pipe.fill(&from, 2).unwrap();
            inbox.push_pipe(pipe);
            inbox.last_pipe().unwrap().fill(&from, 3).unwrap();
            inbox.push(&pool, b"memory");
            assert!(inbox.last_pipe().is_none());
        }
        assert_eq!(inbox.pipes(), 2);
        let to = LocalSocket::from(to);
        writable(&to).await.unwrap();
        while !inbox.is_empty() {
            inbox.write(&to, 4).unwrap();
        }
        to.end_in_order();
        drop(to);
        let mut all = Vec::new();
        server.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, b"begin-one-memory-two-memory");
        assert_eq!(inbox.pipes(), 0);
    }

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
                let count = inbox.slices(take, &mut slices);
                let out: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.to_vec()).collect();
                let expected: Vec<u8> = model.drain(..out.len()).collect();
                prop_assert_eq!(&out, &expected);
                inbox.consume(out.len());
                prop_assert_eq!(inbox.is_empty(), model.is_empty());
            }
        }
    }
}
