//! Two descriptors, one to read and one to write: the pipes of a command, or standard input and
//! output.
//!
//! The descriptors may be sockets, as with inetd and some versions of sshd. Files are refused.

use std::cell::RefCell;
use std::fs::File;
use std::io::{Error, ErrorKind, IoSlice, IsTerminal, Read, Result, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::task::{Context, Poll, ready};

use muxtunnel_gateway_config::LISTEN_STDIO;
use muxtunnel_gateway_config::status::CarrierTransport;
use rustix::pipe::fcntl_setpipe_size;
use socket2::SockRef;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;

use super::{Detached, Transport};
use crate::base::sys;
use crate::io::duplex::Duplex;

/// Requested size of a pipe in bytes: one writev(2) of a carrier fills it.
const PIPE_BYTES: usize = 1 << 20;

/// Held while a transport is in use. Dropping the leash ends the resources that belong to the
/// transport.
#[derive(Debug)]
pub(super) struct Leash {
    /// The channel never transfers a value.
    _held: oneshot::Sender<()>,
}

/// The other end of a [`Leash`]. Awaiting this end returns an error once the leash is dropped.
pub(crate) type Released = oneshot::Receiver<()>;

impl Leash {
    pub(super) fn new() -> (Self, Released) {
        let (held, released) = oneshot::channel();
        (Self { _held: held }, released)
    }
}

/// Two descriptors in this thread's event loop.
#[derive(Debug)]
pub(crate) struct Pipes {
    input: RefCell<Option<AsyncFd<File>>>,
    output: RefCell<Option<AsyncFd<File>>>,
    peer: String,
    leash: RefCell<Option<Leash>>,
}

impl Pipes {
    /// `leash` is the leash of the command that owns the descriptors.
    ///
    /// # Errors
    /// The system's error, or an error if a descriptor is a file.
    pub(super) fn boxed(
        input: OwnedFd,
        output: OwnedFd,
        peer: String,
        leash: Option<Leash>,
    ) -> Result<Box<dyn Transport>> {
        Ok(Box::new(Self {
            input: RefCell::new(Some(registered(input, Interest::READABLE)?)),
            output: RefCell::new(Some(registered(output, Interest::WRITABLE)?)),
            peer,
            leash: RefCell::new(leash),
        }))
    }

    /// Takes the standard input and output from the process. Also returns a future that ends with
    /// the transport.
    ///
    /// # Errors
    /// The system's error, or an error if standard input or output is a terminal or a file.
    pub(crate) fn of_process() -> Result<(Box<dyn Transport>, Released)> {
        let (input, output) = (std::io::stdin(), std::io::stdout());
        if input.is_terminal() || output.is_terminal() {
            let text = "is a terminal, but must be a pipe or a socket, as with ssh";
            return Err(Error::new(ErrorKind::InvalidInput, text));
        }
        let nothing = File::options().read(true).write(true).open("/dev/null")?;
        let input = rustix::io::dup(input)?;
        let output = rustix::io::dup(output)?;
        rustix::stdio::dup2_stdin(&nothing)?;
        rustix::stdio::dup2_stdout(&nothing)?;
        let (leash, released) = Leash::new();
        let pipes = Self::boxed(input, output, LISTEN_STDIO.to_owned(), Some(leash))?;
        Ok((pipes, released))
    }
}

fn registered(descriptor: OwnedFd, interest: Interest) -> Result<AsyncFd<File>> {
    rustix::io::ioctl_fionbio(&descriptor, true)?;
    // A smaller pipe also works, and a socket has its own buffer size.
    let _ = fcntl_setpipe_size(&descriptor, PIPE_BYTES);
    sys::watched(File::from(descriptor), interest).map_err(|error| match error.kind() {
        ErrorKind::PermissionDenied => {
            let text = "is a file, but must be a pipe or a socket";
            Error::new(ErrorKind::InvalidInput, text)
        }
        _ => error,
    })
}

fn closed() -> Error {
    ErrorKind::BrokenPipe.into()
}

impl Duplex for Pipes {
    fn poll_readable(&self, context: &mut Context<'_>) -> Poll<Result<()>> {
        if let Some(input) = &*self.input.borrow() {
            ready!(input.poll_read_ready(context))?.retain_ready();
        }
        Poll::Ready(Ok(()))
    }

    fn poll_writable(&self, context: &mut Context<'_>) -> Poll<Result<()>> {
        match &*self.output.borrow() {
            Some(output) => ready!(output.poll_write_ready(context))?.retain_ready(),
            None => return Poll::Ready(Err(closed())),
        }
        Poll::Ready(Ok(()))
    }

    fn try_read(&self, bytes: &mut [u8]) -> Result<usize> {
        match &*self.input.borrow() {
            Some(input) => input.try_io(Interest::READABLE, |mut file| file.read(bytes)),
            None => Ok(0),
        }
    }

    fn try_write(&self, slices: &[IoSlice<'_>]) -> Result<usize> {
        match &*self.output.borrow() {
            Some(output) => {
                output.try_io(Interest::WRITABLE, |mut file| file.write_vectored(slices))
            }
            None => Err(closed()),
        }
    }

    fn finish(&self) -> Result<()> {
        if let Some(output) = self.output.borrow_mut().take() {
            // Another process may have the socket open, so the socket needs a shutdown. For a pipe,
            // closing is enough.
            let _ = SockRef::from(output.get_ref()).shutdown(Shutdown::Write);
        }
        Ok(())
    }
}

impl Transport for Pipes {
    fn shut(&self) {
        let _ = self.finish();
        self.input.borrow_mut().take();
        self.leash.borrow_mut().take();
    }

    fn runs_on(&self) -> CarrierTransport {
        CarrierTransport::Pipes
    }

    fn peer(&self) -> String {
        self.peer.clone()
    }

    fn detach(self: Box<Self>) -> Result<Detached> {
        let take = |end: &RefCell<Option<AsyncFd<File>>>| {
            let end = end.borrow_mut().take().ok_or_else(closed)?;
            Ok::<_, Error>(OwnedFd::from(end.into_inner()))
        };
        let (input, output) = (take(&self.input)?, take(&self.output)?);
        let (peer, leash) = (self.peer.clone(), self.leash.borrow_mut().take());
        Ok(Box::new(move || Self::boxed(input, output, peer, leash)))
    }
}
