//! Pipes: payload that moves from one socket to another without a copy (splice(2)).
//!
//! A pipe is taken empty from its worker's [`Pipes`], filled once from one socket, drained into
//! another, and returned. Dropping a pipe discards its remaining content. A second pipe (tee(2))
//! retains payload that a session may have to retransmit; both pipes refer to the same memory. A
//! worker has a fixed number of pipes for each direction. If all of them are in use, payload is
//! copied. Payload is also copied if the process has no open files for a further pipe
//! ([`crate::base::open_files`]), or if the kernel refuses a further pipe. The kernel's limit is
//! `pipe-user-pages-soft` (pipe(7)), and applies to all gateways of a node that run as the same
//! user.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice, tee};
use tokio::io::Interest;

use crate::base::open_files::{self, Use, is_out_of_files};
use crate::io::socket;
use crate::io::socket::Socket;

/// Size of a pipe in bytes with one page in each of its slots, and maximum size of a spliced frame.
/// A piece of memory from a socket is often larger than a page, but takes only one slot. The value
/// is the maximum size for an unprivileged process by default (`pipe-max-size`, pipe(7)). Transfers
/// through pipes of a quarter of this size took a fifth more CPU time.
pub(crate) const PIPE_BYTES: usize = 1 << 20;
/// Below this size, a copy costs no more than the two calls for a pipe.
pub(crate) const SPLICE_BYTES_MIN: usize = 32 << 10;
/// Number of pipes of a process for payload to carriers, including retained payload. The workers
/// share the pipes equally, but each worker has at least two. So with more than eight workers, the
/// process has more pipes.
const SOURCE_PIPES_MAX: usize = 16;
/// Number of pipes of a process for payload to local sockets. The workers share the pipes equally,
/// but each worker has at least one. With up to eight workers, all pipes of a process take at most
/// 24 MiB. An unprivileged user has 64 MiB for all pipes.
const SINK_PIPES_MAX: usize = 8;

/// Time for which no further pipe is created after the process had no open files for one.
const OUT_OF_FILES_PAUSE: Duration = Duration::from_secs(1);

const FLAGS: SpliceFlags = SpliceFlags::MOVE.union(SpliceFlags::NONBLOCK);

/// The pipes of one worker. The default has no pipes.
#[derive(Debug, Default)]
pub(crate) struct Pipes {
    idle: RefCell<Vec<Ends>>,
    /// How many more pipes may be created.
    left: Cell<usize>,
    /// The process has no open files for further pipes before this time; `None`: it has.
    out_of_files: Cell<Option<Instant>>,
    /// How many pipes one stream may hold.
    a_stream: usize,
    /// Receives discarded content; `None`: the pipe is closed instead.
    null: Option<File>,
}

#[derive(Debug)]
struct Ends {
    output: OwnedFd,
    input: OwnedFd,
}

impl Pipes {
    /// Pipes for payload to carriers, for one of `workers` workers.
    pub(crate) fn of_sources(workers: usize) -> Rc<Self> {
        Self::part_of(SOURCE_PIPES_MAX, workers, 2)
    }

    /// Pipes for payload to local sockets, for one of `workers` workers.
    pub(crate) fn of_sinks(workers: usize) -> Rc<Self> {
        Self::part_of(SINK_PIPES_MAX, workers, 1)
    }

    fn part_of(all: usize, workers: usize, least: usize) -> Rc<Self> {
        let part = (all / workers.max(1)).max(least);
        Rc::new(Self {
            idle: RefCell::default(),
            left: Cell::new(part),
            out_of_files: Cell::new(None),
            a_stream: part.div_ceil(2),
            null: File::options().write(true).open("/dev/null").ok(),
        })
    }

    /// How many pipes one stream may hold while its socket stalls: half of the worker's pipes.
    pub(crate) fn a_stream(&self) -> usize {
        self.a_stream
    }

    /// Whether at least `count` pipes are free.
    pub(crate) fn has(&self, count: usize) -> bool {
        let further = match self.lacks_files() {
            true => 0,
            false => self.left.get(),
        };
        self.idle.borrow().len() + further >= count
    }

    /// Takes an empty pipe; `None`: no pipe is free.
    pub(crate) fn take(self: &Rc<Self>) -> Option<Pipe> {
        let idle = self.idle.borrow_mut().pop();
        let ends = idle.or_else(|| self.make())?;
        Some(Pipe {
            ends: Some(ends),
            held: 0,
            home: Rc::clone(self),
        })
    }

