//! Carriers over UDP.
//!
//! Each worker keeps the carriers of its socket, so no carrier is passed to another worker. The
//! source address of a datagram can be forged. So failures of a connection count against the
//! address only after the client has proved that the address is its own. Once [`UNVALIDATED_MAX`]
//! handshakes are in progress, the exit stores no state for a client before the client has proved
//! its address (Retry, RFC 9000, section 8.1.2).

use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use muxtunnel_gateway_config::SessionConfig;

use super::Exit;
use super::handshake::is_failure;
use crate::base::patience::Patience;
use crate::io::carrier::Carrier;
use crate::io::quic::{Attempt, CloseCode, Connection, Listener};
use crate::io::security::PROOF_MAX;
use crate::net::bind::ListenError;
use crate::roles::worker::{Worker, WorkerError};
use crate::session::handover::Use;

/// Maximum number of concurrent handshakes without address validation. More handshakes require
/// validation, which costs a client one round trip.
const UNVALIDATED_MAX: usize = 32;

/// Opens one worker's listener on `address`.
///
/// # Errors
/// The system's error, with the address.
pub(super) fn listen(
    worker: &Worker,
    address: &str,
    (session, carriers_max): (&SessionConfig, usize),
) -> Result<Listener, WorkerError> {
    let place = (worker.index, worker.workers);
    let socket = worker.datagram_sockets.of(address, place)?;
    let credentials = Arc::clone(&worker.credentials.borrow());
    let listener = Listener::new(socket, place, (session, carriers_max), &credentials);
    listener.map_err(|source| ListenError::new(address, source).into())
}

/// Accepts carriers. After the exit stops accepting sessions, refuses new carriers, so that entries
/// dial another exit. Returns only if the socket can no longer be used.
pub(super) async fn accept(exit: Rc<Exit>, listener: Listener) -> WorkerError {
    loop {
        let attempt = match listener.next().await {
            Ok(attempt) => attempt,
            Err(source) => {
                let address = listener.address().map(|address| address.to_string());
                return ListenError::new(&address.unwrap_or_default(), source).into();
            }
        };
        let is_new = exit.handover.limiter.taken() >= UNVALIDATED_MAX && !attempt.is_validated();
        if exit.is_closed() {
            attempt.refuse();
        } else if is_new {
            attempt.retry();
        } else {
            drop(tokio::task::spawn_local(greet(Rc::clone(&exit), attempt)));
        }
    }
}

/// Authenticates a connection.
async fn greet(exit: Rc<Exit>, attempt: Attempt) {
    let (peer, is_validated) = (attempt.peer(), attempt.is_validated());
    let credentials = Arc::clone(&exit.worker.credentials.borrow());
    let secured = {
        // Dropping the attempt refuses the connection.
        // The library reports no round trip before the handshake is complete.
        let patience = Patience::with_stranger(PROOF_MAX, None, &exit.handover.limiter);
        let secures = pin!(attempt.secure(&credentials, &patience));
        // Failures do not count against an address that is not validated.
        let fails = |secured: &Result<_, _>| is_validated && is_failure(secured);
        exit.prove(Some(peer.ip()), secures, fails).await
    };
    match secured {
        Ok(connection) => exit.admit(connection),
        Err(error) => exit.refused(error.code(), &peer.to_string(), &error),
    }
}

impl Exit {
    fn admit(self: &Rc<Self>, connection: Connection) {
        let carrier = Carrier::Quic(connection.clone());
        let source = connection.quic().remote_address().ip();
        let use_of_place = match carrier.identity() {
            Some(_) => Use::First,
            None => Use::Silent(Some(source)),
        };
        let Some(place) = self.place(carrier.identity(), use_of_place) else {
            return connection.close(CloseCode::Refused, "too many carriers");
        };
        if let Err(error) = self.take_up(carrier, Vec::new(), None, place) {
            tracing::warn!(%error, "Cannot set up a carrier");
        }
    }
}
