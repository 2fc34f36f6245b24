//! Requests to an HTTP proxy: CONNECT (RFC 9110, section 9.3.6), and requests for an absolute
//! `http://` URL (RFC 9112, section 3.2.2). The gateway rewrites a request for a URL to origin form
//! (`GET /path`) before it forwards the request.
//!
//! This module reads the head of one request, authenticates the user, extracts the target, checks
//! the framing and rewrites the fields for the target. `entry/http.rs` then forwards the request. A
//! connection carries only one request. The exit resolves names.

use std::rc::Rc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use httparse::{EMPTY_HEADER, Header, Status};
use muxtunnel_codes::Code;
use zeroize::Zeroizing;

use super::answer::Answer;
use super::{Authenticator, GREETING_BYTES_MAX, Rejection, Request, Step, Verdict, url};

/// The reply to a CONNECT.
pub(super) const GRANTED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";
/// Maximum number of header fields of a request.
pub(crate) const FIELDS_MAX: usize = 96;
const SCHEME: &str = "http://";
/// Fields that apply to one connection (RFC 9110, section 7.6.1), in addition to all fields that
/// begin with `Proxy-`. Trailers are not forwarded, so `Trailer` is also removed.
const HOP_BY_HOP: [&str; 5] = ["Connection", "Keep-Alive", "TE", "Trailer", "Upgrade"];

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
        if bytes
            .first()
            .is_some_and(|byte| !byte.is_ascii_alphabetic())
        {
            return Err(invalid("is not HTTP"));
        }
        // Parses the head only when it is complete, so that a head in many pieces is not parsed
        // many times.
        if !self.is_whole(bytes) {
            return if bytes.len() < GREETING_BYTES_MAX {
                Ok(Step::Incomplete)
            } else {
                Err(too_large())
            };
        }
        let mut fields = [EMPTY_HEADER; FIELDS_MAX];
        let mut request = httparse::Request::new(&mut fields);
        let consumed = match request.parse(bytes) {
            Ok(Status::Complete(consumed)) => consumed,
            Err(httparse::Error::TooManyHeaders) => return Err(too_large()),
            Ok(Status::Partial) | Err(_) => return Err(invalid("is not HTTP")),
        };
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
        let request = if method == "CONNECT" {
            connect(target)
        } else {
            forward(
                method,
                target,
                request.version.unwrap_or(1),
                request.headers,
            )
        };
        request.map(|request| Step::Request { consumed, request })
    }

    /// Whether `bytes` contain an empty line. Skips bytes that were searched earlier.
    fn is_whole(&mut self, bytes: &[u8]) -> bool {
        let from = self.looked_at.saturating_sub(2);
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
        head: Vec::new(),
        answer: Answer::Connect,
    })
}

/// Rewrites a request for an absolute URL to the form that the target expects.
fn forward(
    method: &str,
    target: &str,
    minor_version: u8,
    fields: &[Header<'_>],
) -> Result<Request, Rejection> {
    let (scheme, rest) = target.split_at_checked(SCHEME.len()).unwrap_or(("", ""));
    if !scheme.eq_ignore_ascii_case(SCHEME) {
        let problem =
            "is not a proxy request: expected CONNECT, or an absolute URL that begins with http://";
        return Err(invalid(problem));
    }
    let (host, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let url = authority(host, Some(80)).ok_or_else(|| invalid("has no host in its URL"))?;
    check_framing(minor_version, fields)?;
    let path = path.split('#').next().unwrap_or_default();
    let path = match path {
        "" if method == "OPTIONS" => "*".to_owned(),
        path if path.starts_with('/') => path.to_owned(),
        path => format!("/{path}"),
    };
    let mut head =
        format!("{method} {path} HTTP/1.{minor_version}\r\nHost: {host}\r\n").into_bytes();
    for field in fields.iter().filter(|field| passes(field.name, fields)) {
        head.extend(field.name.bytes());
        head.extend(b": ");
        head.extend(field.value);
        head.extend(b"\r\n");
    }
    head.extend(b"Connection: close\r\n\r\n");
    Ok(Request {
        url,
        head,
        answer: Answer::Http,
    })
}

/// Rejects a request if two parsers could find different ends of its body (RFC 9112, sections 6.1
/// and 6.3).
fn check_framing(minor_version: u8, fields: &[Header<'_>]) -> Result<(), Rejection> {
    let values = |name: &'static str| {
        let named = move |field: &&Header<'_>| field.name.eq_ignore_ascii_case(name);
        fields.iter().filter(named).map(|field| field.value)
    };
    let (lengths, encodings) = (
        values("Content-Length").count(),
        values("Transfer-Encoding").count(),
    );
    if lengths + encodings > 1 || (encodings > 0 && minor_version == 0) {
        return Err(invalid(
            "states the length of its body in more than one way",
        ));
    }
    let is_length = |value: &[u8]| !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    if !values("Content-Length").all(is_length) {
        return Err(invalid("has a Content-Length that is not a number"));
    }
    let is_chunked = |value: &[u8]| value.eq_ignore_ascii_case(b"chunked");
    if !values("Transfer-Encoding").all(is_chunked) {
        let problem = "has a transfer coding other than chunked";
        return Err(rejection("501 Not Implemented", problem));
    }
    Ok(())
}

/// Whether a field with this name applies to one connection only.
pub(crate) fn is_hop_by_hop(name: &str) -> bool {
    let is_proxys = name
        .get(..6)
        .is_some_and(|begin| begin.eq_ignore_ascii_case("Proxy-"));
    is_proxys
        || HOP_BY_HOP
            .iter()
            .any(|other| name.eq_ignore_ascii_case(other))
}

/// Whether a field is forwarded to the target, that is, it is neither hop-by-hop nor listed in
/// `Connection`. `Host` is built from the URL.
fn passes(name: &str, fields: &[Header<'_>]) -> bool {
    let is = |other: &str| name.eq_ignore_ascii_case(other);
    let mut named = fields
        .iter()
        .filter(|field| field.name.eq_ignore_ascii_case("Connection"))
        .filter_map(|field| str::from_utf8(field.value).ok())
        .flat_map(|value| value.split(','));
    // `Connection` may list any field, but a client must not remove the fields that frame the body.
    let frames = is("Content-Length") || is("Transfer-Encoding");
    frames || !(is("Host") || is_hop_by_hop(name) || named.any(|other| is(other.trim())))
}

/// Parses `host`, `host:port`, `[address]` or `[address]:port` into a URL.
fn authority(text: &str, default_port: Option<u16>) -> Option<Rc<str>> {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    };
    let port = match port {
        Some("") | None => default_port?,
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.parse().ok()?,
        Some(_) => return None,
    };
    match host.strip_prefix('[') {
        Some(host) => url(
            host.strip_suffix(']')
                .filter(|host| host.contains(':'))?
                .as_bytes(),
            port,
        ),
        None if host.contains(':') => None,
        None => url(host.as_bytes(), port),
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
    with_field(status, "", text)
}

fn with_field(status: &str, field: &str, text: &str) -> Vec<u8> {
    let length = text.len() + 1;
    format!(
        "HTTP/1.1 {status}\r\n{field}Content-Type: text/plain; charset=utf-8\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n{text}\n"
    )
    .into_bytes()
}

fn invalid(problem: &'static str) -> Rejection {
    rejection("400 Bad Request", problem)
}

fn too_large() -> Rejection {
    let problem = "has a head of more than 8 KiB or 96 fields";
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
        "This proxy requires a user name and a password.",
    )
}
