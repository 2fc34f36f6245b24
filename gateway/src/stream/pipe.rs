//! Pipes: payload that moves from one socket to another without a copy (splice(2)).
//!
//! A pipe is taken empty from the [`Pipes`] of the process, filled from one socket, drained into
//! another, and returned. Dropping a pipe discards its remaining content. Payload that a session may
//! have to retransmit stays in further pipes ([`super::retained_pipe`]).
//!
//! All workers share the pipes of the process. A session takes a further pipe only while it holds
//! fewer than [`HELD_FACTOR`] times the pipes that are free (Choudhury, Hahne: "Dynamic Queue
//! Length Thresholds for Shared-Memory Packet Switches", 1998). So a session whose peer or local
//! sockets stall leaves pipes to the other sessions. In the same way, a stream whose local socket
//! stalls takes a further pipe only while it holds fewer than are free. Without a pipe, payload is
//! copied.
//! Payload is also copied for a short time after the process had no open files for a further pipe
//! ([`crate::base::open_files`]), or after the kernel refused a further pipe. The kernel's limit is
//! `pipe-user-pages-soft` (pipe(7)), and applies to all gateways of a node that run as the same
//! user.

use std::cell::Cell;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice, tee};
use tokio::io::Interest;

use crate::base::open_files::{self, Use, is_out_of_files};
use crate::io::socket;
use crate::io::socket::Socket;

/// Size of a pipe in bytes with one page in each of its slots, and maximum size of a spliced frame.
/// The value is the maximum size for an unprivileged process by default (`pipe-max-size`, pipe(7)).
/// Transfers through pipes of a quarter of this size took a fifth more CPU time.
pub(crate) const PIPE_BYTES: usize = 1 << 20;
/// Maximum content of a pipe in bytes. A piece of memory from a socket is often larger than a page
/// (32 KiB on loopback), but takes only one slot.
pub(crate) const CONTENT_BYTES_MAX: usize = 4 << 20;
/// Size of a pipe if the kernel refuses [`PIPE_BYTES`]. Such a pipe is closed after its use, so that
/// the next pipe may have the full size.
const SMALLER_BYTES: usize = 256 << 10;
/// Below this size, a copy costs no more than the two calls for a pipe.
pub(crate) const SPLICE_BYTES_MIN: usize = 32 << 10;
/// Maximum number of pipes of a process. They take 48 of the 64 MiB that an unprivileged user has
/// for pipes by default.
const PIPES_MAX: usize = 48;
/// Maximum number of pipes in use with payload to carriers, including retained payload. The other
/// pipes remain for payload to local sockets.
const SOURCE_PIPES_MAX: usize = 32;
/// Maximum number of pipes in use with payload to local sockets. The other pipes remain for payload
/// to carriers, because local sockets that stall hold their pipes.
const SINK_PIPES_MAX: usize = 32;
/// Maximum number of idle pipes that a process keeps. The rest of the user's limit remains for other
/// gateways.
const IDLE_MAX: usize = 16;
/// A session may take pipes until it holds this number of times as many as are free. So one session
/// leaves a quarter of the pipes to the others.
const HELD_FACTOR: usize = 3;
/// Time for which no further pipe is created after the process had no open files for one, or the
/// kernel refused one.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);

const FLAGS: SpliceFlags = SpliceFlags::MOVE.union(SpliceFlags::NONBLOCK);

/// Where the payload of a pipe goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// From a local socket to a carrier.
    ToCarrier,
    /// From a carrier to a local socket.
    ToLocal,
}

/// The numbers of pipes that one session holds, by way.
#[derive(Debug, Clone, Default)]
pub(crate) struct Held(Rc<[Cell<usize>; 2]>);

impl Held {
    fn of(&self, way: Way) -> &Cell<usize> {
        let [to_carrier, to_local] = &*self.0;
        match way {
            Way::ToCarrier => to_carrier,
            Way::ToLocal => to_local,
        }
    }
}

