//! What a carrier that an exit accepted wants: a session of its own, or to join one.
//!
//! Only looked at: the session judges the hello, like everything else that it does not say here. So what
//! is not a hello that joins begins a session, which refuses it.

use std::time::Duration;

use muxtunnel_proto::SessionError;
use muxtunnel_proto::native::SessionCode;
use muxtunnel_proto::native::codec::{self, Decoded, Frame, HEADER_BYTES};

use crate::io::duplex;
use crate::io::transport::Transport;
use crate::session::end::SessionEnd;

/// How long the hello may take.
const HELLO_MAX: Duration = Duration::from_secs(5);
/// Its longest form: what is longer is none.
const HELLO_BYTES_MAX: usize = HEADER_BYTES + 1024;
/// How long the word to a carrier that is refused may take.
const REFUSAL_MAX: Duration = Duration::from_secs(1);

/// What to look at where a carrier ended before the hello was over.
pub(crate) const ADVICE: &str = "do both ends speak the native protocol? With a jetsocat at the other end this \
     one needs protocol Jmux (--protocol jmux; carrier.protocol: Jmux)";

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
pub(crate) async fn read(carrier: &dyn Transport) -> Result<Greeting, SessionEnd> {
    match tokio::time::timeout(HELLO_MAX, greeting(carrier)).await {
        Ok(greeting) => greeting,
        Err(_) => {
            let error = SessionError::HelloTimeout;
            refuse(carrier, SessionCode::HelloTimeout, &error.to_string()).await;
            Err(error.into())
        }
    }
}

async fn greeting(carrier: &dyn Transport) -> Result<Greeting, SessionEnd> {
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
pub(crate) async fn refuse_unknown(carrier: Box<dyn Transport>) {
    let text = "there is no such session to join";
    refuse(&*carrier, SessionCode::UnknownSession, text).await;
}

/// No more sessions are taken here.
pub(crate) async fn turn_away(carrier: Box<dyn Transport>) {
    let text = "this exit is shutting down";
    refuse(&*carrier, SessionCode::NoError, text).await;
}

/// Says why, and lets the peer read it.
async fn refuse(carrier: &dyn Transport, code: SessionCode, reason: &str) {
    let frame = codec::encode(&Frame::SessionClose {
        code: code as u64,
        reason: reason.to_owned(),
    });
    let say = async {
        duplex::write_all(carrier, &frame).await?;
        carrier.finish()?;
        let mut discarded = [0; HELLO_BYTES_MAX];
        while duplex::read(carrier, &mut discarded).await? > 0 {}
        std::io::Result::Ok(())
    };
    let _ = tokio::time::timeout(REFUSAL_MAX, say).await;
}
