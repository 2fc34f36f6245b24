//! The ports on which an exit listens for entries. All workers, and all sessions of one identity,
//! share these ports.
//!
//! Each worker has its own socket on a port (SO_REUSEPORT). The first socket of a port checks that
//! no other process uses the port. A port belongs to the identity that requested it first, until
//! its last socket is closed. The limits of sessions bound the number of ports. The data path does
//! not use this table.
//!
//! The kernel distributes connections without regard to the workers' sessions. A worker whose
//! sessions do not answer hands its connections to the other workers ([`Registration::hand_on`]).
//! Bounds: [`HANDED_MAX`] connections wait for one worker's socket. A further connection stays with
//! its worker.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use muxtunnel_codes::Code;
use parking_lot::{Mutex, MutexGuard};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::sync::mpsc::{self, Receiver, Sender};

use crate::net::bind::{ListenError, check_free, listen_shared};

/// The ports, by address.
#[derive(Debug, Default)]
pub(crate) struct SharedPorts(Mutex<BTreeMap<SocketAddr, Holder>>);

/// Maximum number of connections that wait for one worker's socket on a port.
const HANDED_MAX: usize = 64;

/// The peer that holds a port.
#[derive(Debug)]
struct Holder {
    /// The identity that the peer's carriers proved; `None`: the peer proved no identity.
    peer: Option<Box<str>>,
    /// The workers' sockets on the port, by number.
    sockets: BTreeMap<u64, Socket>,
    /// The number of the next socket.
    next: u64,
}

/// How the other workers reach the worker of a socket.
#[derive(Debug)]
struct Socket {
    handed: Sender<Handed>,
    newcomer: Arc<Notify>,
}

/// A connection that needs a session that answers.
#[derive(Debug)]
pub(crate) struct Handed {
    pub(crate) tcp: std::net::TcpStream,
    pub(crate) client: SocketAddr,
    /// The sockets of the workers that have no session that answers.
    pub(crate) seen: BTreeSet<u64>,
    /// The first of these sockets whose worker has a session. If no session answers, this session
    /// gets the connection.
    pub(crate) last_resort: Option<u64>,
}

/// Why an exit cannot listen on a port for a peer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SharedPortError {
    #[error("{code}: {0} is in use by a peer of another identity; request another port", code = Code::ListenRefused)]
    OtherPeer(SocketAddr),
    #[error(transparent)]
    Unavailable(#[from] ListenError),
}

/// One worker's socket on a shared port.
#[derive(Debug)]
pub(crate) struct SharedListener {
    // Field order matters: the socket must be closed before the port is released.
    pub(crate) socket: TcpListener,
    /// Connections from the other workers.
    pub(crate) handed: Receiver<Handed>,
    /// Notified when another worker has a further session of the peer that requested the port.
    pub(crate) newcomer: Arc<Notify>,
    pub(crate) registration: Rc<Registration>,
}

/// The place of one worker's socket in the table.
#[derive(Debug)]
pub(crate) struct Registration {
    shared_ports: Arc<SharedPorts>,
    address: SocketAddr,
    /// The number of the socket.
    pub(crate) number: u64,
}

impl SharedPorts {
    /// Listens for the peer with the identity `peer`. Call this function on the worker.
    ///
    /// # Errors
    /// [`SharedPortError`]: another peer or another process holds the port, or the system refused
    /// the port.
    pub(crate) fn listen(
        self: &Arc<Self>,
        address: SocketAddr,
        peer: Option<&str>,
    ) -> Result<SharedListener, SharedPortError> {
        let mut ports = self.all();
        let text = address.to_string();
        match ports.get(&address) {
            Some(holder) if holder.peer.as_deref() != peer => {
                return Err(SharedPortError::OtherPeer(address));
            }
            Some(_) => {}
            None => check_free(&text)?,
        }
        let socket = listen_shared(&text)?;
        let holder = ports.entry(address).or_insert_with(|| Holder {
            peer: peer.map(Into::into),
            sockets: BTreeMap::new(),
            next: 0,
        });
        let (sender, handed) = mpsc::channel(HANDED_MAX);
        let newcomer = Arc::new(Notify::new());
        let number = holder.next;
        holder.next += 1;
        let socket_of_worker = Socket {
            handed: sender,
            newcomer: Arc::clone(&newcomer),
        };
        holder.sockets.insert(number, socket_of_worker);
        let registration = Registration {
            shared_ports: Arc::clone(self),
            address,
            number,
        };
        Ok(SharedListener {
            socket,
            handed,
            newcomer,
            registration: Rc::new(registration),
        })
    }