/// The pipes of a process.
#[derive(Debug)]
pub(crate) struct Pipes {
    state: Mutex<State>,
    /// Receives discarded content; `None`: the pipe is closed instead.
    null: Option<File>,
}

#[derive(Debug, Default)]
struct State {
    idle: Vec<Ends>,
    to_carriers: usize,
    to_local: usize,
    /// No further pipe is created before this time.
    refused_until: Option<Instant>,
}

impl State {
    fn used(&mut self, way: Way) -> &mut usize {
        match way {
            Way::ToCarrier => &mut self.to_carriers,
            Way::ToLocal => &mut self.to_local,
        }
    }

    /// Number of pipes that may still be taken for `way`.
    fn free(&self, way: Way) -> usize {
        let free_of_way = match way {
            Way::ToCarrier => SOURCE_PIPES_MAX - self.to_carriers,
            Way::ToLocal => SINK_PIPES_MAX - self.to_local,
        };
        free_of_way.min(PIPES_MAX - self.to_carriers - self.to_local)
    }

    /// Whether a session that holds `held` pipes of `way` may take `count` more, one after the
    /// other.
    fn permits(&self, way: Way, held: usize, count: usize) -> bool {
        let free_at_last = (self.free(way) + 1).saturating_sub(count);
        held + count <= HELD_FACTOR * free_at_last
    }

    /// An empty pipe; `None`: none is idle, and none can be created now.
    fn take(&mut self) -> Option<Ends> {
        self.idle.pop().or_else(|| self.make())
    }

    fn make(&mut self) -> Option<Ends> {
        if let Some(until) = self.refused_until
            && Instant::now() < until
        {
            return None;
        }
        match Ends::make() {
            Ok(ends) => {
                self.refused_until = None;
                return Some(ends);
            }
            Err(error) if is_out_of_files(&error) => {}
            Err(error) if self.refused_until.is_some() => {
                tracing::debug!(%error, "The system still grants no more pipes");
            }
            Err(error) => {
                tracing::warn!(%error, "The system grants no more pipes, so the gateway copies some payload, which \
                     takes more CPU time. Raise fs.pipe-user-pages-soft, or run fewer gateways of one user on this \
                     node");
            }
        }
        self.refused_until = Some(Instant::now() + REFUSED_PAUSE);
        None
    }
}

#[derive(Debug)]
struct Ends {
    output: OwnedFd,
    input: OwnedFd,
    /// Size with one page in each slot.
    bytes: usize,
}

impl Ends {
    fn make() -> std::io::Result<Self> {
        let (output, input) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        for end in [&output, &input] {
            open_files::check(end, Use::Stream).map_err(std::io::Error::other)?;
        }
        let bytes = fcntl_setpipe_size(&input, PIPE_BYTES)
            .or_else(|_| fcntl_setpipe_size(&input, SMALLER_BYTES))?;
        Ok(Self {
            output,
            input,
            bytes,
        })
    }
}

impl Default for Pipes {
    fn default() -> Self {
        Self {
            state: Mutex::default(),
            null: File::options().write(true).open("/dev/null").ok(),
        }
    }
}

impl Pipes {
    /// The pipes of this process.
    pub(crate) fn of_process() -> Arc<Self> {
        static OF_PROCESS: OnceLock<Arc<Pipes>> = OnceLock::new();
        Arc::clone(OF_PROCESS.get_or_init(Arc::default))
    }

    /// Number of pipes that may still be taken for `way`.
    pub(crate) fn free(&self, way: Way) -> usize {
        self.state.lock().free(way)
    }

    /// Takes an empty pipe for a session that holds `held`, if the session may take `count` pipes
    /// now; `None`: the caller has to copy the payload.
    pub(crate) fn take(self: &Arc<Self>, way: Way, held: &Held, count: usize) -> Option<Pipe> {
        let mut state = self.state.lock();
        if !state.permits(way, held.of(way).get(), count) {
            return None;
        }
        let ends = state.take()?;
        *state.used(way) += 1;
        drop(state);
        held.of(way).set(held.of(way).get() + 1);
        Some(Pipe {
            ends: Some(ends),
            held: 0,
            way,
            of_session: held.clone(),
            home: Arc::clone(self),
        })
    }

