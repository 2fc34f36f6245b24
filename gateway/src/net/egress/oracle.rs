//! Properties of the exchange with a proxy, for any bytes that the proxy sends.
//!
//! A proxy that grants the connection loses no byte of the carrier, and the gateway takes no byte of
//! the carrier for an answer. An error never contains the password.

#![allow(clippy::expect_used, reason = "an oracle panics")]

use std::net::{Ipv4Addr, TcpListener as StdListener};

use super::*;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

const PASSWORD: &str = "correct horse";
/// What the carrier's peer sends first.
const CARRIED: &[u8] = b"\r\n\r\n\x05\x00HTTP/1.1 200 OK\r\n\r\n";

thread_local! {
    static RUNTIME: tokio::runtime::Runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    static LISTENER: StdListener = StdListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
}

/// The first byte of `input` selects the protocol, whether the gateway has a password, and the size
/// of the pieces in which the proxy sends the other bytes.
pub(crate) fn answer(input: &[u8]) {
    let Some((flags, answer)) = input.split_first() else {
        return;
    };
    let is_http = flags & 1 == 1;
    let user = (flags & 2 == 2).then(|| ("alice".to_owned(), PASSWORD.to_owned()));
    let piece = match flags >> 2 {
        0 => usize::MAX,
        size => size.into(),
    };
    RUNTIME.with(|runtime| {
        runtime.block_on(async {
            let pieces = answer.chunks(piece.min(answer.len()).max(1));
            let (result, rest) = converse(is_http, user.as_ref(), pieces).await;
            match result {
                Ok(()) => {
                    let all = [answer, CARRIED].concat();
                    assert!(all.ends_with(&rest), "bytes of the carrier are lost");
                    assert_granted(is_http, user.is_some(), &all[..all.len() - rest.len()]);
                }
                Err(error) => {
                    let text = error.to_string();
                    assert!(!text.contains(char::is_control), "{text:?}");
                    // The error contains the reason of the proxy.
                    let is_told = String::from_utf8_lossy(answer).contains(PASSWORD);
                    assert!(is_told || !text.contains(PASSWORD), "{text}");
                }
            }
        });
    });
}

/// Returns the result, and the bytes that the gateway has left for the carrier.
async fn converse(
    is_http: bool,
    user: Option<&(String, String)>,
    pieces: impl Iterator<Item = &[u8]>,
) -> (std::io::Result<()>, Vec<u8>) {
    let listener = LISTENER.with(|listener| listener.try_clone().expect("a listener"));
    listener.set_nonblocking(true).expect("a listener");
    let listener = TcpListener::from_std(listener).expect("a listener");
    let address = listener.local_addr().expect("an address");
    let (near, far) = tokio::join!(TcpStream::connect(address), listener.accept());
    let (mut near, (mut far, _)) = (near.expect("a connection"), far.expect("a connection"));
    // Connections in TIME_WAIT would use up the ports.
    near.set_zero_linger().expect("a socket");
    let ask = async {
        let to = "far.example.com:64000";
        let result = match is_http {
            true => http::connect(&mut near, user, to).await,
            false => socks5::connect(&mut near, user, to).await,
        };
        let mut rest = Vec::new();
        if result.is_ok() {
            near.read_to_end(&mut rest)
                .await
                .expect("the carrier's bytes");
        }
        (result, rest)
    };
    let send = async {
        for piece in pieces {
            let _ = far.write_all(piece).await;
            tokio::task::yield_now().await;
        }
        let _ = far.write_all(CARRIED).await;
        let _ = far.shutdown().await;
        // The socket stays open until the gateway has read its bytes.
        far
    };
    let (heard, _far) = tokio::join!(ask, send);
    heard
}

/// Asserts that `answer` is exactly one granted answer.
fn assert_granted(is_http: bool, has_user: bool, answer: &[u8]) {
    if is_http {
        return assert_http_granted(answer);
    }
    let method = if has_user { 2 } else { 0 };
    let rest = answer.strip_prefix(&[5, method]).expect("a method");
    let rest = if has_user { &rest[2..] } else { rest };
    assert!(answer.len() - rest.len() == 2 || answer[3] == 0);
    let [5, 0, _, kind, address @ ..] = rest else {
        unreachable!("{answer:?}");
    };
    let length = match kind {
        1 => 4,
        4 => 16,
        _ => 1 + usize::from(address[0]),
    };
    assert_eq!(address.len(), length + 2);
}

/// Asserts that `answer` is any number of informational responses and one granted response.
fn assert_http_granted(mut answer: &[u8]) {
    loop {
        let mut fields = [httparse::EMPTY_HEADER; 128];
        let mut response = httparse::Response::new(&mut fields);
        let Ok(httparse::Status::Complete(length)) = response.parse(answer) else {
            unreachable!("{}", String::from_utf8_lossy(answer));
        };
        answer = &answer[length..];
        let code = response.code.unwrap_or_default();
        if answer.is_empty() {
            return assert!((200..300).contains(&code), "{code}");
        }
        assert!((100..200).contains(&code), "{code}");
    }
}
