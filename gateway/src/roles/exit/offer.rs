//! Sends the exit's `offer` to entries that request it, as the payload of a stream.
//!
//! The session treats the offer as an ordinary target: a pair of Unix sockets. This module serves
//! one end of the pair. The module evaluates no rule. The module does not resolve the offer's name,
//! which ends in `.invalid`, because the resolver's search list could complete the name to an
//! existing name. Bounds: one text of at most `OFFER_BYTES_MAX` per stream. `limits.streams` bounds
//! the number of streams.

use muxtunnel_codes::Code;
use muxtunnel_gateway_config::OFFER_TARGET;
use muxtunnel_proto::Reason;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;

use crate::base::open_files::{self, stream_pair};
use crate::io::local_socket::{LocalAddress, LocalSocket};
use crate::net::dial::{DialError, Dialled};

/// Whether the URL `target` requests the offer.
pub(super) fn is_asked_for(target: &str) -> bool {
    target.strip_prefix("tcp://") == Some(OFFER_TARGET)
}

/// Returns a connection that sends `offer` and ends in order. `peer` is the identity of the
/// requester.
///
/// # Errors
/// [`DialError`]: the exit has no offer, or the peer has not authenticated.
pub(super) fn give(offer: Option<&str>, peer: Option<&str>) -> Result<Dialled, DialError> {
    let refused = |text: &str| {
        let text = format!("{OFFER_TARGET}: {text}");
        DialError::new(Code::OpenRefused, Reason::NotAllowed, text)
    };
    let offer = offer.ok_or_else(|| refused("this exit has no offer"))?;
    if peer.is_none() {
        return Err(refused(
            "the offer is available only to peers with a certificate",
        ));
    }
    let (near, far) = stream_pair().map_err(|error| {
        let text = format!("{OFFER_TARGET}: {error}");
        DialError::new(open_files::code(&error), Reason::General, text)
    })?;
    tokio::task::spawn_local(serve(far, offer.to_owned()));
    Ok(Dialled {
        socket: Box::new(LocalSocket::Unix(near)),
        address: LocalAddress::Gateway,
        admission: None,
        url: None,
    })
}

/// Sends the offer, and ends with the stream.
async fn serve(mut far: UnixStream, offer: String) {
    if far.write_all(offer.as_bytes()).await.is_ok() && far.shutdown().await.is_ok() {
        // A peer that closes with unread bytes, or stops reading, causes an error only at its own
        // end.
        let _ = tokio::io::copy(&mut far, &mut tokio::io::sink()).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;
    use crate::io::duplex::ByteStream;

    #[test]
    fn it_is_for_peers_that_prove_who_they_are_and_refused_where_there_is_none() {
        for (offer, peer) in [(None, Some("entry")), (None, None), (Some("text"), None)] {
            let error = give(offer, peer).unwrap_err();
            assert_eq!(error.refusal.reason, Reason::NotAllowed, "{error:?}");
            assert_eq!(error.code, Code::OpenRefused);
        }
    }

    #[tokio::test(flavor = "local")]
    async fn who_says_more_than_it_has_to_gets_all_of_it_and_an_end() {
        let offer = "x".repeat(muxtunnel_gateway_config::OFFER_BYTES_MAX);
        let dialled = give(Some(&offer), Some("entry")).unwrap();
        let mut near = ByteStream(dialled.socket);
        let (mut text, mut bytes) = (String::new(), vec![0; 1 << 20]);
        near.write_all(&bytes).await.unwrap();
        near.read_to_string(&mut text).await.unwrap();
        assert!(text == offer);
        near.write_all(&bytes).await.unwrap();
        assert_eq!(near.read(&mut bytes).await.unwrap(), 0);
    }
}
