//! Where an exit's KCP connections come from: one UDP socket a worker, on the port of all.
//!
//! Who begins is challenged, of which nothing is kept; who has answered gets a connection with a socket of its own. The
//! kernel gives a listener its share of the addresses, which changes with each socket that is bound to the port: so
//! challenges have one secret for all workers, and a datagram of a connection that some worker has is handed to it.

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
use crate::io::local_socket::canonical;

/// Who has proved nothing has other time-outs; this one is for a dialler that has vanished.
pub(super) const UNPROVED: Keepalive = Keepalive {
    dead_after: Duration::from_secs(15),
    interval: Duration::from_secs(5),
    retries: 2,
};
/// Accepted connections that wait for the next call, and datagrams of others that their sockets had.
const WAITING_MAX: usize = 64;

/// A datagram, where it comes from and what it was sent to.
struct Datagram {
    from: SocketAddr,
    to: Option<IpAddr>,
    bytes: Vec<u8>,
}

/// One worker's part of a port.
#[derive(Debug)]
pub(crate) struct KcpListener {
    socket: Socket,
    address: SocketAddr,
    peers: Arc<KcpPeers>,
    windows: KcpWindows,
    accepted: RefCell<VecDeque<(Box<dyn Transport>, SocketAddr)>>,
}

impl KcpListener {
    /// Must be called on the worker.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn bind(address: &str, peers: Arc<KcpPeers>, windows: KcpWindows) -> Result<Self> {
        let socket = Socket::new(socket::bind(parsed(address)?, true)?)?;
        socket.buffers().report(address);
        Ok(Self {
            address: socket.local_address()?,
            socket,
            peers,
            windows,
            accepted: RefCell::default(),
        })
    }

    /// Whether the port is free of other processes.
    ///
    /// # Errors
    /// The system's: it is not.
    pub(crate) fn check_free(address: &str) -> Result<()> {
        socket::bind(parsed(address)?, false).map(drop)
    }

    /// Where it listens.
    #[cfg(test)]
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next connection, of an address where it has shown to be.
    ///
    /// # Errors
    /// The system's.
    pub(crate) async fn accept(&self) -> Result<(Box<dyn Transport>, SocketAddr)> {
        loop {
            if let Some(accepted) = self.accepted.borrow_mut().pop_front() {
                return Ok(accepted);
            }
            // A flood of strangers has one call's worth of a turn, as carriers have theirs.
            tokio::task::yield_now().await;
            self.socket.readable().await?;
            let mut datagrams = VecDeque::new();
            let received = self
                .socket
                .receive(|from, to, bytes| datagrams.push_back(datagram(from, to, bytes)));
            match received {
                Err(error) if error.kind() != ErrorKind::WouldBlock => {
                    // A word of the network about one of those who were answered.
                    tracing::trace!(%error, "Nothing is received");
                }
                _ => {}
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

    /// Returns datagrams that are for others.
    fn handle(&self, datagram: &Datagram) -> Result<Vec<Datagram>> {
        let none = Ok(Vec::new());
        let (from, to) = (datagram.from, datagram.to);
        let Some(opening) = kcp::opening(&datagram.bytes) else {
            return none;
        };
        let (Opening::Begins { conversation }
        | Opening::Answers { conversation, .. }
        | Opening::GoesOn { conversation }) = opening;
        match self.peers.deliver(from, conversation, &datagram.bytes) {
            // Two conversations of one address: it has to end the one before.
            Whose::Delivered | Whose::Other => return none,
            Whose::Nobodys => {}
        }
        match opening {
            Opening::GoesOn { .. } => {
                self.socket.send_one(from, to, &kcp::reset(conversation));
                none
            }
            Opening::Answers { answer, .. } if self.peers.is_answer(from, conversation, answer) => {
                self.take_in(datagram, conversation)
            }
            Opening::Begins { .. } | Opening::Answers { .. } => {
                let secret = self.peers.challenge(from, conversation);
                let challenge = kcp::challenge(conversation, secret);
                self.socket.send_one(from, to, &challenge);
                none
            }
        }
    }

    fn take_in(&self, first: &Datagram, conversation: u32) -> Result<Vec<Datagram>> {
        if self.accepted.borrow().len() >= WAITING_MAX {
            return Ok(Vec::new());
        }
        let Some(known) = self.peers.admit(first.from, conversation) else {
            return Ok(Vec::new());
        };
        // That of the datagram's destination, so that answers come from where they are expected.
        let own = match first.to {
            Some(to) if to.is_ipv4() == self.address.is_ipv4() => to,
            _ => self.address.ip(),
        };
        let udp = socket::bind((own, self.address.port()).into(), true)?;
        udp.connect(first.from)?;
        let socket = Socket::new(udp)?;
        let now = driven::now();
        let settings = self.windows.settings();
        let mut connection = Connection::new(conversation, settings, UNPROVED, now, 0);
        connection.handle(now, &first.bytes);
        let mut others = Vec::new();
        // What it got until it was connected. Its readiness is not known yet, so the kernel is asked.
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