    fn lacks_files(&self) -> bool {
        let until = self.out_of_files.get();
        until.is_some_and(|until| Instant::now() < until)
    }

    fn make(&self) -> Option<Ends> {
        let left = self.left.get().checked_sub(1)?;
        if self.lacks_files() {
            return None;
        }
        match make() {
            Ok(ends) => {
                self.left.set(left);
                Some(ends)
            }
            Err(error) if is_out_of_files(&error) => {
                let until = Instant::now() + OUT_OF_FILES_PAUSE;
                self.out_of_files.set(Some(until));
                None
            }
            Err(error) => {
                tracing::warn!(%error, "The system grants no more pipes, so the gateway copies some payload, which \
                     takes more CPU time. Raise fs.pipe-user-pages-soft, or run fewer gateways of one user on this \
                     node");
                self.left.set(0);
                None
            }
        }
    }
}

fn make() -> std::io::Result<Ends> {
    let (output, input) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    for end in [&output, &input] {
        open_files::check(end, Use::Stream).map_err(std::io::Error::other)?;
    }
    fcntl_setpipe_size(&input, PIPE_BYTES)?;
    Ok(Ends { output, input })
}

/// One pipe and its content. Dropping the value returns the pipe to its worker.
#[derive(Debug)]
pub(crate) struct Pipe {
    /// Both ends; `None` only during the drop.
    ends: Option<Ends>,
    held: usize,
    home: Rc<Pipes>,
}

