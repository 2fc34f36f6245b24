//! The ports that an exit listens on for entries, of all its workers.
//!
//! Each worker has a socket of its own on a port (SO_REUSEPORT), and the first one sees to it that no
//! other process has it. Bounded by what sessions may ask for; never on the way of a byte.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::net::TcpListener;

use crate::process::{WorkerError, check_free, listen_shared};

/// How many workers have a port.
#[derive(Debug, Default)]
pub(crate) struct Claims(Mutex<BTreeMap<SocketAddr, usize>>);

/// One worker's part of a port.
#[derive(Debug)]
pub(crate) struct Claimed {
    // The order counts: the port is given back once it is closed.
    pub(crate) socket: TcpListener,
    _claim: Claim,
}

#[derive(Debug)]
struct Claim {
    claims: Arc<Claims>,
    address: SocketAddr,
}

impl Claims {
    /// Listens; must be called on the worker.
    ///
    /// # Errors
    /// [`WorkerError`]: another process has the port, or it cannot be had.
    pub(crate) fn listen(self: &Arc<Self>, address: SocketAddr) -> Result<Claimed, WorkerError> {
        let mut claims = self.all();
        let text = address.to_string();
        if !claims.contains_key(&address) {
            check_free(&text)?;
        }
        let socket = listen_shared(&text)?;
        *claims.entry(address).or_default() += 1;
        let claim = Claim {
            claims: Arc::clone(self),
            address,
        };
        Ok(Claimed {
            socket,
            _claim: claim,
        })
    }

    /// A poisoned lock only means that a panicking thread held it; the counts are still counts.
    fn all(&self) -> MutexGuard<'_, BTreeMap<SocketAddr, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut claims = self.claims.all();
        if let Some(count) = claims.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                claims.remove(&self.address);
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
        let claims = Arc::new(Claims::default());
        assert!(claims.listen(address).is_err(), "another one has it");
        drop(other);
        let first = claims.listen(address).unwrap();
        let second = claims.listen(address).unwrap();
        assert!(check_free(&address.to_string()).is_err());
        drop(first);
        assert_eq!(claims.all().get(&address), Some(&1));
        drop(second);
        assert!(claims.all().is_empty() && check_free(&address.to_string()).is_ok());
    }
}
