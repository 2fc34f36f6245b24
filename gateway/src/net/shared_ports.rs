//! The ports on which an exit listens for entries. All workers, and all sessions of one identity,
//! share these ports.
//!
//! Each worker has its own socket on a port (SO_REUSEPORT). The first socket of a port checks that
//! no other process uses the port. A port belongs to the identity that requested it first, until
//! its last socket is closed. The limits of sessions bound the number of ports. The data path does
//! not use this table.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use muxtunnel_codes::Code;
use parking_lot::{Mutex, MutexGuard};
use tokio::net::TcpListener;

use crate::net::bind::{ListenError, check_free, listen_shared};

/// The ports, by address.
#[derive(Debug, Default)]
pub(crate) struct SharedPorts(Mutex<BTreeMap<SocketAddr, Holder>>);

/// The peer that holds a port.
#[derive(Debug)]
struct Holder {
    /// The identity that the peer's carriers proved; `None`: the peer proved no identity.
    peer: Option<Box<str>>,
    /// Number of workers that have a socket on the port.
    workers: usize,
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
    _registration: Registration,
}

#[derive(Debug)]
struct Registration {
    shared_ports: Arc<SharedPorts>,
    address: SocketAddr,
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
            workers: 0,
        });
        holder.workers += 1;
        let registration = Registration {
            shared_ports: Arc::clone(self),
            address,
        };
        Ok(SharedListener {
            socket,
            _registration: registration,
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

impl Drop for Registration {
    fn drop(&mut self) {
        let mut ports = self.shared_ports.all();
        if let Some(holder) = ports.get_mut(&self.address) {
            holder.workers -= 1;
            if holder.workers == 0 {
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
        assert_eq!(shared_ports.all()[&address].workers, 1);
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
}
