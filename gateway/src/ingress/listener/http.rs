//! Requests to an HTTP proxy: CONNECT (RFC 9110, section 9.3.6), and requests for an absolute
//! `http://` URL (RFC 9112, section 3.2.2). The gateway rewrites a request for a URL to origin form
//! (`GET /path`) before it forwards the request.
//!
//! This module reads the head of one request, authenticates the user and extracts the target.
//! [`forwarded`] checks the framing and rewrites the fields for the target. `entry/http.rs` then
//! forwards the request. The exit resolves names.

pub(crate) mod forwarded;

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use httparse::{EMPTY_HEADER, Header, ParserConfig, Status};
use muxtunnel_codes::Code;
use zeroize::Zeroizing;

use super::answer::Answer;
use super::{Authenticator, HEAD_BYTES_MAX, Rejection, Request, Step, Verdict};
use forwarded::{Outcome, authority, check_host, forward};

/// The reply to a CONNECT.
pub(super) const GRANTED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";
/// Maximum number of header fields of a request.
pub(crate) const FIELDS_MAX: usize = 256;
const TEXT: &str = "text/plain; charset=utf-8";

/// The head of a request that is being received.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Head {
    /// Number of leading bytes that do not contain the end of the head.
    looked_at: usize,
}

impl Head {
    pub(super) fn step(
        &mut self,
        bytes: &[u8],
        authenticator: Option<&dyn Authenticator>,
    ) -> Result<Step, Rejection> {
        let start = empty_lines(bytes);
        let begun = &bytes[start..];
        // A carriage return can be the begin of an empty line.
        if !matches!(begun, [] | [b'\r']) && !begun[0].is_ascii_alphabetic() {
            return Err(invalid("is not HTTP"));
        }
        // Parses the head only when it is complete, so that a head in many pieces is not parsed
        // many times.
        if !self.is_whole(bytes, start) {
            return if bytes.len() < HEAD_BYTES_MAX {
                Ok(Step::Incomplete)
            } else if begun.contains(&b'\n') {
                Err(too_large())
            } else {
                let problem = "has a request line of more than 64 KiB";
                Err(rejection("414 URI Too Long", problem))
            };
        }
        let head = known_version(begun)?;
        let mut fields = [EMPTY_HEADER; FIELDS_MAX];
        let mut request = httparse::Request::new(&mut fields);
        let mut parser = ParserConfig::default();
        // RFC 9112, section 3 permits these spaces. The rewritten request line has single spaces.
        parser.allow_multiple_spaces_in_request_line_delimiters(true);
        let consumed = match parser.parse_request(&mut request, &head) {
            Ok(Status::Complete(consumed)) => start + consumed,
            Err(httparse::Error::TooManyHeaders) => return Err(too_large()),
            Ok(Status::Partial) | Err(_) => return Err(invalid("is not HTTP")),
        };
        if consumed > HEAD_BYTES_MAX {
            return Err(too_large());
        }
        match authenticator.map(|authenticator| verdict(request.headers, authenticator)) {
            None | Some(Some(Verdict::Known)) => {}
            Some(Some(Verdict::Pending)) => {
                self.looked_at = 0;
                return Ok(Step::Pending);
            }
            Some(Some(Verdict::Wrong)) => return Err(Rejection::password_wrong(challenge())),
            Some(Some(Verdict::Busy)) => {
                let text = "Too many passwords wait to be verified; try again later.";
                let reply = refusal("503 Service Unavailable", text);
                return Err(Rejection::passwords_busy(reply));
            }
            Some(None) => return Err(unknown()),
        }
        let (method, target) = (request.method.unwrap_or(""), request.path.unwrap_or(""));
        let minor_version = request.version.unwrap_or(1);
        check_host(method, minor_version, request.headers)?;
        let outcome = if method == "CONNECT" {
            connect(target).map(Outcome::Request)
        } else {
            forward(method, target, minor_version, request.headers)
        };
        Ok(match outcome? {
            Outcome::Request(request) => Step::Request { consumed, request },
            Outcome::Answer(reply) => Step::Answered { reply },
        })
    }

