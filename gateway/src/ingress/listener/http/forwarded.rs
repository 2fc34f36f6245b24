//! The rewriting of a request for an absolute URL for its target (RFC 9110, section 7; RFC 9112,
//! sections 3.2, 6 and 9). docs/proxy-conformance.md lists the requirements.

use std::rc::Rc;

use httparse::Header;

use super::super::answer::Answer;
use super::super::{Rejection, Request, url};
use super::{TEXT, invalid, rejection, too_large, with_field};

/// The name of this gateway in `Via`. It is a pseudonym, since the host's name is nobody's concern.
pub(crate) const PSEUDONYM: &str = "muxgate";
const SCHEME: &str = "http://";
/// Fields that apply to one connection (RFC 9110, section 7.6.1). Trailers are not forwarded, so
/// `Trailer` is also removed.
const HOP_BY_HOP: [&str; 9] = [
    "Connection",
    "Keep-Alive",
    "Proxy-Authenticate",
    "Proxy-Authentication-Info",
    "Proxy-Authorization",
    "Proxy-Connection",
    "TE",
    "Trailer",
    "Upgrade",
];
/// Fields that the answer to TRACE leaves out, since scripts must not read them.
const SECRET: [&str; 4] = [
    "Authorization",
    "Cookie",
    "Proxy-Authorization",
    "Proxy-Authenticate",
];
/// Maximum length of the message that an answer to TRACE returns, in bytes.
const TRACE_BYTES_MAX: usize = 4 << 10;
/// Largest `Content-Length`. The limit leaves room for sums.
const LENGTH_MAX: u64 = i64::MAX as u64;

/// A request that the gateway forwards, and whose response it returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Forwarded {
    /// The rewritten head, for hyper. Hyper gets no `Expect`, which it would answer itself.
    pub(crate) head: Vec<u8>,
    pub(crate) body: BodyFraming,
    /// Whether the client may send another request on its connection.
    pub(crate) persists: bool,
    /// Whether the client waits for 100 (Continue) before it sends its body.
    pub(crate) expects: bool,
    /// Whether the client understands informational responses. HTTP/1.0 does not have them.
    pub(crate) hears_informational: bool,
}

/// How the end of a request's body is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyFraming {
    None,
    Length(u64),
    Chunked,
}

/// What follows a request.
pub(super) enum Outcome {
    Request(Request),
    /// The gateway is the last recipient and answers.
    Answer(Vec<u8>),
}

