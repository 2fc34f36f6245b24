//! The ports that an exit listens on for entries, shared by all its workers and by all sessions of one identity.
//!
//! Each worker has a socket of its own on a port (SO_REUSEPORT), and the first one sees to it that no
//! other process has it. A port belongs to the identity of its first asker until its last socket is closed. Bounded
//! by what sessions may ask for; never on the way of a byte.

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

/// The peer that a port belongs to.
#[derive(Debug)]
struct Holder {
    /// What its carriers proved; `None`: nothing.
    peer: Option<Box<str>>,
    /// Workers that have a socket for it.
    workers: usize,
}

/// Why a port cannot be listened on for a peer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SharedPortError {
    #[error("{code}: {0} is in use by a peer of another identity; ask for another port", code = Code::ListenRefused)]
    OtherPeer(SocketAddr),
    #[error(transparent)]
    Unavailable(#[from] ListenError),
}

/// One worker's part of a port.
#[derive(Debug)]
pub(crate) struct SharedListener {
    // The order counts: the port is given back once it is closed.
    pub(crate) socket: TcpListener,
    _registration: Registration,
}

#[derive(Debug)]
struct Registration {
    shared_ports: Arc<SharedPorts>,
    address: SocketAddr,
}

impl SharedPorts {
    /// Listens for the peer that proved the identity `peer`; must be called on the worker.
    ///
    /// # Errors
    /// [`SharedPortError`]: another peer or another process has the port, or it cannot be had.
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

    /// Whether a peer has `address`.
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
            "another one has it"
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