    /// Whether an empty line follows the lines that begin at `start`. Skips bytes that were searched
    /// earlier.
    fn is_whole(&mut self, bytes: &[u8], start: usize) -> bool {
        let from = self.looked_at.saturating_sub(2).max(start);
        self.looked_at = bytes.len();
        let lines = bytes.get(from..).unwrap_or_default();
        lines.windows(2).any(|pair| pair == b"\n\n")
            || lines.windows(3).any(|line| line == b"\n\r\n")
    }
}

fn connect(target: &str) -> Result<Request, Rejection> {
    let url =
        authority(target, None).ok_or_else(|| invalid("does not contain a target HOST:PORT"))?;
    Ok(Request {
        url,
        forwarded: None,
        answer: Answer::Connect,
    })
}

/// Number of leading bytes that are empty lines, which a server ignores (RFC 9112, section 2.2).
pub(super) fn empty_lines(bytes: &[u8]) -> usize {
    let mut rest = bytes;
    while let Some(next) = rest
        .strip_prefix(b"\r\n")
        .or_else(|| rest.strip_prefix(b"\n"))
    {
        rest = next;
    }
    bytes.len() - rest.len()
}

/// Makes a request line of a later HTTP/1.x that of HTTP/1.1 (RFC 9110, section 2.5).
///
/// # Errors
/// The request has another major version.
fn known_version(head: &[u8]) -> Result<Cow<'_, [u8]>, Rejection> {
    let end = head.iter().position(|byte| *byte == b'\n').unwrap_or(0);
    let line = head[..end].trim_ascii_end();
    let at = line.len().saturating_sub(1);
    match line.last_chunk::<8>() {
        Some([b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'2'..=b'9']) => {
            let mut head = head.to_vec();
            head[at] = b'1';
            Ok(head.into())
        }
        Some(
            [
                b'H',
                b'T',
                b'T',
                b'P',
                b'/',
                b'0' | b'2'..=b'9',
                b'.',
                b'0'..=b'9',
            ],
        ) => {
            let problem = "uses a version of HTTP other than 1.0 and 1.1";
            Err(rejection("505 HTTP Version Not Supported", problem))
        }
        _ => Ok(head.into()),
    }
}

/// The verdict on `Proxy-Authorization: Basic` (RFC 7617); `None`: the request has no such field,
/// or its credentials cannot be parsed.
fn verdict(fields: &[Header<'_>], authenticator: &dyn Authenticator) -> Option<Verdict> {
    let is_authorization =
        |field: &&Header<'_>| field.name.eq_ignore_ascii_case("Proxy-Authorization");
    let field = fields.iter().find(is_authorization)?;
    let (scheme, token) = str::from_utf8(field.value).ok()?.trim().split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("Basic") {
        return None;
    }
    let bytes = Zeroizing::new(STANDARD.decode(token.trim()).ok()?);
    let colon = bytes.iter().position(|byte| *byte == b':')?;
    Some(authenticator.authenticate(&bytes[..colon], &bytes[colon + 1..]))
}

/// A response that is not 2xx, with the given `status` and a `text` for people.
pub(super) fn refusal(status: &str, text: &str) -> Vec<u8> {
    with_field(status, "", TEXT, &format!("{text}\n"))
}

/// A response with a further `field`, which ends with CRLF, and a body.
fn with_field(status: &str, field: &str, content_type: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\n{field}Content-Type: {content_type}\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
    .into_bytes()
}

fn invalid(problem: &'static str) -> Rejection {
    rejection("400 Bad Request", problem)
}

fn too_large() -> Rejection {
    let problem = "has a head of more than 64 KiB or 256 fields";
    rejection("431 Request Header Fields Too Large", problem)
}

fn rejection(status: &str, problem: &'static str) -> Rejection {
    Rejection {
        reply: refusal(status, &format!("The request {problem}.")),
        code: Code::ClientRequestInvalid,
        problem,
    }
}

fn unknown() -> Rejection {
    Rejection {
        reply: challenge(),
        code: Code::ClientUnknown,
        problem: "has no user name and password",
    }
}

/// Requests a user name and a password.
fn challenge() -> Vec<u8> {
    with_field(
        "407 Proxy Authentication Required",
        "Proxy-Authenticate: Basic realm=\"muxgate\", charset=\"UTF-8\"\r\n",
        TEXT,
        "This proxy requires a user name and a password.\n",
    )
}

#[cfg(test)]
mod tests;
