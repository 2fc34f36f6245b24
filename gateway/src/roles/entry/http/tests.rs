use muxtunnel_testkit::socket::pair;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;
use crate::io::local_socket::LocalSocket;

const GET: &str = "GET /a HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// The ends of an exchange: the test acts as the client, the target and the stream.
struct Ends {
    client: TcpStream,
    target: UnixStream,
    ends: oneshot::Sender<Reason>,
}

impl Ends {
    /// Creates an exchange for a client that sent `request`.
    async fn of(request: &str) -> (Self, Exchange) {
        let (client, accepted) = pair().await;
        let (target, far) = UnixStream::pair().unwrap();
        let (ends, ended) = oneshot::channel();
        let exchange = Exchange {
            client: Box::new(LocalSocket::from(accepted)),
            request: request.into(),
            target: far,
            ended,
        };
        let ends = Self {
            client,
            target,
            ends,
        };
        (ends, exchange)
    }
}

/// Runs an exchange in which the target sends `answer` after the whole request and then closes its
/// half. Returns the data that the target and the client received.
async fn exchange(request: &str, answer: &str, reason: Reason) -> (Vec<u8>, Vec<u8>, bool) {
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
    let client = async {
        let mut got = Vec::new();
        let is_whole = client.read_to_end(&mut got).await.is_ok();
        (got, is_whole)
    };
    // The client reads first, because dropping its socket would lose data that it has not read.
    let (seen, (), (got, is_whole)) = tokio::join!(target, exchange.run(), client);
    (got, seen, is_whole)
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

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[tokio::test]
async fn what_follows_the_request_does_not_reach_its_target() {
    for (request, expected) in [
        (GET.to_owned(), ""),
        (
            "POST /a HTTP/1.1\r\nHost: web\r\nContent-Length: 4\r\n\r\nbody".to_owned(),
            "body",
        ),
        (
            "POST /a HTTP/1.1\r\nHost: web\r\nTransfer-Encoding: chunked\r\n\r\n\
             4;ext=1\r\nbody\r\n0\r\nX-Trailer: 1\r\n\r\n"
                .to_owned(),
            "4\r\nbody\r\n0\r\n\r\n",
        ),
    ] {
        let second = "GET http://other/secret HTTP/1.1\r\nCookie: other\r\n\r\n";
        let (got, seen, is_whole) =
            exchange(&(request.clone() + second), OK, Reason::Completed).await;
        let (got, seen) = (text(&got), text(&seen));
        assert!(!seen.contains("other"), "{seen}");
        assert!(seen.ends_with(&format!("\r\n\r\n{expected}")), "{seen}");
        assert!(is_whole && got.ends_with("\r\n\r\nok"), "{got}");
        assert_eq!(got.matches("HTTP/1.1").count(), 1, "{got}");
        assert!(got.to_lowercase().contains("connection: close"), "{got}");
    }
}

#[tokio::test]
async fn a_response_is_for_one_connection() {
    let answer = "HTTP/1.1 200 Fine\r\nX-Mine: 1\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\n\
         Keep-Alive: timeout=5\r\nProxy-Authenticate: Basic\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n\r\n";
    let (got, _, is_whole) = exchange(GET, answer, Reason::Completed).await;
    let expected =
        "HTTP/1.1 200 Fine\r\nX-Mine: 1\r\nContent-Length: 2\r\nconnection: close\r\n\r\nok";
    assert_eq!(text(&got).to_lowercase(), expected.to_lowercase());
    assert!(is_whole);
}

#[tokio::test]
async fn responses_without_a_body_have_none() {
    let head = GET.replace("GET", "HEAD");
    for (request, answer, expected) in [
        (
            &*head,
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n",
        ),
        (
            GET,
            "HTTP/1.1 204 No Content\r\n\r\n",
            "HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n",
        ),
        (
            GET,
            "HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\n\r\n",
            "HTTP/1.1 304 Not Modified\r\netag: \"x\"\r\nconnection: close\r\n\r\n",
        ),
        (
            GET,
            "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
            "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
        ),
    ] {
        let (got, _, is_whole) = exchange(request, answer, Reason::Completed).await;
        assert_eq!(text(&got).to_lowercase(), expected.to_lowercase());
        assert!(is_whole);
    }
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
        let (got, _, is_whole) = exchange(GET, &answer, Reason::CarrierLost).await;
        assert!(!is_whole, "{framing}: {}", text(&got));
        if !is_framed {
            let (got, _, is_whole) = exchange(GET, &answer, Reason::Completed).await;
            let got = text(&got).to_lowercase();
            assert!(
                is_whole && got.ends_with("\r\n\r\n3\r\nall\r\n0\r\n\r\n"),
                "{got}"
            );
            let old = GET.replace("HTTP/1.1", "HTTP/1.0");
            let (got, _, is_whole) = exchange(&old, &answer, Reason::Completed).await;
            assert!(is_whole && got.ends_with(b"\r\n\r\nall"), "{}", text(&got));
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
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
        "HTTP/1.1 200 OK\r\nX: 1\r\n folded: 1\r\n\r\n",
        &many,
        &long,
    ] {
        let (got, _, is_whole) = exchange(GET, answer, Reason::Completed).await;
        let got = text(&got);
        assert!(
            got.starts_with("HTTP/1.1 502 Bad Gateway\r\n"),
            "{answer}: {got}"
        );
        assert!(is_whole, "{answer}");
    }
}

const EXPECTS: &str =
    "PUT /a HTTP/1.1\r\nHost: web\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n";

#[tokio::test]
async fn a_client_that_asks_first_sends_its_body_once_the_target_wants_it() {
    let (ends, exchange) = Ends::of(EXPECTS).await;
    let (mut client, mut target) = (ends.client, ends.target);
    let play = async {
        let mut seen = Vec::new();
        read_some(&mut target, &mut seen).await;
        assert!(text(&seen).contains("Expect: 100-continue\r\n"));
        target
            .write_all(b"HTTP/1.1 100 Continue\r\n\r\n")
            .await
            .unwrap();
        let mut told = [0; 25];
        client.read_exact(&mut told).await.unwrap();
        assert_eq!(&told, b"HTTP/1.1 100 Continue\r\n\r\n");
        client.write_all(b"body").await.unwrap();
        let mut body = [0; 4];
        target.read_exact(&mut body).await.unwrap();
        target.write_all(OK.as_bytes()).await.unwrap();
        let mut got = Vec::new();
        client.read_to_end(&mut got).await.unwrap();
        assert!(got.ends_with(b"ok"), "{}", text(&got));
        drop(client);
    };
    tokio::join!(exchange.run(), play);
}

#[tokio::test]
async fn a_client_that_asks_first_and_is_refused_sends_no_body() {
    let answer = "HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\n\r\n";
    let (got, seen, is_whole) = exchange(EXPECTS, answer, Reason::Completed).await;
    assert!(text(&got).starts_with("HTTP/1.1 413 "), "{}", text(&got));
    assert!(is_whole && seen.ends_with(b"\r\n\r\n"), "{}", text(&seen));
}

#[tokio::test]
async fn a_client_that_goes_ends_its_stream() {
    let (ends, exchange) = Ends::of(GET).await;
    let (client, mut target) = (ends.client, ends.target);
    let play = async {
        let mut seen = Vec::new();
        read_some(&mut target, &mut seen).await;
        drop(client);
        assert_eq!(target.read(&mut [0]).await.unwrap(), 0);
    };
    tokio::join!(exchange.run(), play);
}
