//! Accepts an exit's KCP connections. Each worker has one UDP socket, and all sockets use the same
//! port.
//!
//! The listener challenges each new peer without storing state. A peer that answers gets a
//! connection with its own socket. An answer to a stranger never causes another answer, and the
//! number of answers is limited ([`AnswerLimiter`]).
//!
//! The kernel assigns each listener a share of the addresses. The shares change with every further
//! socket on the port. So all workers share one secret for challenges, and a datagram for another
//! worker's connection is passed to that connection.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{Error, ErrorKind, Result};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use muxtunnel_proto::kcp::{self, Connection, Keepalive, Opening};

use super::driven::{self, State};
use super::peers::{KcpPeers, Whose};
use super::socket::{self, Socket};
use super::{Kcp, KcpWindows, Transport};
use crate::base::answer_limiter::{AnswerLimiter, CHALLENGES, RESETS};
use crate::base::open_files::{self, Use};
use crate::io::local_socket::canonical;

/// The timeouts of a peer that has proved no identity yet. The timeouts apply if the dialler
/// disappears.
pub(super) const UNPROVED: Keepalive = Keepalive {
    dead_after: Duration::from_secs(15),
    interval: Duration::from_secs(5),
    retries: 2,
};
/// Maximum number of accepted connections that wait for the next call of `accept`. Also bounds the
/// reads from the socket of one new connection, and the stray datagrams that one turn takes from
/// the sockets of new connections.
const WAITING_MAX: usize = 64;
/// Maximum number of consecutive failures to receive that the listener ignores. The failures belong
/// to earlier answers to some peers, so they are no reason to pause.
const FAILURES_MAX: u32 = 64;

/// A datagram with its source and destination addresses.
struct Datagram {
    from: SocketAddr,
    to: Option<IpAddr>,
    bytes: Vec<u8>,
}

/// One worker's part of the port.
#[derive(Debug)]
pub(crate) struct KcpListener {
    socket: Socket,
    address: SocketAddr,
    peers: Arc<KcpPeers>,
    windows: KcpWindows,
    accepted: RefCell<VecDeque<(Box<dyn Transport>, SocketAddr)>>,
    challenges: RefCell<AnswerLimiter>,
    resets: RefCell<AnswerLimiter>,
}