/// Rewrites a request for an absolute URL to the form that the target expects.
pub(super) fn forward(
    method: &str,
    target: &str,
    minor_version: u8,
    fields: &[Header<'_>],
) -> Result<Outcome, Rejection> {
    let (scheme, rest) = target.split_at_checked(SCHEME.len()).unwrap_or(("", ""));
    if !scheme.eq_ignore_ascii_case(SCHEME) {
        let problem =
            "is not a proxy request: expected CONNECT, or an absolute URL that begins with http://";
        return Err(invalid(problem));
    }
    let (host, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let url = authority(host, Some(80)).ok_or_else(|| invalid("has no host in its URL"))?;
    let body = framing(minor_version, fields)?;
    let path = path.split('#').next().unwrap_or_default();
    let path = match path {
        "" if method == "OPTIONS" => "*".to_owned(),
        path if path.starts_with('/') => path.to_owned(),
        path => format!("/{path}"),
    };
    let line = format!("{method} {path} HTTP/1.{minor_version}\r\nHost: {host}\r\n");
    let mut head = line.into_bytes();
    let hops = match method {
        "TRACE" | "OPTIONS" => hops(fields)?,
        _ => None,
    };
    match hops {
        Some(0) => return answer(method, target, minor_version, fields).map(Outcome::Answer),
        Some(hops) => head.extend(format!("Max-Forwards: {}\r\n", hops - 1).into_bytes()),
        None => {}
    }
    let is_http_1_1 = minor_version > 0;
    let mut expects = false;
    for field in fields.iter().filter(|field| passes(field.name, fields)) {
        let is = |name: &str| field.name.eq_ignore_ascii_case(name);
        if is("Expect") && continues(field.value) {
            expects = is_http_1_1 && body != BodyFraming::None;
        } else if !(is("Expect") && !is_http_1_1 || is("Max-Forwards") && hops.is_some()) {
            head.extend(field.name.bytes());
            head.extend(b": ");
            head.extend(field.value);
            head.extend(b"\r\n");
        }
    }
    match body {
        BodyFraming::None => {}
        BodyFraming::Length(length) => {
            head.extend(format!("Content-Length: {length}\r\n").into_bytes());
        }
        BodyFraming::Chunked => head.extend(b"Transfer-Encoding: chunked\r\n"),
    }
    head.extend(format!("Via: 1.{minor_version} {PSEUDONYM}\r\n").into_bytes());
    let persists = is_http_1_1 && !names(fields, "close");
    if !persists {
        head.extend(b"Connection: close\r\n");
    }
    head.extend(b"\r\n");
    Ok(Outcome::Request(Request {
        url,
        forwarded: Some(Forwarded {
            head,
            body,
            persists,
            expects,
            hears_informational: is_http_1_1,
        }),
        answer: Answer::Http,
    }))
}

/// The values of the fields with this name.
fn values<'a>(fields: &'a [Header<'a>], name: &'static str) -> impl Iterator<Item = &'a [u8]> {
    let named = move |field: &&Header<'_>| field.name.eq_ignore_ascii_case(name);
    fields.iter().filter(named).map(|field| field.value)
}

/// The elements of a list (RFC 9110, section 5.6.1). Empty elements do not count.
fn elements<'a>(
    fields: &'a [Header<'a>],
    name: &'static str,
) -> impl Iterator<Item = &'a [u8]> + Clone {
    let fields: Vec<_> = values(fields, name).collect();
    let parts = fields
        .into_iter()
        .flat_map(|value| value.split(|byte| *byte == b','));
    let elements: Vec<_> = parts
        .map(<[u8]>::trim_ascii)
        .filter(|element| !element.is_empty())
        .collect();
    elements.into_iter()
}

