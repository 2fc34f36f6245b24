//! Two descriptors, one to read and one to write: pipes of a command, or a process's standard input and output.
//!
//! They may be sockets, as inetd and some versions of sshd have them; files are refused.

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

use super::command::{Leash, Released};
use super::{Detached, Transport};
use crate::base::sys;
use crate::io::duplex::Duplex;

/// What is asked for of a pipe: one that is filled by one writev(2) of a carrier.
const PIPE_BYTES: usize = 1 << 20;

/// Two descriptors in this thread's event loop.
#[derive(Debug)]
pub(crate) struct Pipes {
    input: RefCell<Option<AsyncFd<File>>>,
    output: RefCell<Option<AsyncFd<File>>>,
    peer: String,
    leash: RefCell<Option<Leash>>,
}

impl Pipes {
    /// `leash`: of what goes with them.
    ///
    /// # Errors
    /// One of them is a file, or the system's.
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

    /// The standard input and output of this process, which has them no more, and what ends when the transport
    /// does.
    ///
    /// # Errors
    /// They are a terminal, or files, or the system's.
    pub(crate) fn of_process() -> Result<(Box<dyn Transport>, Released)> {
        let (input, output) = (std::io::stdin(), std::io::stdout());
        if input.is_terminal() || output.is_terminal() {
            let text = "is a terminal, but has to be a pipe or a socket, as ssh makes it";
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
    // A smaller one carries as well, and a socket has its own.
    let _ = fcntl_setpipe_size(&descriptor, PIPE_BYTES);
    sys::watched(File::from(descriptor), interest).map_err(|error| match error.kind() {
        ErrorKind::PermissionDenied => {
            let text = "is a file, but has to be a pipe or a socket";
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
            // A socket may be open elsewhere; a pipe is closed by that alone.
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

    fn detach(self: Box<Self>) -> Result<Box<dyn Detached>> {
        let take = |end: &RefCell<Option<AsyncFd<File>>>| {
            let end = end.borrow_mut().take().ok_or_else(closed)?;
            Ok::<_, Error>(OwnedFd::from(end.into_inner()))
        };
        Ok(Box::new(DetachedPipes {
            input: take(&self.input)?,
            output: take(&self.output)?,
            peer: self.peer.clone(),
            leash: self.leash.borrow_mut().take(),
        }))
    }
}

#[derive(Debug)]
struct DetachedPipes {
    input: OwnedFd,
    output: OwnedFd,
    peer: String,
    leash: Option<Leash>,
}

impl Detached for DetachedPipes {
    fn attach(self: Box<Self>) -> Result<Box<dyn Transport>> {
        Pipes::boxed(self.input, self.output, self.peer, self.leash)
    }
}
