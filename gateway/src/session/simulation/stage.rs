//! The state that all parts of a run share: its profile, its choices, and its log of steps.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::TcpListener;
use std::rc::Rc;
use std::time::Duration;

use socket2::SockRef;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::Instant;

use super::choice::Choices;
use super::profile::{Locals, Profile};
use super::seen::Seen;
use crate::io::local_end::LocalEnd;
use crate::io::local_socket::LocalSocket;

/// The owner of a sequence of choices; a number distinguishes owners of the same kind.
#[derive(Debug, Clone, Copy)]
pub(super) enum Whose {
    World = 1,
    Carrier,
    Sender,
    Reader,
    Stream,
    Keeper,
}

/// Maximum number of owners of one kind.
const NUMBERS: u64 = 1 << 20;

pub(super) struct Stage {
    pub(super) profile: Profile,
    began: Instant,
    listener: TcpListener,
    /// Counts events. The clock must not advance right after an event.
    activity: Cell<u64>,
    pub(super) fair: Cell<bool>,
    pub(super) seen: RefCell<BTreeSet<Seen>>,
    printed: bool,
    hasher: RefCell<DefaultHasher>,
    failure: RefCell<Option<String>>,
}

impl std::fmt::Debug for Stage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stage").finish_non_exhaustive()
    }
}

impl Stage {
    pub(super) fn new(profile: Profile, printed: bool) -> Rc<Self> {
        if printed {
            eprintln!("{profile:#?}");
        }
        Rc::new(Self {
            profile,
            began: Instant::now(),
            listener: TcpListener::bind("127.0.0.1:0").unwrap(),
            activity: Cell::new(0),
            fair: Cell::new(false),
            seen: RefCell::default(),
            printed,
            hasher: RefCell::default(),
            failure: RefCell::default(),
        })
    }

    /// Returns the sequence of choices of one owner. Each owner has a separate sequence, so the
    /// order in which owners choose has no effect.
    pub(super) fn choices(&self, whose: Whose, number: u64) -> Choices {
        let of = whose as u64 * NUMBERS + number;
        // The seeds are far apart in the single sequence of SplitMix64.
        Choices::Seed((self.profile.seed ^ of << 32).wrapping_mul(0xd1b5_4a32_d192_ed03))
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    pub(super) fn moved(&self) {
        self.activity.set(self.activity.get() + 1);
    }

    pub(super) fn activity(&self) -> u64 {
        self.activity.get()
    }

    pub(super) fn see(&self, seen: Seen) {
        self.seen.borrow_mut().insert(seen);
    }

    /// Logs a step of the run.
    pub(super) fn say(&self, step: &str) {
        let at = self.elapsed().as_millis();
        (at, step).hash(&mut *self.hasher.borrow_mut());
        if self.printed {
            eprintln!("{at} ms: {step}");
        }
    }

    pub(super) fn hash(&self) -> u64 {
        self.hasher.borrow().finish()
    }

    /// Fails the run. The function does not panic, since the driver would catch the panic.
    pub(super) fn fail(&self, failure: String) {
        self.failure.borrow_mut().get_or_insert(failure);
    }

    pub(super) fn check(&self) {
        if let Some(failure) = self.failure.take() {
            panic!("{failure}");
        }
    }

    /// Creates both ends of a TCP connection without the event loop, since the event loop would
    /// advance the clock.
    pub(super) fn tcp_pair(&self) -> (TcpStream, TcpStream) {
        let near = std::net::TcpStream::connect(self.listener.local_addr().unwrap()).unwrap();
        let (far, _) = self.listener.accept().unwrap();
        let attach = |tcp: std::net::TcpStream| {
            tcp.set_nonblocking(true).unwrap();
            TcpStream::from_std(tcp).unwrap()
        };
        (attach(near), attach(far))
    }

    /// The driver's end of a local connection, and the application's.
    pub(super) fn local_pair(
        &self,
        choices: &mut Choices,
    ) -> (Box<dyn LocalEnd>, Box<dyn LocalEnd>) {
        let end = |socket: LocalSocket| -> Box<dyn LocalEnd> { Box::new(socket) };
        let is_tcp = match self.profile.locals {
            Locals::Tcp => true,
            Locals::Unix => false,
            Locals::Both => choices.one_in(2),
        };
        if is_tcp {
            let (near, far) = self.tcp_pair();
            return (end(near.into()), end(far.into()));
        }
        let (near, far) = UnixStream::pair().unwrap();
        if let Some(bytes) = self.profile.local_bytes {
            SockRef::from(&near).set_send_buffer_size(bytes).unwrap();
        }
        (end(LocalSocket::Unix(near)), end(LocalSocket::Unix(far)))
    }
}
