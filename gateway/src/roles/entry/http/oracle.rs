//! Properties of the response that a client gets, for any bytes that a target sends.
//!
//! The client gets informational responses, and then exactly one response. Every client finds the
//! end of its body at the same byte. Nothing of the target's bytes becomes a further response.

#![allow(clippy::expect_used, reason = "an oracle panics")]

use httparse::{Header, Status};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::body_end::BodyEnd;
use super::*;
use crate::ingress::listener::http::forwarded::BodyFraming;

thread_local! {
    static RUNTIME: tokio::runtime::Runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
}

/// The first byte of `input` selects the request, how the stream ends, and the size of the pieces in
/// which the target sends the other bytes.
pub(crate) fn response(input: &[u8]) {
    let Some((flags, answer)) = input.split_first() else {
        return;
    };
    let [is_head, is_old, closes, is_cut] = [0, 1, 2, 3].map(|bit| flags >> bit & 1 == 1);
    let piece = match flags >> 4 {
        0 => usize::MAX,
        size => usize::from(size) * usize::from(size),
    };
    let method = if is_head { "HEAD" } else { "GET" };
    let version = u8::from(!is_old);
    let close = if closes || is_old {
        "Connection: close\r\n"
    } else {
        ""
    };
    let head = format!("{method} / HTTP/1.{version}\r\nHost: web\r\n{close}\r\n");
    let request = Forwarded {
        head: head.into(),
        body: BodyFraming::None,
        persists: close.is_empty(),
        expects: false,
        hears_informational: !is_old,
    };
    let reason = if is_cut {
        Reason::CarrierLost
    } else {
        Reason::Completed
    };
    let (got, next) =
        RUNTIME.with(|runtime| runtime.block_on(play(request, answer, piece, reason)));
    // Without a next state, the client sees a reset, and accepts no part of the response as a whole.
    let Some(fate) = next else { return };
    assert_one_response(&got, is_head, is_old, fate);
}

/// Returns what the client received, and whether the response says that the connection closes;
/// `None`: the exchange was cut.
async fn play(
    request: Forwarded,
    answer: &[u8],
    piece: usize,
    reason: Reason,
) -> (Vec<u8>, Option<bool>) {
    let (mut client, accepted) = UnixStream::pair().expect("a pair of sockets");
    let (mut target, far) = UnixStream::pair().expect("a pair of sockets");
    let (ends, ended) = oneshot::channel();
    let (_running, phase) = watch::channel(Phase::Running);
    let persists = request.persists;
    let exchange = Exchange {
        client: LocalSocket::Unix(accepted),
        request,
        early: b"GET http://next/ HTTP/1.1\r\n\r\n".to_vec(),
        target: far,
        ended,
        phase,
        keepalive: None,
    };
    let state = Rc::new(ClientState::default());
    let serve = async {
        let next = exchange.serve(Rc::clone(&state)).await?;
        assert_eq!(next.rest, b"GET http://next/ HTTP/1.1\r\n\r\n");
        Some(!persists || state.closes.get())
    };
    let send = async {
        for piece in answer.chunks(piece.min(answer.len()).max(1)) {
            // The exchange may have ended.
            let _ = target.write_all(piece).await;
            tokio::task::yield_now().await;
        }
        let _ = target.shutdown().await;
        let _ = target.read_to_end(&mut Vec::new()).await;
        let _ = ends.send(reason);
    };
    let receive = async {
        let mut got = Vec::new();
        // A cut exchange resets the client.
        let _ = client.read_to_end(&mut got).await;
        got
    };
    let (next, (), got) = tokio::join!(serve, send, receive);
    (got, next)
}

fn assert_one_response(mut bytes: &[u8], is_head: bool, is_old: bool, closes: bool) {
    loop {
        let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX + 8];
        let mut response = httparse::Response::new(&mut fields);
        let parsed = response.parse(bytes);
        let Ok(Status::Complete(length)) = parsed else {
            unreachable!("{parsed:?}: {}", String::from_utf8_lossy(bytes));
        };
        bytes = &bytes[length..];
        let code = response.code.unwrap_or_default();
        assert_eq!(response.version, Some(u8::from(!is_old)));
        if code < 200 {
            assert!(!is_old && code != 101, "{code}");
            continue;
        }
        return assert_body(response.headers, bytes, code, (is_head, is_old, closes));
    }
}

fn assert_body(
    fields: &[Header<'_>],
    body: &[u8],
    code: u16,
    (is_head, is_old, closes): (bool, bool, bool),
) {
    let values = |name: &'static str| {
        let is = move |field: &&Header<'_>| field.name.eq_ignore_ascii_case(name);
        fields.iter().filter(is).map(|field| field.value)
    };
    let count = |name| values(name).count();
    for name in ["Keep-Alive", "Proxy-Connection", "TE", "Trailer", "Upgrade"] {
        assert_eq!(count(name), 0, "{name}");
    }
    assert!(count("Connection") <= 1 && values("Connection").all(|value| value == b"close"));
    assert!(is_old || (count("Connection") == 1) == closes);
    assert!(count("Date") > 0);
    assert!(count("Content-Length") + count("Transfer-Encoding") <= 1);
    let framing = match (
        values("Content-Length").next(),
        values("Transfer-Encoding").next(),
    ) {
        _ if is_head || code == 204 || code == 304 => BodyFraming::None,
        (Some(length), _) => {
            let length = str::from_utf8(length)
                .ok()
                .and_then(|length| length.parse().ok());
            BodyFraming::Length(length.expect("a length"))
        }
        (None, Some(coding)) => {
            assert!(coding == b"chunked" && !is_old);
            BodyFraming::Chunked
        }
        // The body ends with the connection.
        (None, None) => return assert!(is_old),
    };
    let mut end = BodyEnd::new(framing);
    assert_eq!(end.take(body), body.len(), "bytes after the response");
    assert!(end.is_over(), "the response has no end");
}
