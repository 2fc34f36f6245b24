//! A carrier on a TCP socket, which allows splicing. Bytes that are not spliced are transferred in
//! pieces of random size.

use std::cell::RefCell;
use std::io::{ErrorKind, IoSlice, Result};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::task::{Context, Poll};

use socket2::SockRef;
use tokio::net::TcpStream;

use super::choice::Choices;
use super::seen::Seen;
use super::stage::{Stage, Whose};
use super::wire::Gate;
use crate::io::duplex::Duplex;
use crate::io::transport::{Detached, Path, Tcp, Transport};

/// On average, one of this many writes or reads returns `WouldBlock`.
const AGAIN: usize = 12;
/// Maximum number of slices that one write uses.
const SLICES_MAX: usize = 64;

#[derive(Debug)]
struct Kernel {
    below: Box<dyn Transport>,
    quirks: RefCell<Quirks>,
}

#[derive(Debug)]
struct Quirks {
    stage: Rc<Stage>,
    choices: Choices,
    reads: Gate,
    writes: Gate,
}

impl Quirks {
    fn again(&mut self) -> bool {
        self.stage.moved();
        let faults = self.stage.profile.agains && !self.stage.fair.get();
        faults && self.choices.one_in(AGAIN)
    }

    /// How many of `length` bytes to transfer. The number is usually `length`: if many transfers
    /// were shorter, the carrier would rarely have enough bytes to splice.
    fn piece(&mut self, length: usize) -> usize {
        if self.stage.profile.pieces && self.choices.one_in(4) {
            self.choices.length(length)
        } else {
            length
        }
    }
}

impl Duplex for Kernel {
    fn poll_readable(&self, context: &mut Context<'_>) -> Poll<Result<()>> {
        match self.quirks.borrow_mut().reads.poll(context) {
            Poll::Ready(()) => self.below.poll_readable(context),
            Poll::Pending => Poll::Pending,
        }
    }

    fn poll_writable(&self, context: &mut Context<'_>) -> Poll<Result<()>> {
        match self.quirks.borrow_mut().writes.poll(context) {
            Poll::Ready(()) => self.below.poll_writable(context),
            Poll::Pending => Poll::Pending,
        }
    }

    fn try_read(&self, bytes: &mut [u8]) -> Result<usize> {
        let mut quirks = self.quirks.borrow_mut();
        if quirks.again() {
            let Quirks { reads, choices, .. } = &mut *quirks;
            return Err(reads.close(choices));
        }
        let most = quirks.piece(bytes.len());
        self.below.try_read(&mut bytes[..most])
    }

    fn try_write(&self, slices: &[IoSlice<'_>]) -> Result<usize> {
        let mut quirks = self.quirks.borrow_mut();
        if quirks.again() {
            let Quirks {
                writes, choices, ..
            } = &mut *quirks;
            return Err(writes.close(choices));
        }
        let total = slices.iter().map(|slice| slice.len()).sum();
        let mut left = quirks.piece(total);
        let mut shorter = [IoSlice::new(&[]); SLICES_MAX];
        let mut count = 0;
        for (slice, shorter) in slices.iter().zip(&mut shorter) {
            let length = slice.len().min(left);
            *shorter = IoSlice::new(&slice[..length]);
            left -= length;
            count += usize::from(length > 0);
        }
        self.below.try_write(&shorter[..count])
    }

    fn finish(&self) -> Result<()> {
        self.below.finish()
    }
}

impl Transport for Kernel {
    fn shut(&self) {
        self.below.shut();
    }

    fn path(&self) -> Option<&dyn Path> {
        self.below.path()
    }

    fn plain(&self) -> Option<&TcpStream> {
        self.below.plain()
    }

    fn detach(self: Box<Self>) -> Result<Detached> {
        Err(ErrorKind::Unsupported.into())
    }
}

/// The world's access to such a carrier.
#[derive(Debug)]
pub(super) struct Cable([OwnedFd; 2]);

/// Both ends of a carrier, the entry first.
pub(super) fn carrier(
    stage: &Rc<Stage>,
    number: u64,
) -> (Box<dyn Transport>, Box<dyn Transport>, Cable) {
    let (near, far) = stage.tcp_pair();
    let cable = Cable([&near, &far].map(|tcp| tcp.as_fd().try_clone_to_owned().unwrap()));
    let end = |tcp, side| {
        Box::new(Kernel {
            below: Tcp::boxed(tcp),
            quirks: RefCell::new(Quirks {
                stage: Rc::clone(stage),
                choices: stage.choices(Whose::Carrier, 2 * number + side),
                reads: Gate::default(),
                writes: Gate::default(),
            }),
        })
    };
    (end(near, 0), end(far, 1), cable)
}

impl Cable {
    pub(super) fn is_whole(&self) -> bool {
        self.0
            .iter()
            .all(|end| SockRef::from(end).peer_addr().is_ok())
    }

    /// Cuts one end: its unsent bytes are lost, and the other end is reset.
    pub(super) fn cut(&self, stage: &Stage, side: usize) {
        stage.see(Seen::KernelCut);
        // The call fails if the connection has already ended.
        let _ = rustix::net::connect_unspec(&self.0[side]);
    }
}