    /// Whether a peer holds `address`.
    pub(crate) fn is_taken(&self, address: SocketAddr) -> bool {
        self.all().contains_key(&address)
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<SocketAddr, Holder>> {
        self.0.lock()
    }
}

impl Registration {
    /// Hands a connection to a worker that has not seen it. If every worker has seen it, hands it to
    /// its last resort. `has_session`: whether this worker has a session, which does not answer.
    ///
    /// # Errors
    /// The connection, if it stays with this worker.
    pub(crate) fn hand_on(&self, mut handed: Handed, has_session: bool) -> Result<(), Handed> {
        if !handed.seen.insert(self.number) {
            return Err(handed);
        }
        if has_session {
            handed.last_resort.get_or_insert(self.number);
        }
        let ports = self.shared_ports.all();
        let Some(holder) = ports.get(&self.address) else {
            return Err(handed);
        };
        let unseen = |number: &&u64| !handed.seen.contains(number);
        let others: Vec<u64> = holder.sockets.keys().filter(unseen).copied().collect();
        let last_resort = handed.last_resort.filter(|number| *number != self.number);
        for number in others.into_iter().chain(last_resort) {
            let Some(socket) = holder.sockets.get(&number) else {
                continue;
            };
            match socket.handed.try_send(handed) {
                Ok(()) => return Ok(()),
                Err(error) => handed = error.into_inner(),
            }
        }
        Err(handed)
    }

    /// Tells the other workers that a further session of the peer has requested the port.
    pub(crate) fn tell_others(&self) {
        let ports = self.shared_ports.all();
        if let Some(holder) = ports.get(&self.address) {
            let others = holder.sockets.iter();
            let others = others.filter(|(number, _)| **number != self.number);
            others.for_each(|(_, socket)| socket.newcomer.notify_one());
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut ports = self.shared_ports.all();
        if let Some(holder) = ports.get_mut(&self.address) {
            holder.sockets.remove(&self.number);
            if holder.sockets.is_empty() {
                ports.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn workers_share_a_port_that_no_other_process_has() {
        let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = other.local_addr().unwrap();
        let shared_ports = Arc::new(SharedPorts::default());
        assert!(
            shared_ports.listen(address, None).is_err(),
            "another process has the port"
        );
        drop(other);
        let first = shared_ports.listen(address, None).unwrap();
        let second = shared_ports.listen(address, None).unwrap();
        assert!(check_free(&address.to_string()).is_err());
        drop(first);
        assert_eq!(shared_ports.all()[&address].sockets.len(), 1);
        drop(second);
        assert!(shared_ports.all().is_empty() && check_free(&address.to_string()).is_ok());
    }

    #[tokio::test]
    async fn a_port_is_its_first_askers_until_its_last_socket_is_closed() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let shared_ports = Arc::new(SharedPorts::default());
        let first = shared_ports.listen(address, Some("one")).unwrap();
        for stranger in [Some("two"), None] {
            let error = shared_ports.listen(address, stranger).unwrap_err();
            assert!(matches!(error, SharedPortError::OtherPeer(_)), "{error}");
        }
        let second = shared_ports.listen(address, Some("one")).unwrap();
        drop(first);
        assert!(shared_ports.listen(address, Some("two")).is_err());
        drop(second);
        assert!(shared_ports.listen(address, Some("two")).is_ok());
    }

    fn handed() -> Handed {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let client = listener.local_addr().unwrap();
        let tcp = std::net::TcpStream::connect(client).unwrap();
        Handed {
            tcp,
            client,
            seen: BTreeSet::new(),
            last_resort: None,
        }
    }

    #[tokio::test]
    async fn a_connection_visits_each_worker_once_and_ends_where_a_session_is() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let shared_ports = Arc::new(SharedPorts::default());
        let listen = || shared_ports.listen(address, None).unwrap();
        let mut workers = [listen(), listen(), listen()];
        let mut next = handed();
        // Only the worker in the middle has a session.
        for (worker, has_session) in [(1, true), (0, false), (2, false)] {
            let registration = &workers[worker].registration;
            assert!(registration.hand_on(next, has_session).is_ok(), "{worker}");
            let arrived = workers
                .iter_mut()
                .find_map(|worker| worker.handed.try_recv().ok());
            next = arrived.unwrap();
        }
        assert_eq!(next.seen.len(), 3);
        let stays = workers[1].registration.hand_on(next, true);
        assert!(stays.is_err(), "the last resort hands the connection on");
    }

    #[tokio::test]
    async fn connections_that_wait_for_a_worker_are_bounded() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let shared_ports = Arc::new(SharedPorts::default());
        let own = shared_ports.listen(address, None).unwrap();
        assert!(own.registration.hand_on(handed(), true).is_err());
        let other = shared_ports.listen(address, None).unwrap();
        own.registration.tell_others();
        other.newcomer.notified().await;
        for _ in 0..HANDED_MAX {
            assert!(own.registration.hand_on(handed(), true).is_ok());
        }
        assert!(own.registration.hand_on(handed(), true).is_err());
    }
}
