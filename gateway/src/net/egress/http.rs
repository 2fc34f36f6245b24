//! The client side of CONNECT through an HTTP proxy (RFC 9110, section 9.3.6).

use std::io::{Error, ErrorKind, Result};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::hear;
use crate::base::printable::Printable;

/// Maximum length of a response head.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// Maximum number of responses, of which all but the last are informational.
const INFORMATIONAL_MAX: usize = 16;
/// Maximum number of header fields in a response.
const FIELDS_MAX: usize = 64;
/// Maximum number of characters of a reason phrase in an error.
const REASON_MAX: usize = 100;
const END: &[u8] = b"\r\n\r\n";

/// Requests that the proxy at the other end of `tcp` connects to `to`.
///
/// # Errors
/// The proxy refused the request, with its reason, or its response is not HTTP.
pub(super) async fn connect(
    tcp: &mut TcpStream,
    user: Option<&(String, String)>,
    to: &str,
) -> Result<()> {
    let known = user.map_or_else(String::new, |(name, password)| {
        let word = STANDARD.encode(format!("{name}:{password}"));
        format!("Proxy-Authorization: Basic {word}\r\n")
    });
    let request = format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n{known}\r\n");
    tcp.write_all(request.as_bytes()).await?;
    // Informational responses precede the response (RFC 9110, section 15.2).
    for _ in 0..INFORMATIONAL_MAX {
        if is_granted(&head(tcp).await?)? {
            return Ok(());
        }
    }
    Err(invalid("the proxy sends only informational responses"))
}

/// Reads the head of the response and no byte after the head, since the next bytes come from the
/// target of the CONNECT.
async fn head(tcp: &mut TcpStream) -> Result<Vec<u8>> {
    let (mut head, mut part) = (Vec::new(), [0; 1024]);
    while !head.ends_with(END) {
        let peeked = tcp.peek(&mut part).await?;
        let known = head.len();
        head.extend_from_slice(&part[..peeked]);
        // The empty line that ends the head may begin in the bytes of the previous read.
        let from = known.saturating_sub(END.len() - 1);
        let found = head[from..].windows(END.len()).position(|part| part == END);
        head.truncate(found.map_or(head.len(), |at| from + at + END.len()));
        if head.len() > HEAD_BYTES_MAX {
            return Err(invalid(
                "the head of the proxy's response is longer than 8 KiB",
            ));
        }
        // If the peek returned no byte, a read of one byte reports the end of file.
        let taken = (head.len() - known).max(usize::from(peeked == 0));
        hear(tcp, &mut part[..taken]).await?;
    }
    Ok(head)
}

/// Whether the response with this head grants the request. `false`: the response is informational,
/// and another one follows.
fn is_granted(head: &[u8]) -> Result<bool> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut answer = httparse::Response::new(&mut fields);
    let parsed = answer.parse(head);
    // An empty line that a bare LF ends would end the head earlier, and its rest is the carrier's.
    if parsed != Ok(httparse::Status::Complete(head.len())) {
        return Err(invalid("the proxy's response is not HTTP"));
    }
    let status = answer.code.unwrap_or_default();
    let reason: String = answer
        .reason
        .unwrap_or_default()
        .chars()
        .take(REASON_MAX)
        .collect();
    // A reason may contain tabs (RFC 9112, section 4).
    let reason = Printable(&reason);
    match status {
        // 101 switches the protocol, so no other response follows.
        100 | 102..=199 => Ok(false),
        200..=299 => Ok(true),
        407 => Err(refused(format!(
            "the proxy requires valid credentials: {status} {reason}. Set USER:PASSWORD in the proxy's URL"
        ))),
        _ => Err(refused(format!("the proxy returned {status} {reason}"))),
    }
}

fn refused(text: String) -> Error {
    Error::new(ErrorKind::ConnectionRefused, text)
}

fn invalid(text: &'static str) -> Error {
    Error::new(ErrorKind::InvalidData, text)
}

#[cfg(test)]
mod tests {
    use muxtunnel_testkit::socket::pair;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Sends a response in the pieces `parts`. Returns the result, and the bytes that remain to be
    /// read.
    async fn answered(parts: &[&[u8]]) -> (Result<()>, Vec<u8>) {
        let (mut near, mut far) = pair().await;
        let user = ("alice".to_owned(), "secret".to_owned());
        let ask = connect(&mut near, Some(&user), "far.example.com:64000");
        let answer = async {
            let mut request = vec![0; 1024];
            let length = far.read(&mut request).await.unwrap();
            for part in parts {
                far.write_all(part).await.unwrap();
                tokio::task::yield_now().await;
            }
            drop(far);
            request.truncate(length);
            String::from_utf8(request).unwrap()
        };
        let (led, request) = tokio::join!(ask, answer);
        assert_eq!(
            request,
            "CONNECT far.example.com:64000 HTTP/1.1\r\nHost: far.example.com:64000\r\n\
             Proxy-Authorization: Basic YWxpY2U6c2VjcmV0\r\n\r\n"
        );
        let mut left = Vec::new();
        let _ = near.read_to_end(&mut left).await;
        (led, left)
    }

    #[tokio::test]
    async fn what_is_behind_the_answer_stays_for_the_carrier_however_it_comes() {
        for parts in [
            &[&b"HTTP/1.1 200 Connection established\r\n\r\nhello"[..]][..],
            &[b"HTTP/1.1 200 OK\r\nA: b\r", b"\n\r", b"\nhel", b"lo"],
            &[b"HTTP/1.0 200\r\n\r\n", b"hello"],
            &[
                b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nA: b\r\n\r\n",
                b"HTTP/1.1 200 OK\r\n\r\nhello",
            ],
            &[b"HTTP/1.1 204 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nhello"],
        ] {
            let (led, left) = answered(parts).await;
            led.unwrap();
            assert_eq!(left, b"hello");
        }
    }

    #[tokio::test]
    async fn a_refusal_is_told_with_its_status_and_reason_and_never_the_password() {
        let long = [b"HTTP/1.1 200 OK\r\nA: ".as_slice(), &[b'a'; 9 << 10]].concat();
        let cases: [(&[u8], &str); 7] = [
            (
                b"HTTP/1.1 403 Filtered\there\r\nContent-Length: 0\r\n\r\n",
                "the proxy returned 403 Filtered\\there",
            ),
            (
                b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n",
                "the proxy requires valid credentials: 407 Proxy Authentication Required. Set USER:PASSWORD in the proxy's URL",
            ),
            (
                b"SSH-2.0-OpenSSH\r\n\r\n",
                "the proxy's response is not HTTP",
            ),
            (
                b"HTTP/1.1 200 OK\r\n\nA: b\r\n\r\n",
                "the proxy's response is not HTTP",
            ),
            (
                b"HTTP/1.\x0f 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
                "the proxy's response is not HTTP",
            ),
            (
                b"HTTP/1.1 200",
                "the proxy closed the connection before it answered",
            ),
            (
                &long,
                "the head of the proxy's response is longer than 8 KiB",
            ),
        ];
        for (answer, expected) in cases {
            let (led, _) = answered(&[answer]).await;
            assert_eq!(led.unwrap_err().to_string(), expected);
        }
    }
}
