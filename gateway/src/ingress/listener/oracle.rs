//! Properties that hold for all input from clients, for tests and fuzz targets.
//!
//! No input causes a panic. The result depends neither on how the bytes are split nor on how long a
//! password takes to verify. The target receives exactly the bytes after the request. A forwarded
//! head is exactly one request, without proxy fields.

use std::cell::Cell;

use super::http::forwarded::BodyFraming;
use super::*;

/// An authenticator with one user.
pub(super) struct Alice;

impl Authenticator for Alice {
    fn authenticate(&self, user: &[u8], password: &[u8]) -> Verdict {
        match (user, password) == (b"alice", b"secret") {
            true => Verdict::Known,
            false => Verdict::Wrong,
        }
    }
}

/// An authenticator with the user of [`Alice`]. Every first call for a password returns Pending.
#[derive(Default)]
struct Slow {
    was_asked: Cell<bool>,
}

impl Authenticator for Slow {
    fn authenticate(&self, user: &[u8], password: &[u8]) -> Verdict {
        match self.was_asked.replace(!self.was_asked.get()) {
            true => Alice.authenticate(user, password),
            false => Verdict::Pending,
        }
    }
}

/// The outcome of a dialogue: the replies to the client, and its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) told: Vec<u8>,
    pub(super) end: End,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum End {
    Waits,
    /// The gateway answered the request itself.
    Answered {
        reply: Vec<u8>,
    },
    Asks {
        request: Request,
        rest: Vec<u8>,
    },
    Rejected {
        reply: Vec<u8>,
        code: Code,
    },
}

/// Feeds `pieces` to the dialogue one after another. The outcome of a request includes the bytes
/// after the request.
pub(super) fn converse<'a>(
    mut dialogue: Dialogue,
    authenticator: Option<&dyn Authenticator>,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> Outcome {
    let (mut bytes, mut told) = (Vec::new(), Vec::new());
    let mut pieces = pieces.into_iter();
    loop {
        let end = match dialogue.step(&bytes, authenticator) {
            Ok(Step::Reply { consumed, reply }) => {
                told.extend(reply);
                bytes.drain(..consumed);
                continue;
            }
            Ok(Step::Pending) => continue,
            Ok(Step::Answered { reply }) => End::Answered { reply },
            Ok(Step::Incomplete) => {
                let is_http = matches!(dialogue, Dialogue::Http(_));
                let most = if is_http {
                    HEAD_BYTES_MAX
                } else {
                    GREETING_BYTES_MAX
                };
                assert!(bytes.len() < most, "waits forever");
                match pieces.next() {
                    Some(piece) => {
                        let room = HEAD_BYTES_MAX - bytes.len();
                        bytes.extend(&piece[..piece.len().min(room)]);
                        continue;
                    }
                    None => End::Waits,
                }
            }
            Ok(Step::Request { consumed, request }) => {
                let mut rest = bytes.split_off(consumed);
                pieces.for_each(|piece| rest.extend(piece));
                End::Asks { request, rest }
            }
            Err(rejection) => End::Rejected {
                reply: rejection.reply,
                code: rejection.code,
            },
        };
        return Outcome { told, end };
    }
}

/// The first byte of `input` determines the size of the pieces, and whether clients must
/// authenticate.
fn holds_in_any_pieces(dialogue: &Dialogue, input: &[u8]) {
    let Some((flags, bytes)) = input.split_first() else {
        return;
    };
    let bytes = &bytes[..bytes.len().min(HEAD_BYTES_MAX - 1)];
    let authenticator = (flags & 1 == 1).then_some(&Alice as &dyn Authenticator);
    let whole = converse(dialogue.clone(), authenticator, [bytes]);
    let pieces = || bytes.chunks(1 + usize::from(flags >> 1));
    assert_eq!(converse(dialogue.clone(), authenticator, pieces()), whole);
    if authenticator.is_some() {
        let slow = Slow::default();
        assert_eq!(converse(dialogue.clone(), Some(&slow), pieces()), whole);
    }
    let End::Asks { request, rest } = whole.end else {
        return;
    };
    assert!(bytes.ends_with(&rest), "what is behind the request");
    let is_target = request.url.starts_with("tcp://") && !request.url.contains(char::is_whitespace);
    assert!(is_target, "{}", request.url);
    assert_eq!(request.forwarded.is_some(), request.answer == Answer::Http);
    if let Some(forwarded) = &request.forwarded {
        is_one_request(forwarded);
    }
}

fn is_one_request(forwarded: &Forwarded) {
    let mut fields = [httparse::EMPTY_HEADER; http::FIELDS_MAX + 4];
    let mut request = httparse::Request::new(&mut fields);
    let parsed = request.parse(&forwarded.head);
    let length = forwarded.head.len();
    assert_eq!(parsed, Ok(httparse::Status::Complete(length)));
    let count = |name: &str| {
        let is = |field: &&httparse::Header<'_>| field.name.eq_ignore_ascii_case(name);
        request.headers.iter().filter(is).count()
    };
    assert_eq!(count("Host"), 1);
    assert_eq!(count("Connection"), usize::from(!forwarded.persists));
    assert!(count("Via") > 0 && count("Max-Forwards") <= 1 || !is_bounded(request.method));
    assert_eq!(count("Proxy-Authorization") + count("Proxy-Connection"), 0);
    let framing = match forwarded.body {
        BodyFraming::None => (0, 0),
        BodyFraming::Length(_) => (1, 0),
        BodyFraming::Chunked => (0, 1),
    };
    assert_eq!(
        (count("Content-Length"), count("Transfer-Encoding")),
        framing
    );
    assert!(
        !forwarded.expects || forwarded.hears_informational && forwarded.body != BodyFraming::None
    );
}

/// Whether the gateway counts the proxies that forward a request with this method.
fn is_bounded(method: Option<&str>) -> bool {
    matches!(method, Some("TRACE" | "OPTIONS"))
}

/// Checks any input on a SOCKS5 port.
pub(crate) fn socks5(input: &[u8]) {
    holds_in_any_pieces(&Dialogue::Socks5(socks5::Stage::default()), input);
}

/// Checks any input on a SOCKS4 port.
pub(crate) fn socks4(input: &[u8]) {
    holds_in_any_pieces(&Dialogue::Socks4, input);
}

/// Checks any input on an HTTP port.
pub(crate) fn http(input: &[u8]) {
    holds_in_any_pieces(&Dialogue::Http(http::Head::default()), input);
}

/// Checks any input on a port that detects the protocol, with and without a default target. Further
/// bytes do not change a detected protocol.
pub(crate) fn detect(input: &[u8]) {
    for target in [None, Some("tcp://web:80".into())] {
        holds_in_any_pieces(&Dialogue::Auto { target }, input);
    }
    let told = detect::detect(input);
    let first = (0..input.len()).map(|end| detect::detect(&input[..end]));
    let first = first.into_iter().find(|told| *told != Detected::Unclear);
    assert_eq!(first.unwrap_or(told), told);
}
