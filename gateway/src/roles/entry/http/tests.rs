mod requests;

use muxtunnel_testkit::socket::pair;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;
use crate::ingress::listener::http::forwarded::BodyFraming;

const GET: &str = "GET /a HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// The ends of an exchange: the test acts as the client, the target and the stream.
struct Ends {
    client: TcpStream,
    target: UnixStream,
    ends: oneshot::Sender<Reason>,
    phase: watch::Sender<Phase>,
}

/// A request as `listener/http.rs` rewrites it. Its head has no `Expect`, and its body follows.
fn rewritten(text: &str) -> (Forwarded, Vec<u8>) {
    let end = text.find("\r\n\r\n").unwrap() + 4;
    let head = text[..end].replace("Expect: 100-continue\r\n", "");
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("Content-Length: "));
    let body = match length {
        Some(length) => BodyFraming::Length(length.parse().unwrap()),
        None if head.contains("chunked") => BodyFraming::Chunked,
        None => BodyFraming::None,
    };
    let request = Forwarded {
        body,
        persists: !head.contains("Connection: close"),
        expects: text.contains("Expect: 100-continue"),
        hears_informational: head.contains("HTTP/1.1"),
        head: head.into(),
    };
    (request, text[end..].into())
}

impl Ends {
    /// Creates an exchange for a client that sent `request`.
    async fn of(request: &str) -> (Self, Exchange) {
        let (client, accepted) = pair().await;
        let (target, far) = UnixStream::pair().unwrap();
        let (ends, ended) = oneshot::channel();
        let (request, early) = rewritten(request);
        let (sender, phase) = watch::channel(Phase::Running);
        let exchange = Exchange {
            client: LocalSocket::from(accepted),
            request,
            early,
            target: far,
            ended,
            phase,
            keepalive: None,
        };
        let ends = Self {
            client,
            target,
            ends,
            phase: sender,
        };
        (ends, exchange)
    }
}

/// What came of an exchange.
struct Played {
    /// What the client received.
    got: String,
    /// What the target received.
    seen: String,
    /// Whether the client's connection ended without a reset.
    is_whole: bool,
    /// The bytes after the request, if the connection persists.
    rest: Option<Vec<u8>>,
}

/// Runs an exchange in which the target sends `answer` after the whole request and then closes its
/// half.
async fn exchange(request: &str, answer: &str, reason: Reason) -> Played {
    let (ends, exchange) = Ends::of(request).await;
    let (mut client, mut target) = (ends.client, ends.target);
    let target = async {
        let mut seen = Vec::new();
        read_some(&mut target, &mut seen).await;
        target.write_all(answer.as_bytes()).await.unwrap();
        target.shutdown().await.unwrap();
        let _ = target.read_to_end(&mut seen).await;
        let _ = ends.ends.send(reason);
        seen
    };
    let client = async move {
        let mut got = Vec::new();
        let is_whole = client.read_to_end(&mut got).await.is_ok();
        (got, is_whole)
    };
    // The client reads first, because dropping its socket would lose data that it has not read.
    let (seen, rest, (got, is_whole)) = tokio::join!(target, run(exchange), client);
    Played {
        got: text(&got),
        seen: text(&seen),
        is_whole,
        rest,
    }
}

/// Runs an exchange to its end, and then ends the connection of a client that may send a further
/// request. Returns the bytes after its request.
async fn run(exchange: Exchange) -> Option<Vec<u8>> {
    let next = exchange.run().await?;
    next.socket.end_in_order();
    Some(next.rest)
}

/// Reads until the end of a head, and of its body if the body is chunked.
async fn read_some(target: &mut UnixStream, seen: &mut Vec<u8>) {
    loop {
        let text = String::from_utf8_lossy(seen).into_owned();
        let is_chunked = text.contains("chunked");
        if text.contains("\r\n\r\n") && (!is_chunked || text.ends_with("0\r\n\r\n")) {
            return;
        }
        assert!(target.read_buf(seen).await.unwrap() > 0, "{text}");
    }
}