    /// Number of pipes in use.
    #[cfg(test)]
    pub(crate) fn used(&self) -> usize {
        let state = self.state.lock();
        state.to_carriers + state.to_local
    }
}

/// The result of [`Pipe::fill`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Filled {
    /// This number of bytes, or 0 at the end of file.
    Bytes(usize),
    /// The pipe has content and took nothing: it is full, or the socket has no bytes. An empty pipe
    /// tells these cases apart, and is never full.
    Full,
}

/// One pipe and its content. Dropping the value returns the pipe.
#[derive(Debug)]
pub(crate) struct Pipe {
    /// Both ends; `None` only during the drop.
    ends: Option<Ends>,
    held: usize,
    way: Way,
    of_session: Held,
    home: Arc<Pipes>,
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

    /// Adds references to the content of `from` (tee(2)) to the end of the content. The function
    /// adds less than the whole content if the pipe becomes full. Returns the number of bytes.
    ///
    /// # Errors
    /// The error of tee(2). `WouldBlock`: the pipe is full.
    pub(crate) fn tee_from(&mut self, from: &Self) -> std::io::Result<usize> {
        if from.held > CONTENT_BYTES_MAX - self.held {
            return Err(std::io::ErrorKind::WouldBlock.into());
        }
        let (output, input) = (&from.ends()?.output, &self.ends()?.input);
        let length = tee(output, input, from.held, SpliceFlags::NONBLOCK)?;
        self.held += length;
        Ok(length)
    }

    /// Returns a copy of the next `length` bytes. The pipe must hold as many.
    ///
    /// # Errors
    /// The error of read(2).
    pub(crate) fn read(&mut self, length: usize) -> std::io::Result<Vec<u8>> {
        let (mut bytes, mut filled) = (vec![0; length], 0);
        while filled < length {
            match rustix::io::read(&self.ends()?.output, &mut bytes[filled..])? {
                0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                read => filled += read,
            }
        }
        self.held -= length;
        Ok(bytes)
    }

    /// Discards the next `length` bytes. The pipe must hold as many.
    ///
    /// # Errors
    /// The error of splice(2).
    pub(crate) fn discard(&mut self, length: usize) -> std::io::Result<()> {
        let Some(null) = &self.home.null else {
            return self.read(length).map(drop);
        };
        let mut discarded = 0;
        while discarded < length {
            let left = length - discarded;
            match splice(&self.ends()?.output, None, null, None, left, FLAGS)? {
                0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                bytes => discarded += bytes,
            }
        }
        self.held -= length;
        Ok(())
    }

