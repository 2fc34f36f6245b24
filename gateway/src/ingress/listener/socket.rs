//! The listening sockets of a forward.

use std::rc::Rc;
use std::sync::Arc;

use muxtunnel_gateway_config::UNIX_PREFIX;
use tokio::net::{TcpListener, UnixListener};

use super::unix::{Bound, UnixListeners};
use crate::io::local_socket::{LocalAddress, LocalSocket};
use crate::net::bind::{ListenError, listen_shared};

/// A listening socket of this worker. The kernel distributes clients among the workers.
pub(crate) enum ListeningSocket {
    Tcp(TcpListener),
    Unix {
        listener: UnixListener,
        path: Rc<str>,
        /// Keeps the socket open. All workers share the socket, and the last worker closes it.
        _bound: Arc<Bound>,
    },
}

impl ListeningSocket {
    /// Listens on `address`: `addr:port` or `unix:/path`.
    ///
    /// # Errors
    /// The system's error, with the address.
    pub(crate) fn bind(address: &str, unix: &UnixListeners) -> Result<Self, ListenError> {
        let Some(path) = address.strip_prefix(UNIX_PREFIX) else {
            return listen_shared(address).map(Self::Tcp);
        };
        let listen = || {
            let bound = unix.bind(path)?;
            Ok(Self::Unix {
                listener: UnixListener::from_std(bound.listener()?)?,
                path: path.into(),
                _bound: bound,
            })
        };
        listen().map_err(|source| ListenError::new(address, source))
    }

    /// Accepts the next client.
    ///
    /// # Errors
    /// The error of accept(2).
    pub(crate) async fn accept(&self) -> std::io::Result<(LocalSocket, LocalAddress)> {
        match self {
            Self::Tcp(listener) => {
                let (tcp, address) = listener.accept().await?;
                Ok((tcp.into(), address.into()))
            }
            Self::Unix { listener, path, .. } => {
                let (unix, _) = listener.accept().await?;
                Ok((LocalSocket::Unix(unix), LocalAddress::Unix(Rc::clone(path))))
            }
        }
    }
}
