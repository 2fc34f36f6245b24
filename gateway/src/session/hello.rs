//! Determines whether a carrier that an exit accepted starts a session or joins an existing
//! session.
//!
//! This module only reads the hello; the session validates it. If the first bytes of a carrier are
//! a hello that joins an existing session, the carrier joins this session. Any other carrier starts
//! a new session. If the first bytes are invalid, the new session refuses the carrier.

use std::pin::pin;
use std::time::Duration;

use muxtunnel_gateway_config::Protocol;
use muxtunnel_proto::native::SessionCode;
use muxtunnel_proto::native::codec::{self, Decoded, Frame, HEADER_BYTES};
use muxtunnel_proto::{SessionError, patience};

use crate::base::patience::Patience;
use crate::io::carrier::Carrier;
use crate::io::duplex;
use crate::io::quic::CloseCode;
use crate::io::transport::Transport;
use crate::session::end::SessionEnd;
use crate::session::http2::{GOES_AWAY, PREFACE};

/// Maximum time until the hello is complete, on ordinary paths.
pub(crate) const HELLO_MAX: Duration = Duration::from_secs(5);
/// Maximum length of a hello; a longer hello is invalid.
const HELLO_BYTES_MAX: usize = HEADER_BYTES + 1024;
/// Maximum time to send the refusal of a carrier, on ordinary paths.
const REFUSAL_MAX: Duration = Duration::from_secs(1);

/// Advice on what to check after a carrier ended during the hello.
pub(crate) const fn advice(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Native => {
            "do both ends speak the native protocol? If the other end is jetsocat, this end needs protocol JMUX \
             (--protocol JMUX; carrier.protocol: JMUX)"
        }
        Protocol::Jmux => "is the peer jetsocat, or a gateway with protocol JMUX?",
        Protocol::Quic => {
            "does the peer use protocol QUIC? With security Certificates, does the peer list a name of this gateway's \
             certificate among its peers?"
        }
        Protocol::Http3 => {
            "does the peer support HTTP/3 and accept CONNECT? With security Certificates, does the peer list a name of this \
             gateway's certificate?"
        }
        Protocol::Ssh => "is the peer ssh, sshd or a gateway with protocol SSH?",
        Protocol::Http2 | Protocol::Hbone => {
            "does the other end speak HTTP/2 and accept CONNECT? With security None at both ends, HTTP/2 has to begin \
             without an upgrade"
        }
    }
}

/// The first bytes of a carrier.
#[derive(Debug, Default)]
pub(crate) struct Greeting {
    /// The bytes that were read.
    pub(crate) unread: Vec<u8>,
    /// The session that the carrier joins.
    pub(crate) joins: Option<[u8; 16]>,
    /// Whether the first bytes decode as a hello.
    pub(crate) is_hello: bool,
}

/// Reads the hello within `patience`.
///
/// # Errors
/// The carrier ended, or sent no hello in time. With the native protocol, the peer is told about
/// the timeout.
pub(crate) async fn read(
    carrier: &dyn Transport,
    protocol: Protocol,
    patience: &Patience,
) -> Result<Greeting, SessionEnd> {
    let read = async {
        match protocol {
            Protocol::Native => native(carrier).await,
            Protocol::Http2 | Protocol::Hbone => preface(carrier).await,
            Protocol::Jmux | Protocol::Quic | Protocol::Http3 | Protocol::Ssh => {
                Ok(Greeting::default())
            }
        }
    };
    let mut read = pin!(read);
    match patience.within(read.as_mut()).await {
        Ok(greeting) => greeting,
        Err(_) => {
            let error = SessionError::HelloTimeout;
            if protocol == Protocol::Native {
                refuse(carrier, SessionCode::HelloTimeout, &error.to_string()).await;
            }
            Err(error.into())
        }
    }
}

/// Whether the side that connects sends the first bytes of this protocol.
pub(crate) fn is_said(protocol: Protocol) -> bool {
    protocol != Protocol::Jmux
}

