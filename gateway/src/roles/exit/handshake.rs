//! Handshakes of connections, each with a permit of the limiter, and their errors.

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use muxtunnel_codes::Code;
use muxtunnel_gateway_config::Protocol;

use super::Exit;
use crate::base::handshake_limiter::{Dropped, has_gone};
use crate::base::patience::Patience;
use crate::io::carrier::Carrier;
use crate::io::key_refusal::KeyRefusal;
use crate::io::security::PROOF_MAX;
use crate::io::transport::{Part, Transport, Upgrade};
use crate::session::end::SessionEnd;
use crate::session::hello::{self, Greeting, HELLO_MAX};

/// Why a connection did not become a carrier.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandshakeError {
    #[error("{0}")]
    Unproved(#[from] std::io::Error),
    #[error("{0}")]
    Silent(SessionEnd),
    #[error(
        "evicted: too many connections have not completed their handshake, and this connection was the oldest from its address"
    )]
    Evicted,
    #[error(transparent)]
    Dropped(#[from] Dropped),
}

impl HandshakeError {
    /// The code of the report.
    pub(super) fn code(&self) -> Code {
        let code = match self {
            Self::Unproved(error) => KeyRefusal::code_of(error),
            Self::Silent(_) | Self::Evicted | Self::Dropped(_) => None,
        };
        code.unwrap_or(Code::CarrierRefused)
    }
}

/// Whether the handshake counts as failed, because of wrong credentials, invalid bytes or a
/// timeout. A connection that only closes is the probe of a load balancer and no failure. Evicted
/// connections and connections that were dropped early do not count here, because the limiter
/// counts them itself.
pub(super) fn is_failure<T>(proved: &Result<T, HandshakeError>) -> bool {
    match proved {
        Err(HandshakeError::Unproved(error)) => !has_gone(error),
        Err(HandshakeError::Silent(SessionEnd::Protocol(_))) => true,
        Ok(_)
        | Err(HandshakeError::Silent(_) | HandshakeError::Evicted | HandshakeError::Dropped(_)) => {
            false
        }
    }
}

impl Exit {
    /// Verifies the peer, and reads its hello if `says_hello`.
    ///
    /// # Errors
    /// The peer did not prove its identity, or sent no hello in time.
    pub(super) async fn hear(
        &self,
        tcp: Box<dyn Transport>,
        says_hello: bool,
    ) -> Result<(Box<dyn Transport>, Greeting), HandshakeError> {
        let credentials = Arc::clone(&self.worker.credentials.borrow());
        let upgrade = match (&self.web_socket, self.takes_any) {
            (Some(web_socket), true) => Upgrade::Asked(web_socket),
            (Some(web_socket), false) => Upgrade::Always(web_socket),
            (None, _) => Upgrade::Never,
        };
        let runs = (self.session.protocol, upgrade);
        let patience = self.patience(PROOF_MAX, &*tcp);
        let carrier = credentials.secure(tcp, Part::Accepts, runs, &patience);
        let carrier = carrier.await?;
        let greeting = match says_hello {
            true => {
                let patience = self.patience(HELLO_MAX, &*carrier);
                let greeting = hello::read(&*carrier, self.session.protocol, &patience);
                greeting.await.map_err(HandshakeError::Silent)?
            }
            false => Greeting::default(),
        };
        Ok((carrier, greeting))
    }

    /// The time limit of an unauthenticated peer for a step that takes at most `ordinary` on ordinary
    /// paths.
    pub(super) fn patience(&self, ordinary: Duration, peer: &dyn Transport) -> Patience {
        Patience::with_stranger(ordinary, peer.round_trip(), &self.handover.limiter)
    }

    /// Runs the handshake `proof` while holding a permit, and reports the result to the limiter.
    /// `source` is the address that the limiter counts; `None`: the connection has no client
    /// address. For `fails`, see [`is_failure`].
    ///
    /// `proof` remains in the caller's future. If `proof` were passed by value, the future of each
    /// connection would contain it three times: as a variable of the caller, as an argument, and as
    /// the polled future. There are thousands of such futures.
    ///
    /// # Errors
    /// The handshake failed, the connection was evicted, or it was dropped early, before `proof`
    /// was polled.
    pub(super) async fn prove<T, E: Into<HandshakeError>>(
        &self,
        source: Option<IpAddr>,
        proof: Pin<&mut impl Future<Output = Result<T, E>>>,
        fails: impl FnOnce(&Result<T, HandshakeError>) -> bool,
    ) -> Result<T, HandshakeError> {
        let mut permit = self.handover.limiter.enter(source)?;
        let proved = tokio::select! {
            biased;
            proved = proof => proved.map_err(Into::into),
            () = permit.evicted() => Err(HandshakeError::Evicted),
        };
        if fails(&proved) {
            permit.failed();
        } else if proved.is_ok() {
            permit.succeeded();
        }
        proved
    }
}

/// Refuses a carrier whose session is unknown or has ended.
pub(super) fn refuse(carrier: Carrier) {
    tracing::info!(
        peer = carrier.peer(),
        "Carrier refused because its session is unknown or has ended"
    );
    drop(tokio::task::spawn_local(hello::refuse_unknown(carrier)));
}

/// Refuses a carrier that would start a session, since the exit accepts no further sessions.
pub(super) fn turn_away(carrier: Carrier, protocol: Protocol) {
    drop(tokio::task::spawn_local(hello::turn_away(
        carrier, protocol,
    )));
}
