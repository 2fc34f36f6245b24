//! What a carrier that an exit accepted wants: a session of its own, or to join one.
//!
//! Only looked at: the session judges the hello, like everything else that it does not say here. So what
//! is not a hello that joins begins a session, which refuses it.

use std::time::Duration;

use muxtunnel_gateway_config::Protocol;
use muxtunnel_proto::SessionError;
use muxtunnel_proto::native::SessionCode;
use muxtunnel_proto::native::codec::{self, Decoded, Frame, HEADER_BYTES};

use crate::io::carrier::Carrier;
use crate::io::duplex;
use crate::io::quic::CloseCode;
use crate::io::transport::Transport;
use crate::session::end::SessionEnd;
use crate::session::http2::{GOES_AWAY, PREFACE};

/// How long the hello may take.
pub(crate) const HELLO_MAX: Duration = Duration::from_secs(5);
/// Its longest form: what is longer is none.
const HELLO_BYTES_MAX: usize = HEADER_BYTES + 1024;
/// How long the word to a carrier that is refused may take.
const REFUSAL_MAX: Duration = Duration::from_secs(1);

/// What to look at where a carrier ended before the hello was over.
pub(crate) const fn advice(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Native => {
            "do both ends speak the native protocol? With a jetsocat at the other end this one needs protocol Jmux \
             (--protocol jmux; carrier.protocol: Jmux)"
        }
        Protocol::Jmux => "is the other end a jetsocat, or does it have protocol Jmux, too?",
        Protocol::Quic => {
            "does the other end list a name of this end's certificate among its peers, and have protocol QUIC, too?"
        }
        Protocol::Http3 => {
            "does the other end speak HTTP/3, and take CONNECT? Does it list a name of this end's certificate?"
        }
        Protocol::Ssh => "is the other end ssh, sshd or a gateway with protocol SSH?",
        Protocol::Http2 | Protocol::Hbone => {
            "does the other end speak HTTP/2, and take CONNECT? With security None at both ends it needs to begin \
             without an upgrade"
        }
    }
}

/// The beginning of a carrier.
#[derive(Debug, Default)]
pub(crate) struct Greeting {
    /// What has been read.
    pub(crate) unread: Vec<u8>,
    /// The session that it joins.
    pub(crate) joins: Option<[u8; 16]>,
    /// It is a hello, as far as can be seen here.
    pub(crate) is_hello: bool,
}

/// Reads the hello.
///
/// # Errors
/// The carrier ended, or did not say hello in time; it has been told.
pub(crate) async fn read(
    carrier: &dyn Transport,
    protocol: Protocol,
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
    match tokio::time::timeout(HELLO_MAX, read).await {
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

/// Whether those who connect have something to say first.
pub(crate) fn is_said(protocol: Protocol) -> bool {
    protocol != Protocol::Jmux
}

/// What an HTTP/2 client begins with.
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
        let text = "it is no HTTP/2: it does not begin with the connection preface";
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

/// There is no such session to join.
pub(crate) async fn refuse_unknown(carrier: Carrier) {
    let text = "there is no such session to join";
    match carrier {
        Carrier::Bytes(carrier) => refuse(&*carrier, SessionCode::UnknownSession, text).await,
        Carrier::Quic(connection) => connection.close(CloseCode::Refused, text),
        Carrier::Ssh(connection) => connection.close(text).await,
    }
}

/// No more sessions are taken here.
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
        // It has no word for it.
        (Carrier::Bytes(_), Protocol::Jmux | Protocol::Quic | Protocol::Http3 | Protocol::Ssh) => {}
    }
}

/// Says why, and lets the peer read it.
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
    let _ = tokio::time::timeout(REFUSAL_MAX, say).await;
}