/// Reads the connection preface of an HTTP/2 client.
async fn preface(carrier: &dyn Transport) -> Result<Greeting, SessionEnd> {
    let mut bytes = [0; PREFACE.len()];
    let mut filled = 0;
    while filled < bytes.len() && PREFACE.starts_with(&bytes[..filled]) {
        match duplex::read(carrier, &mut bytes[filled..]).await? {
            0 => return Err(SessionEnd::Closed),
            length => filled += length,
        }
    }
    if bytes != *PREFACE {
        let text = "not HTTP/2: the connection does not begin with the connection preface";
        return Err(SessionEnd::Protocol(SessionError::Foreign(text.to_owned())));
    }
    Ok(Greeting {
        unread: bytes.to_vec(),
        joins: None,
        is_hello: true,
    })
}

async fn native(carrier: &dyn Transport) -> Result<Greeting, SessionEnd> {
    let mut bytes = [0; HELLO_BYTES_MAX];
    let mut filled = 0;
    loop {
        let (joins, is_hello) = match codec::decode(&bytes[..filled]) {
            Ok(Decoded::Incomplete { needed }) if needed <= HELLO_BYTES_MAX => {
                match duplex::read(carrier, &mut bytes[filled..]).await? {
                    0 => return Err(SessionEnd::Closed),
                    length => filled += length,
                }
                continue;
            }
            Ok(Decoded::Frame {
                frame: Frame::Hello(hello),
                ..
            }) => (Some(hello.session_id).filter(|id| *id != [0; 16]), true),
            _ => (None, false),
        };
        let unread = bytes[..filled].to_vec();
        return Ok(Greeting {
            unread,
            joins,
            is_hello,
        });
    }
}

/// Refuses a carrier that joins an unknown session.
pub(crate) async fn refuse_unknown(carrier: Carrier) {
    let text = "the session to join was not found";
    match carrier {
        Carrier::Bytes(carrier) => refuse(&*carrier, SessionCode::UnknownSession, text).await,
        Carrier::Quic(connection) => connection.close(CloseCode::Refused, text),
        Carrier::Ssh(connection) => connection.close(text).await,
    }
}

/// Refuses a carrier because this exit is shutting down.
pub(crate) async fn turn_away(carrier: Carrier, protocol: Protocol) {
    let text = "this exit is shutting down";
    match (carrier, protocol) {
        (Carrier::Quic(connection), _) => connection.close(CloseCode::GoingAway, text),
        (Carrier::Ssh(connection), _) => connection.close(text).await,
        (Carrier::Bytes(carrier), Protocol::Native) => {
            refuse(&*carrier, SessionCode::NoError, text).await;
        }
        (Carrier::Bytes(carrier), Protocol::Http2 | Protocol::Hbone) => {
            say(&*carrier, &GOES_AWAY).await;
        }
        // These protocols cannot send a refusal at this point.
        (Carrier::Bytes(_), Protocol::Jmux | Protocol::Quic | Protocol::Http3 | Protocol::Ssh) => {}
    }
}

/// Sends the reason, and waits until the peer has read it.
async fn refuse(carrier: &dyn Transport, code: SessionCode, reason: &str) {
    let frame = codec::encode(&Frame::SessionClose {
        code: code as u64,
        reason: reason.to_owned(),
    });
    say(carrier, &frame).await;
}

async fn say(carrier: &dyn Transport, bytes: &[u8]) {
    let say = async {
        duplex::write_all(carrier, bytes).await?;
        carrier.finish()?;
        let mut discarded = [0; HELLO_BYTES_MAX];
        while duplex::read(carrier, &mut discarded).await? > 0 {}
        std::io::Result::Ok(())
    };
    let limit = patience(REFUSAL_MAX, carrier.round_trip().unwrap_or_default());
    let _ = tokio::time::timeout(limit, say).await;
}