    /// Moves up to `bytes` from `from` to the end of the content. The function moves fewer bytes if
    /// fewer are available, or if the pipe becomes full: a pipe has 256 slots for pieces of memory,
    /// and holds at most [`CONTENT_BYTES_MAX`].
    ///
    /// # Errors
    /// The error of splice(2). `WouldBlock`: no bytes are available until the socket is ready
    /// again.
    pub(crate) fn fill(&mut self, from: &impl Socket, bytes: usize) -> std::io::Result<Filled> {
        let input = &self.ends()?.input;
        let bytes = bytes.min(CONTENT_BYTES_MAX - self.held);
        if bytes == 0 {
            return Ok(Filled::Full);
        }
        let has_content = self.held > 0;
        let filled = from.try_io(Interest::READABLE, || {
            match splice(from, None, input, None, bytes, FLAGS) {
                Ok(length) => Ok(Filled::Bytes(length)),
                // A full pipe has the same error as a socket without bytes.
                Err(Errno::AGAIN) if has_content => Ok(Filled::Full),
                Err(error) => Err(error.into()),
            }
        })?;
        if let Filled::Bytes(length) = filled {
            self.held += length;
        }
        Ok(filled)
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
        if self.home.null.is_some() {
            // A pipe that still has content is closed.
            let _ = self.discard(self.held);
        }
        let Some(ends) = self.ends.take() else {
            return;
        };
        let of_session = self.of_session.of(self.way);
        of_session.set(of_session.get() - 1);
        let mut state = self.home.state.lock();
        *state.used(self.way) -= 1;
        if self.held == 0 && ends.bytes >= PIPE_BYTES && state.idle.len() < IDLE_MAX {
            state.idle.push(ends);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use muxtunnel_testkit::socket::pair;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn take() -> Pipe {
        let pipes = Arc::<Pipes>::default();
        pipes.take(Way::ToLocal, &Held::default(), 1).unwrap()
    }

    #[tokio::test]
    async fn bytes_go_from_socket_to_socket_in_order() {
        let ((mut client, from), (to, mut server)) = (pair().await, pair().await);
        let mut pipe = take();
        client.write_all(b"hello").await.unwrap();
        from.readable().await.unwrap();
        assert_eq!(pipe.fill(&from, 4).unwrap(), Filled::Bytes(4));
        to.writable().await.unwrap();
        assert_eq!((pipe.drain(&to, 3).unwrap(), pipe.held()), (3, 1));
        assert_eq!(pipe.fill(&from, 4).unwrap(), Filled::Bytes(1));
        assert_eq!((pipe.drain(&to, usize::MAX).unwrap(), pipe.held()), (2, 0));
        let nothing = pipe.fill(&from, 4).unwrap_err();
        assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock);
        drop(client);
        from.readable().await.unwrap();
        assert_eq!(pipe.fill(&from, 4).unwrap(), Filled::Bytes(0));
        drop(to);
        let mut all = Vec::new();
        server.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, b"hello");
    }

    #[tokio::test]
    async fn a_socket_that_is_full_leaves_the_rest_in_the_pipe() {
        let ((client, from), (to, _server)) = (pair().await, pair().await);
        let mut pipe = take();
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
    async fn an_empty_pipe_tells_a_full_pipe_from_a_socket_without_bytes() {
        let (mut client, from) = pair().await;
        let mut pipe = take();
        let mut sent = 0;
        // One byte in each segment takes one slot.
        client.set_nodelay(true).unwrap();
        let filled = loop {
            client.write_all(&[1]).await.unwrap();
            sent += 1;
            from.readable().await.unwrap();
            match pipe.fill(&from, 1) {
                Ok(Filled::Bytes(1)) => {}
                other => break other.unwrap(),
            }
        };
        assert_eq!((filled, pipe.held()), (Filled::Full, sent - 1));
        // The socket is still readable.
        let mut another = take();
        assert_eq!(another.fill(&from, 2).unwrap(), Filled::Bytes(1));
        assert_eq!(another.fill(&from, 2).unwrap(), Filled::Full);
        let nothing = take().fill(&from, 2).unwrap_err();
        assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock);
    }

    #[test]
    fn each_way_and_each_session_leave_pipes_to_the_others() {
        let mut state = State::default();
        let mut take_all = |way| {
            let mut held = 0;
            while state.permits(way, held, 1) {
                *state.used(way) += 1;
                held += 1;
            }
            held
        };
        let to_local: Vec<_> = (0..6).map(|_| take_all(Way::ToLocal)).collect();
        assert_eq!(to_local, [24, 6, 2, 0, 0, 0]);
        let to_carriers: Vec<_> = (0..6).map(|_| take_all(Way::ToCarrier)).collect();
        assert_eq!(to_carriers, [12, 3, 1, 0, 0, 0]);
        let mut state = State {
            to_carriers: SOURCE_PIPES_MAX,
            ..State::default()
        };
        assert!(!state.permits(Way::ToCarrier, 0, 1));
        assert!(state.permits(Way::ToLocal, 15, 9) && !state.permits(Way::ToLocal, 16, 9));
        assert!(state.permits(Way::ToLocal, 0, 12) && !state.permits(Way::ToLocal, 0, 13));
        state.to_carriers -= 1;
        assert!(state.permits(Way::ToCarrier, 0, 1) && !state.permits(Way::ToCarrier, 0, 2));
    }