/// The text without the field `Date`, which each final response has once.
fn text(bytes: &[u8]) -> String {
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    let is_date = |line: &&str| line.to_lowercase().starts_with("date: ");
    let dates = text.split_inclusive('\n').filter(is_date).count();
    assert_eq!(dates, usize::from(text.starts_with("HTTP/1")), "{text}");
    let lines = text.split_inclusive('\n').filter(|line| !is_date(line));
    lines.collect()
}

#[tokio::test]
async fn what_follows_the_request_does_not_reach_its_target_and_stays_for_the_next() {
    for (request, expected) in [
        ("GET /a HTTP/1.1\r\nHost: web\r\n\r\n", ""),
        (
            "POST /a HTTP/1.1\r\nHost: web\r\nContent-Length: 4\r\n\r\nbody",
            "body",
        ),
        (
            "POST /a HTTP/1.1\r\nHost: web\r\nTransfer-Encoding: chunked\r\n\r\n\
             4;ext=1\r\nbody\r\n0\r\nX-Trailer: 1\r\n\r\n",
            "4\r\nbody\r\n0\r\n\r\n",
        ),
    ] {
        let second = "GET http://other/secret HTTP/1.1\r\nCookie: other\r\n\r\n";
        let both = request.to_owned() + second;
        let played = exchange(&both, OK, Reason::Completed).await;
        let Played { got, seen, .. } = &played;
        assert!(!seen.contains("other"), "{seen}");
        assert!(seen.contains("\r\nConnection: close\r\n"), "{seen}");
        assert!(seen.ends_with(&format!("\r\n\r\n{expected}")), "{seen}");
        assert!(played.is_whole && got.ends_with("\r\n\r\nok"), "{got}");
        assert_eq!(got.matches("HTTP/1.1").count(), 1, "{got}");
        assert!(!got.contains("Connection"), "{got}");
        assert_eq!(played.rest, Some(second.into()));
        // A client that closes its connection has no next request.
        let closes = both.replacen("\r\n\r\n", "\r\nConnection: close\r\n\r\n", 1);
        let played = exchange(&closes, OK, Reason::Completed).await;
        let Played { got, seen, .. } = &played;
        assert!(!seen.contains("other"), "{seen}");
        assert!(got.contains("\r\nConnection: close\r\n"), "{got}");
        assert!(played.is_whole && played.rest.is_none());
    }
}

#[tokio::test]
async fn a_response_is_for_one_connection() {
    let answer = "HTTP/1.1 200 Fine\r\nX-Mine: 1\r\nConnection: keep-alive, X-Hop, Content-Length\r\nX-Hop: 1\r\n\
         Keep-Alive: timeout=5\r\nUpgrade: h2c\r\nProxy-Authenticate: Basic\r\nProxy-Status: kept\r\nVia: 1.0 far\r\n\
         Set-Cookie: a\r\nSet-Cookie: b\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n\r\n";
    let played = exchange(GET, answer, Reason::Completed).await;
    let expected = "HTTP/1.1 200 Fine\r\nX-Mine: 1\r\nProxy-Status: kept\r\nVia: 1.0 far\r\nVia: 1.1 muxgate\r\n\
         Set-Cookie: a\r\nSet-Cookie: b\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
    assert_eq!(sorted(&played.got), sorted(expected));
    assert!(played.is_whole);
}

#[tokio::test]
async fn a_response_keeps_its_date_and_gets_one_otherwise() {
    for (field, expected) in [
        (
            "Date: Thu, 01 Jan 1970 00:00:00 GMT\r\n",
            "\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\n",
        ),
        ("", "\r\nDate: "),
    ] {
        let (ends, exchange) = Ends::of(GET).await;
        let (mut client, mut target) = (ends.client, ends.target);
        let play = async {
            read_some(&mut target, &mut Vec::new()).await;
            let answer = format!("HTTP/1.1 200 OK\r\n{field}Content-Length: 0\r\n\r\n");
            target.write_all(answer.as_bytes()).await.unwrap();
            let mut got = String::new();
            client.read_to_string(&mut got).await.unwrap();
            assert!(got.contains(expected), "{got}");
            assert_eq!(got.matches("\r\nDate: ").count(), 1, "{got}");
            drop(client);
        };
        tokio::join!(run(exchange), play);
    }
}

