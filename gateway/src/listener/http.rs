//! An HTTP proxy's requests: CONNECT (RFC 9110, section 9.3.6), and one for an absolute `http://` URL
//! (RFC 9112, section 3.2.2), which goes on in origin form.
//!
//! One request a connection: the target is told `Connection: close`, and bodies pass as they are. Names are
//! resolved by the exit.

use std::rc::Rc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use httparse::{EMPTY_HEADER, Header, Status};
use muxtunnel_codes::Code;

use super::answer::Answer;
use super::{GREETING_BYTES_MAX, Judge, Rejection, Request, Step, url};

/// The answer to a CONNECT.
pub(super) const GRANTED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";
/// Most header fields of a request.
const FIELDS_MAX: usize = 96;
const SCHEME: &str = "http://";
/// What is about the connection to the proxy, or would make more than one request of the other one.
const HOP_BY_HOP: [&str; 5] = ["Connection", "Keep-Alive", "TE", "Upgrade", "Host"];

/// The head of a request, while it comes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Head {
    /// Bytes in which its end is not.
    looked_at: usize,
}

impl Head {
    pub(super) fn step(
        &mut self,
        bytes: &[u8],
        judge: Option<&dyn Judge>,
    ) -> Result<Step, Rejection> {
        if bytes
            .first()
            .is_some_and(|byte| !byte.is_ascii_alphabetic())
        {
            return Err(invalid("is not HTTP"));
        }
        // Read as a whole once, however small the pieces are in which it comes.
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
        if judge.is_some_and(|judge| !is_known(request.headers, judge)) {
            return Err(unknown());
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

    /// Whether an empty line is in `bytes`, of which those that were looked at have none.
    fn is_whole(&mut self, bytes: &[u8]) -> bool {
        let from = self.looked_at.saturating_sub(2);
        self.looked_at = bytes.len();
        let lines = bytes.get(from..).unwrap_or_default();
        lines.windows(2).any(|pair| pair == b"\n\n")
            || lines.windows(3).any(|line| line == b"\n\r\n")
    }
}

fn connect(target: &str) -> Result<Request, Rejection> {
    let url = authority(target, None).ok_or_else(|| invalid("names no HOST:PORT to connect to"))?;
    Ok(Request {
        url,
        head: Vec::new(),
        answer: Answer::Connect,
    })
}

/// A request to a proxy, as the target has to get it.
fn forward(
    method: &str,
    target: &str,
    minor_version: u8,
    fields: &[Header<'_>],
) -> Result<Request, Rejection> {
    let (scheme, rest) = target.split_at_checked(SCHEME.len()).unwrap_or(("", ""));
    if !scheme.eq_ignore_ascii_case(SCHEME) {
        let problem = "is for a proxy: it takes CONNECT, and absolute URLs that begin with http://";
        return Err(invalid(problem));
    }
    let (host, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let url = authority(host, Some(80)).ok_or_else(|| invalid("has no host in its URL"))?;
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

/// Whether a field is for the target: not about the connection to the proxy, nor said to be.
fn passes(name: &str, fields: &[Header<'_>]) -> bool {
    let is = |other: &str| name.eq_ignore_ascii_case(other);
    let is_proxys = name
        .get(..6)
        .is_some_and(|begin| begin.eq_ignore_ascii_case("Proxy-"));
    let mut named = fields
        .iter()
        .filter(|field| field.name.eq_ignore_ascii_case("Connection"))
        .filter_map(|field| str::from_utf8(field.value).ok())
        .flat_map(|value| value.split(','));
    // How the body is framed is not for a client to take away.
    let frames = is("Content-Length") || is("Transfer-Encoding");
    frames || !(is_proxys || HOP_BY_HOP.into_iter().any(is) || named.any(|other| is(other.trim())))
}

/// The URL of `host`, `host:port`, `[address]` or `[address]:port`.
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

/// Whether `Proxy-Authorization: Basic` (RFC 7617) names somebody who is known.
fn is_known(fields: &[Header<'_>], judge: &dyn Judge) -> bool {
    let known = |field: &Header<'_>| -> Option<bool> {
        let (scheme, token) = str::from_utf8(field.value).ok()?.trim().split_once(' ')?;
        if !scheme.eq_ignore_ascii_case("Basic") {
            return None;
        }
        let bytes = STANDARD.decode(token.trim()).ok()?;
        let colon = bytes.iter().position(|byte| *byte == b':')?;
        Some(judge.knows(&bytes[..colon], &bytes[colon + 1..]))
    };
    let is_authorization =
        |field: &&Header<'_>| field.name.eq_ignore_ascii_case("Proxy-Authorization");
    fields.iter().find(is_authorization).and_then(known) == Some(true)
}

/// An answer that is not 2xx: `status`, and `text` for people.
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
    Rejection {
        reply: refusal("400 Bad Request", &format!("The request {problem}.")),
        code: Code::ClientRequestInvalid,
        problem,
    }
}

fn too_large() -> Rejection {
    let problem = "has a head of more than 8 KiB or 96 fields";
    Rejection {
        reply: refusal(
            "431 Request Header Fields Too Large",
            &format!("The request {problem}."),
        ),
        code: Code::ClientRequestInvalid,
        problem,
    }
}

fn unknown() -> Rejection {
    let field = "Proxy-Authenticate: Basic realm=\"muxgate\", charset=\"UTF-8\"\r\n";
    Rejection {
        reply: with_field(
            "407 Proxy Authentication Required",
            field,
            "This proxy asks for a user name and a password.",
        ),
        code: Code::ClientUnknown,
        problem: "has no user name, or a wrong user name or password",
    }
}
