//! What the exit gives to entries that ask for it: the text of its configuration's `offer`, as a stream.
//!
//! To the session it is a target like others: a pair of Unix sockets, whose other end is served here. No rule is
//! asked, and nothing is resolved or dialled: with a search list, a name in `.invalid` could lead somewhere. Bounds:
//! one text of at most `OFFER_BYTES_MAX` a stream, and streams are bounded by `limits.streams`.

use muxtunnel_codes::Code;
use muxtunnel_gateway_config::OFFER_TARGET;
use muxtunnel_proto::Reason;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;

use crate::io::local_socket::{LocalAddress, LocalSocket};
use crate::net::dial::{DialError, Dialled};

/// Whether `target`, a URL, is no target but the offer.
pub(super) fn is_asked_for(target: &str) -> bool {
    target.strip_prefix("tcp://") == Some(OFFER_TARGET)
}

/// A connection that gives `offer` and ends in order; `peer`: who asks, as its carriers proved it.
///
/// # Errors
/// [`DialError`]: there is none, or it is not for who has proved nothing.
pub(super) fn give(offer: Option<&str>, peer: Option<&str>) -> Result<Dialled, DialError> {
    let refused = |text: &str| {
        let text = format!("{OFFER_TARGET}: {text}");
        DialError::new(Code::OpenRefused, Reason::NotAllowed, text)
    };
    let offer = offer.ok_or_else(|| refused("this exit offers nothing"))?;
    if peer.is_none() {
        return Err(refused("it is for peers that prove who they are"));
    }
    let (near, far) = UnixStream::pair().map_err(|error| {
        let text = format!("{OFFER_TARGET}: {error}");
        DialError::new(Code::OpenFailed, Reason::General, text)
    })?;
    tokio::task::spawn_local(serve(far, offer.to_owned()));
    Ok(Dialled {
        socket: Box::new(LocalSocket::Unix(near)),
        address: LocalAddress::Gateway,
        admission: None,
        url: None,
    })
}

/// Ends with the stream.
async fn serve(mut far: UnixStream, offer: String) {
    if far.write_all(offer.as_bytes()).await.is_ok() && far.shutdown().await.is_ok() {
        // One that closes with bytes unread is a failure to its other end, and so is one that takes no more.
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