#[tokio::test]
async fn responses_without_a_body_have_none() {
    let head = GET.replace("GET", "HEAD");
    for (request, answer, expected) in [
        (
            &*head,
            "200 OK\r\nContent-Length: 2",
            "200 OK\r\nContent-Length: 2\r\n",
        ),
        (
            &*head,
            "200 OK\r\nContent-Length: 2, 2\r\nContent-Length: 2",
            "200 OK\r\nContent-Length: 2\r\n",
        ),
        (&*head, "200 OK\r\nTransfer-Encoding: chunked", "200 OK\r\n"),
        (GET, "204 No Content", "204 No Content\r\n"),
        (
            GET,
            "204 No Content\r\nContent-Length: 5",
            "204 No Content\r\n",
        ),
        (
            GET,
            "304 Not Modified\r\nETag: \"x\"",
            "304 Not Modified\r\nETag: \"x\"\r\n",
        ),
        (
            GET,
            "304 Not Modified\r\nContent-Length: 5",
            "304 Not Modified\r\n",
        ),
        (
            GET,
            "304 Not Modified\r\nTransfer-Encoding: chunked",
            "304 Not Modified\r\n",
        ),
    ] {
        let sent = format!("HTTP/1.1 {answer}\r\n\r\n");
        let played = exchange(request, &sent, Reason::Completed).await;
        let expected = format!("HTTP/1.1 {expected}Via: 1.1 muxgate\r\nConnection: close\r\n\r\n");
        assert_eq!(sorted(&played.got), sorted(&expected), "{answer}");
        assert!(played.is_whole);
    }
}

/// The lines of a head, in order of their text.
fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    lines
}

#[tokio::test]
async fn informational_responses_precede_the_response() {
    let answer = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\nConnection: X-Hop\r\nX-Hop: 1\r\n\r\n\
         HTTP/1.1 103 Early Hints\r\nLink: </x>\r\nVia: 1.0 far\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    let expected = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\nvia: 1.1 muxgate\r\n\r\n\
         HTTP/1.1 103 Early Hints\r\nlink: </x>\r\nvia: 1.0 far\r\nvia: 1.1 muxgate\r\n\r\nHTTP/1.1 200 OK\r\n";
    let played = exchange(GET, answer, Reason::Completed).await;
    assert!(played.got.starts_with(expected), "{}", played.got);
    assert!(played.is_whole && played.got.ends_with("\r\n\r\nok"));
    let old = GET.replace("HTTP/1.1", "HTTP/1.0");
    let played = exchange(&old, answer, Reason::Completed).await;
    assert!(
        played.got.starts_with("HTTP/1.0 200 OK\r\n"),
        "{}",
        played.got
    );
    assert!(played.is_whole && played.got.ends_with("\r\n\r\nok"));
    // What a client does not read is bounded, and does not stop the response.
    let many = "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n".repeat(100_000) + OK;
    let played = exchange(GET, &many, Reason::Completed).await;
    assert!(played.is_whole && played.got.ends_with("\r\n\r\nok"));
}

#[tokio::test]
async fn a_cut_is_no_end_of_a_response() {
    let head = "HTTP/1.1 200 OK\r\n";
    for (framing, body, is_framed) in [
        ("", "all", false),
        ("Content-Length: 9\r\n", "all", true),
        ("Transfer-Encoding: chunked\r\n", "3\r\nall\r\n", true),
    ] {
        let answer = format!("{head}{framing}\r\n{body}");
        let played = exchange(GET, &answer, Reason::CarrierLost).await;
        assert!(!played.is_whole, "{framing}: {}", played.got);
        if !is_framed {
            let played = exchange(GET, &answer, Reason::Completed).await;
            let got = &played.got;
            assert!(
                played.is_whole && got.ends_with("\r\n\r\n3\r\nall\r\n0\r\n\r\n"),
                "{got}"
            );
            let old = GET.replace("HTTP/1.1", "HTTP/1.0");
            let played = exchange(&old, &answer, Reason::Completed).await;
            let got = &played.got;
            assert!(played.is_whole && got.ends_with("\r\n\r\nall"), "{got}");
        }
    }
}