impl KcpListener {
    /// Binds a socket. Call this function on the worker.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn bind(address: &str, peers: Arc<KcpPeers>, windows: KcpWindows) -> Result<Self> {
        let socket = Socket::new(socket::bind(parsed(address)?, true)?)?;
        socket.buffers().report(address);
        Ok(Self {
            address: socket.local_address()?,
            socket,
            peers,
            windows,
            accepted: RefCell::default(),
            challenges: RefCell::new(AnswerLimiter::new(CHALLENGES)),
            resets: RefCell::new(AnswerLimiter::new(RESETS)),
        })
    }

    /// Checks that no other process has the port.
    ///
    /// # Errors
    /// The system's error if the port is in use.
    pub(crate) fn check_free(address: &str) -> Result<()> {
        socket::bind(parsed(address)?, false).map(drop)
    }

    /// The listening address.
    #[cfg(test)]
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the next connection, from an address that has been verified.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) async fn accept(&self) -> Result<(Box<dyn Transport>, SocketAddr)> {
        let mut failures = 0;
        loop {
            if let Some(accepted) = self.accepted.borrow_mut().pop_front() {
                return Ok(accepted);
            }
            // In each turn of the event loop, only one call receives datagrams of unknown peers, so
            // the carriers get their turns even during a flood.
            tokio::task::yield_now().await;
            self.socket.readable().await?;
            let mut datagrams = VecDeque::new();
            let received = self
                .socket
                .receive(|from, to, bytes| datagrams.push_back(datagram(from, to, bytes)));
            match received {
                Err(error) if error.kind() != ErrorKind::WouldBlock => {
                    failures += 1;
                    if failures > FAILURES_MAX {
                        return Err(error);
                    }
                }
                Err(_) => {}
                Ok(_) => failures = 0,
            }
            let mut strays = 0;
            while let Some(datagram) = datagrams.pop_front() {
                match self.handle(&datagram) {
                    Ok(others) if strays < WAITING_MAX => {
                        strays += others.len();
                        datagrams.extend(others);
                    }
                    Ok(_) => {}
                    Err(error) => return Err(error),
                }
            }
        }
    }

    /// Handles a datagram. Returns datagrams that belong to other connections.
    fn handle(&self, datagram: &Datagram) -> Result<Vec<Datagram>> {
        let none = Ok(Vec::new());
        let (from, to) = (datagram.from, datagram.to);
        let Some(opening) = kcp::opening(&datagram.bytes) else {
            return none;
        };
        let (Opening::Begins { conversation }
        | Opening::Answers { conversation, .. }
        | Opening::GoesOn { conversation, .. }) = opening;
        match self.peers.deliver(from, conversation, &datagram.bytes) {
            // An address may have only one conversation at a time.
            Whose::Delivered | Whose::Other => return none,
            Whose::Nobodys => {}
        }
        match opening {
            Opening::GoesOn { secret, .. } => {
                if let Some(secret) = secret
                    && self.may_answer(&self.resets, from)
                {
                    let reset = kcp::reset(conversation, secret);
                    self.socket.send_one(from, to, &reset);
                }
                none
            }
            Opening::Answers { answer, .. } if self.peers.is_answer(from, conversation, answer) => {
                self.take_in(datagram, conversation)
            }
            // The peer repeats its first segment, which causes another challenge.
            Opening::Answers { .. } => none,
            Opening::Begins { .. } => {
                if self.may_answer(&self.challenges, from) {
                    let secret = self.peers.challenge(from, conversation);
                    let challenge = kcp::challenge(conversation, secret);
                    self.socket.send_one(from, to, &challenge);
                }
                none
            }
        }
    }

    fn may_answer(&self, answers: &RefCell<AnswerLimiter>, to: SocketAddr) -> bool {
        answers.borrow_mut().permits(driven::now(), to.ip())
    }

    fn take_in(&self, first: &Datagram, conversation: u32) -> Result<Vec<Datagram>> {
        if self.accepted.borrow().len() >= WAITING_MAX {
            return Ok(Vec::new());
        }
        let Some(known) = self.peers.admit(first.from, conversation) else {
            return Ok(Vec::new());
        };
        // Uses the address to which the datagram was sent, so that answers have the expected
        // source.
        let own = match first.to {
            Some(to) if to.is_ipv4() == self.address.is_ipv4() => to,
            _ => self.address.ip(),
        };
        let udp = socket::bind((own, self.address.port()).into(), true)?;
        if open_files::check(&udp, Use::Carrier).is_err() {
            return Ok(Vec::new());
        }
        udp.connect(first.from)?;
        let socket = Socket::new(udp)?;
        let now = driven::now();
        let settings = self.windows.settings();
        let names = (conversation, rand::random());
        let mut connection = Connection::new(names, settings, UNPROVED, now, 0);
        connection.handle(now, &first.bytes);
        let mut others = Vec::new();
        // Reads datagrams that arrived before the socket was connected. The socket's readiness is
        // unknown, so each read is a system call.
        for _ in 0..WAITING_MAX {
            let mut count = 0;
            let received = socket.receive_now(|from, to, bytes| {
                count += 1;
                if from == first.from {
                    connection.handle(now, bytes);
                } else {
                    others.push(datagram(from, to, bytes));
                }
            });
            if received.is_err() || count == 0 {
                break;
            }
        }
        let state = State::new(connection, socket, first.from, Some(known));
        let kcp: Box<dyn Transport> = Box::new(Kcp::of(state, self.windows));
        self.accepted.borrow_mut().push_back((kcp, first.from));
        Ok(others)
    }
}

fn parsed(address: &str) -> Result<SocketAddr> {
    let parsed = address.parse().map(canonical);
    parsed.map_err(|_| Error::new(ErrorKind::InvalidInput, "not ADDRESS:PORT"))
}

fn datagram(from: SocketAddr, to: Option<IpAddr>, bytes: &[u8]) -> Datagram {
    Datagram {
        from,
        to,
        bytes: bytes.to_vec(),
    }
}