    #[test]
    fn a_session_that_may_take_two_pipes_may_take_one_after_the_other() {
        for to_carriers in 0..=SOURCE_PIPES_MAX {
            for held in 0..=to_carriers {
                let mut state = State {
                    to_carriers,
                    ..State::default()
                };
                let both = state.permits(Way::ToCarrier, held, 2);
                let first = state.permits(Way::ToCarrier, held, 1);
                state.to_carriers += usize::from(first);
                assert_eq!(both, first && state.permits(Way::ToCarrier, held + 1, 1));
            }
        }
    }

    #[tokio::test]
    async fn each_pipe_comes_back_empty() {
        let (mut client, from) = pair().await;
        let (to, mut server) = pair().await;
        client.write_all(b"thrown away").await.unwrap();
        from.readable().await.unwrap();
        to.writable().await.unwrap();
        let (pipes, held) = (Arc::<Pipes>::default(), Held::default());
        let mut pipe = pipes.take(Way::ToCarrier, &held, 1).unwrap();
        assert_eq!((pipes.used(), held.of(Way::ToCarrier).get()), (1, 1));
        pipe.fill(&from, 6).unwrap();
        drop(pipe);
        assert_eq!((pipes.used(), held.of(Way::ToCarrier).get()), (0, 0));
        let mut again = pipes.take(Way::ToLocal, &held, 1).unwrap();
        assert_eq!(again.fill(&from, 5).unwrap(), Filled::Bytes(5));
        assert_eq!(again.drain(&to, usize::MAX).unwrap(), 5);
        let mut rest = [0; 5];
        server.read_exact(&mut rest).await.unwrap();
        assert_eq!(&rest, b" away");
    }

    #[tokio::test]
    async fn a_pipe_takes_no_more_than_its_maximum() {
        let (mut client, from) = pair().await;
        client.write_all(b"12345678").await.unwrap();
        from.readable().await.unwrap();
        let (mut pipe, mut other) = (take(), take());
        // As if the pipe had this content.
        pipe.held = CONTENT_BYTES_MAX - 3;
        assert_eq!(pipe.fill(&from, usize::MAX).unwrap(), Filled::Bytes(3));
        assert_eq!(pipe.fill(&from, usize::MAX).unwrap(), Filled::Full);
        assert_eq!(other.fill(&from, usize::MAX).unwrap(), Filled::Bytes(5));
        pipe.held = CONTENT_BYTES_MAX - 4;
        let full = pipe.tee_from(&other).unwrap_err();
        assert_eq!(full.kind(), std::io::ErrorKind::WouldBlock);
        pipe.held = CONTENT_BYTES_MAX - 5;
        assert_eq!(pipe.tee_from(&other).unwrap(), 5);
    }

    #[test]
    fn a_smaller_pipe_is_not_kept() {
        let pipes = Arc::<Pipes>::default();
        let mut small = Ends::make().unwrap();
        small.bytes = fcntl_setpipe_size(&small.input, SMALLER_BYTES).unwrap();
        let number = small.input.as_raw_fd();
        let full = Ends::make().unwrap();
        pipes.state.lock().idle.extend([full, small]);
        let [first, second] = [(), ()].map(|()| pipes.take(Way::ToCarrier, &Held::default(), 1));
        let first_number = first.as_ref().unwrap().ends().unwrap().input.as_raw_fd();
        assert_eq!(first_number, number);
        drop((first, second));
        let state = pipes.state.lock();
        let kept: Vec<_> = state.idle.iter().map(|ends| ends.bytes).collect();
        assert_eq!(kept, [PIPE_BYTES]);
    }
}