#[tokio::test]
async fn what_a_proxy_repairs_in_a_response_is_passed_on() {
    for (answer, fields) in [
        // Whitespace before a colon, and folded lines (RFC 9112, sections 5.1 and 5.2).
        (
            "X : 1\r\nContent-Length: 2\r\n\r\nok",
            "X: 1\r\nContent-Length: 2\r\n",
        ),
        (
            "X: 1\r\n\t 2\r\nContent-Length: 2\r\n\r\nok",
            "X: 1 2\r\nContent-Length: 2\r\n",
        ),
        // A bare LF, and equal lengths (RFC 9110, section 8.6).
        (
            "X: 1\nContent-Length: 2\n\nok",
            "X: 1\r\nContent-Length: 2\r\n",
        ),
        (
            "Content-Length: 2\r\nContent-Length: 2\r\n\r\nok",
            "Content-Length: 2\r\n",
        ),
        ("Content-Length: 2, 2\r\n\r\nok", "Content-Length: 2\r\n"),
        // A chunked body has no length (RFC 9112, section 6.3), and the gateway writes its own chunks.
        (
            "Content-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n2;a=b\r\nok\r\n0\r\nX-Trailer: 1\r\n\r\n",
            "Transfer-Encoding: chunked\r\n",
        ),
        (
            "Transfer-Encoding: , Chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
            "Transfer-Encoding: chunked\r\n",
        ),
    ] {
        for line in ["HTTP/1.1 200 OK", "HTTP/1.1 200 ", "HTTP/1.1 200"] {
            let played = exchange(GET, &format!("{line}\r\n{answer}"), Reason::Completed).await;
            let body = match fields.contains("chunked") {
                true => "2\r\nok\r\n0\r\n\r\n",
                false => "ok",
            };
            let (head, got) = played.got.split_once("\r\n\r\n").unwrap();
            assert_eq!(got, body, "{answer}");
            let head = head.split_once("\r\n").unwrap().1.to_owned() + "\r\n";
            let fields = format!("{fields}Via: 1.1 muxgate\r\nConnection: close\r\n");
            assert_eq!(sorted(&head), sorted(&fields), "{answer}");
            assert!(played.is_whole);
        }
    }
}

#[tokio::test]
async fn no_valid_response_is_a_bad_gateway() {
    let many = format!(
        "HTTP/1.1 200 OK\r\n{}\r\n",
        "X: 1\r\n".repeat(FIELDS_MAX + 1)
    );
    let long = format!(
        "HTTP/1.1 200 OK\r\nX: {}\r\n\r\n",
        "x".repeat(2 * HEAD_BYTES_MAX)
    );
    for answer in [
        "",
        "220 welcome\r\n",
        "HTTP/1.1 200 OK\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nx",
        "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked,\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding:\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: gzip\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
        "HTTP/1.1 200 OK\r\nContent-Length: 1, 2\r\n\r\nxx",
        "HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\nx",
        "HTTP/1.1 200 OK\r\nX: a\rb\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: a\0b\r\n\r\n",
        "HTTP/2.0 200 OK\r\n\r\n",
        &many,
        &long,
    ] {
        let played = exchange(GET, answer, Reason::Completed).await;
        let got = played.got;
        assert!(
            got.starts_with("HTTP/1.1 502 Bad Gateway\r\n"),
            "{answer}: {got}"
        );
        assert!(played.is_whole, "{answer}");
    }
}