/// Finds the end of the body. Rejects a request if two parsers could find different ends (RFC 9112,
/// sections 6.1 and 6.3).
fn framing(minor_version: u8, fields: &[Header<'_>]) -> Result<BodyFraming, Rejection> {
    let has_length = values(fields, "Content-Length").next().is_some();
    if values(fields, "Transfer-Encoding").next().is_some() {
        if has_length || minor_version == 0 {
            let problem = "states the length of its body in more than one way, or has a transfer coding in HTTP/1.0";
            return Err(invalid(problem));
        }
        let codings = elements(fields, "Transfer-Encoding");
        let is_chunked = |coding: &&[u8]| coding.eq_ignore_ascii_case(b"chunked");
        let chunked = codings.clone().filter(is_chunked).count();
        if chunked != 1 || !codings.clone().last().is_some_and(|last| is_chunked(&last)) {
            let problem = "has a body without an end: its last transfer coding is not chunked";
            return Err(invalid(problem));
        }
        if codings.count() > 1 {
            let problem = "has a transfer coding other than chunked";
            return Err(rejection("501 Not Implemented", problem));
        }
        return Ok(BodyFraming::Chunked);
    }
    if !has_length {
        return Ok(BodyFraming::None);
    }
    // Equal values count once (RFC 9110, section 8.6). An element must not be empty.
    let mut lengths = values(fields, "Content-Length").flat_map(|value| {
        let parts = value.split(|byte| *byte == b',');
        parts.map(|part| length(part.trim_ascii()))
    });
    let problem = "has a Content-Length that is not a number";
    let first = lengths.next().flatten().ok_or_else(|| invalid(problem))?;
    for length in lengths {
        match length {
            Some(length) if length == first => {}
            Some(_) => return Err(invalid("has several lengths of its body")),
            None => return Err(invalid(problem)),
        }
    }
    Ok(BodyFraming::Length(first))
}

fn length(digits: &[u8]) -> Option<u64> {
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    let number = str::from_utf8(digits).ok().filter(|_| is_number)?;
    number.parse().ok().filter(|length| *length <= LENGTH_MAX)
}

/// The number of proxies that may still forward the request; `None`: any number.
fn hops(fields: &[Header<'_>]) -> Result<Option<u64>, Rejection> {
    let mut stated = values(fields, "Max-Forwards");
    let Some(first) = stated.next() else {
        return Ok(None);
    };
    let hops = length(first).filter(|_| stated.next().is_none());
    let problem = "has a Max-Forwards that is not one number";
    hops.map(Some).ok_or_else(|| invalid(problem))
}

/// The answer of the last recipient of a TRACE or an OPTIONS (RFC 9110, sections 7.6.2 and 9.3.8).
fn answer(
    method: &str,
    target: &str,
    minor_version: u8,
    fields: &[Header<'_>],
) -> Result<Vec<u8>, Rejection> {
    if method == "OPTIONS" {
        return Ok(with_field("200 OK", "", TEXT, ""));
    }
    let mut message = format!("{method} {target} HTTP/1.{minor_version}\r\n").into_bytes();
    let is_secret = |name: &str| {
        SECRET
            .iter()
            .any(|secret| name.eq_ignore_ascii_case(secret))
    };
    for field in fields.iter().filter(|field| !is_secret(field.name)) {
        message.extend(field.name.bytes());
        message.extend(b": ");
        message.extend(field.value);
        message.extend(b"\r\n");
    }
    message.extend(b"\r\n");
    if message.len() > TRACE_BYTES_MAX {
        return Err(too_large());
    }
    let message = String::from_utf8_lossy(&message);
    Ok(with_field("200 OK", "", "message/http", &message))
}

fn continues(value: &[u8]) -> bool {
    value.eq_ignore_ascii_case(b"100-continue")
}

/// Whether `Connection` lists `option`.
fn names(fields: &[Header<'_>], option: &str) -> bool {
    elements(fields, "Connection").any(|other| other.eq_ignore_ascii_case(option.as_bytes()))
}

/// Whether a field with this name applies to one connection only.
pub(crate) fn is_hop_by_hop(name: &str) -> bool {
    let mut fields = HOP_BY_HOP.iter();
    fields.any(|other| name.eq_ignore_ascii_case(other))
}

/// Whether a field is copied for the target, that is, it is neither hop-by-hop nor listed in
/// `Connection`. `Host` is built from the URL, and the fields that frame the body from the body's
/// framing, so a client cannot remove them.
fn passes(name: &str, fields: &[Header<'_>]) -> bool {
    let built = ["Host", "Content-Length", "Transfer-Encoding"];
    let is_built = built.iter().any(|other| name.eq_ignore_ascii_case(other));
    !(is_built || is_hop_by_hop(name) || names(fields, name))
}

/// Rejects a request without exactly one valid `Host` (RFC 9112, section 3.2). HTTP/1.0 needs no
/// `Host`. Some clients send none with CONNECT, whose request line is the target.
pub(super) fn check_host(
    method: &str,
    minor_version: u8,
    fields: &[Header<'_>],
) -> Result<(), Rejection> {
    let is_host_byte =
        |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:[]%".contains(byte);
    let mut hosts = values(fields, "Host");
    let (first, second) = (hosts.next(), hosts.next());
    let is_valid = match first {
        None => minor_version == 0 || method == "CONNECT",
        Some(host) => host.iter().all(is_host_byte) && second.is_none(),
    };
    let problem = "does not have exactly one valid Host field";
    is_valid.then_some(()).ok_or_else(|| invalid(problem))
}

/// Parses `host`, `host:port`, `[address]` or `[address]:port` into a URL.
pub(super) fn authority(text: &str, default_port: Option<u16>) -> Option<Rc<str>> {
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