impl Pipe {
    /// Number of bytes in the pipe.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    fn ends(&self) -> std::io::Result<&Ends> {
        let gone = || std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        self.ends.as_ref().ok_or_else(gone)
    }

    /// Creates another pipe with the same content.
    ///
    /// # Errors
    /// The error of tee(2). `WouldBlock`: no pipe is free, or the new pipe has too little room.
    pub(crate) fn twin(&self) -> std::io::Result<Self> {
        let none = || std::io::Error::from(std::io::ErrorKind::WouldBlock);
        let mut twin = self.home.take().ok_or_else(none)?;
        let (output, input) = (&self.ends()?.output, &twin.ends()?.input);
        twin.held = tee(output, input, self.held, SpliceFlags::NONBLOCK)?;
        if twin.held < self.held {
            return Err(none());
        }
        Ok(twin)
    }

    /// Returns a copy of the whole content, preceded by `before` bytes of room.
    ///
    /// # Errors
    /// The error of read(2).
    pub(crate) fn read_all(&mut self, before: usize) -> std::io::Result<Vec<u8>> {
        let mut bytes = vec![0; before + self.held];
        while self.held > 0 {
            let from = bytes.len() - self.held;
            self.held -= rustix::io::read(&self.ends()?.output, &mut bytes[from..])?;
        }
        Ok(bytes)
    }

    /// Moves up to `bytes` from `from` into the empty pipe. Returns their number, or 0 at the end
    /// of file. The function moves fewer bytes if fewer are available, or if the pipe is full: a
    /// pipe has 256 slots for pieces of memory.
    ///
    /// # Errors
    /// The error of splice(2). `WouldBlock`: no bytes are available until the socket is ready
    /// again.
    pub(crate) fn fill(&mut self, from: &impl Socket, bytes: usize) -> std::io::Result<usize> {
        debug_assert_eq!(self.held, 0, "would block for two reasons");
        let input = &self.ends()?.input;
        let length = from.try_io(Interest::READABLE, || {
            Ok(splice(from, None, input, None, bytes, FLAGS)?)
        })?;
        self.held += length;
        Ok(length)
    }

    /// Writes at most `limit` bytes to `to`. Returns how many bytes `to` took. Some bytes may
    /// remain in the pipe.
    ///
    /// # Errors
    /// The error of splice(2).
    pub(crate) fn drain(&mut self, to: &impl Socket, limit: usize) -> std::io::Result<usize> {
        let (output, wanted) = (&self.ends()?.output, self.held.min(limit));
        let length = to.try_io(Interest::WRITABLE, || {
            Ok(splice(output, None, to, None, wanted, FLAGS)?)
        })?;
        self.held -= length;
        if length < wanted {
            socket::not_ready(to, Interest::WRITABLE);
        }
        Ok(length)
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        let Some(ends) = self.ends.take() else {
            return;
        };
        if self.held > 0
            && let Some(null) = &self.home.null
        {
            let thrown_away = splice(&ends.output, None, null, None, self.held, FLAGS);
            self.held -= thrown_away.unwrap_or(0);
        }
        if self.held == 0 {
            self.home.idle.borrow_mut().push(ends);
        } else {
            self.home.left.set(self.home.left.get() + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use muxtunnel_testkit::socket::pair;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn bytes_go_from_socket_to_socket_in_order() {
        let ((mut client, from), (to, mut server)) = (pair().await, pair().await);
        let mut pipe = Pipes::of_sinks(1).take().unwrap();
        client.write_all(b"hello").await.unwrap();
        from.readable().await.unwrap();
        assert_eq!(pipe.fill(&from, 4).unwrap(), 4);
        to.writable().await.unwrap();
        assert_eq!((pipe.drain(&to, 3).unwrap(), pipe.held()), (3, 1));
        assert_eq!((pipe.drain(&to, usize::MAX).unwrap(), pipe.held()), (1, 0));
        assert_eq!(pipe.fill(&from, 4).unwrap(), 1);
        assert_eq!(pipe.drain(&to, usize::MAX).unwrap(), 1);
        let nothing = pipe.fill(&from, 4).unwrap_err();
        assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock);
        drop(client);
        from.readable().await.unwrap();
        assert_eq!(pipe.fill(&from, 4).unwrap(), 0);
        drop(to);
        let mut all = Vec::new();
        server.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, b"hello");
    }

    #[tokio::test]
    async fn a_socket_that_is_full_leaves_the_rest_in_the_pipe() {
        let ((client, from), (to, _server)) = (pair().await, pair().await);
        let mut pipe = Pipes::of_sinks(1).take().unwrap();
        to.writable().await.unwrap();
        while pipe.held() == 0 {
            client.writable().await.unwrap();
            let _ = client.try_write(&[7; 1 << 16]);
            from.readable().await.unwrap();
            if pipe.fill(&from, PIPE_BYTES).is_ok() {
                let _ = pipe.drain(&to, usize::MAX);
            }
        }
        let again = pipe.drain(&to, usize::MAX).unwrap_err();
        assert_eq!(again.kind(), std::io::ErrorKind::WouldBlock);
    }

    #[tokio::test]
    async fn a_worker_has_its_part_of_the_pipes_and_gets_each_back_empty() {
        let (mut client, from) = pair().await;
        let (to, mut server) = pair().await;
        client.write_all(b"thrown away").await.unwrap();
        from.readable().await.unwrap();
        to.writable().await.unwrap();
        let pipes = Pipes::of_sources(20);
        let mut held: Vec<_> = std::iter::from_fn(|| pipes.take()).collect();
        assert_eq!(held.len(), 2);
        held[0].fill(&from, 6).unwrap();
        held.clear();
        let mut again: Vec<_> = std::iter::from_fn(|| pipes.take()).collect();
        assert_eq!(again.len(), 2);
        for (pipe, bytes) in again.iter_mut().zip([1, 4]) {
            assert_eq!(pipe.fill(&from, bytes).unwrap(), bytes);
            assert_eq!(pipe.drain(&to, usize::MAX).unwrap(), bytes);
        }
        let mut rest = [0; 5];
        server.read_exact(&mut rest).await.unwrap();
        assert_eq!(&rest, b" away");
        let (of_sources, of_sinks) = (Pipes::of_sources(64), Pipes::of_sinks(64));
        let held = [&of_sources, &of_sources, &of_sinks].map(Pipes::take);
        assert!(held.iter().all(Option::is_some));
        assert!(of_sources.take().is_none() && of_sinks.take().is_none());
    }

    #[tokio::test]
    async fn what_is_in_a_twin_can_be_read_when_the_pipe_is_drained() {
        let (mut client, from) = pair().await;
        let (to, _server) = pair().await;
        client.write_all(b"kept").await.unwrap();
        from.readable().await.unwrap();
        to.writable().await.unwrap();
        let mut pipe = Pipes::of_sources(64).take().unwrap();
        pipe.fill(&from, 4).unwrap();
        let mut twin = pipe.twin().unwrap();
        let no_third = pipe.twin().unwrap_err();
        assert_eq!(no_third.kind(), std::io::ErrorKind::WouldBlock);
        pipe.drain(&to, usize::MAX).unwrap();
        drop(pipe);
        assert_eq!(twin.held(), 4);
        assert_eq!(twin.read_all(2).unwrap(), b"\0\0kept");
    }
}
