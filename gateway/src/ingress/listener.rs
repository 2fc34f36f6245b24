//! Listening sockets of forwards, and the ingress protocols in which clients specify a target.
//!
//! Input: the bytes of a client. Output: a [`Request`] or a [`Rejection`]. [`greeting`] reads and
//! writes the socket, and bounds the number of clients and the time of each client. [`Dialogue`]
//! interprets the bytes without I/O. [`crate::roles::entry`] opens the streams.

pub(crate) mod answer;
mod detect;
pub(crate) mod greeting;
pub(crate) mod http;
mod long_heads;
#[cfg(any(test, feature = "oracles"))]
pub(crate) mod oracle;
pub(crate) mod socket;
mod socks4;
mod socks5;
mod transparent;
mod unix;
mod users;

#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::rc::Rc;

use muxtunnel_codes::Code;

use crate::net::dial;
use answer::Answer;
use detect::Detected;
use http::forwarded::Forwarded;

pub(crate) use long_heads::LongHeads;
pub(crate) use unix::UnixListeners;
pub(crate) use users::{CheckedUsers, Users, UsersError};

/// Maximum number of bytes that are buffered until a client has specified its target, without a
/// permit for a long head. The limit applies to a request and the bytes after it together.
const GREETING_BYTES_MAX: usize = 8 << 10;
/// Maximum length of the head of an HTTP request, in bytes. All other requests are shorter than
/// [`GREETING_BYTES_MAX`].
pub(crate) const HEAD_BYTES_MAX: usize = 64 << 10;

/// Verifies passwords.
pub(crate) trait Authenticator {
    /// Verifies the password of `user`. An implementation takes the same time for an unknown user
    /// and for every wrong password.
    fn authenticate(&self, user: &[u8], password: &[u8]) -> Verdict;
}

/// The result of a verification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Known,
    /// The user does not exist, or the password is wrong.
    Wrong,
    /// The password must be verified first. Call again after the verification.
    Pending,
    /// Too many passwords wait for verification, or this password has waited too long.
    Busy,
}

/// The request of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    /// The URL of the target, for the exit.
    pub(crate) url: Rc<str>,
    /// The HTTP request that the gateway itself forwards, with [`Answer::Http`].
    pub(crate) forwarded: Option<Forwarded>,
    /// How the client is notified of the result.
    pub(crate) answer: Answer,
}

/// The result of [`Dialogue::step`] for the bytes that a client has sent so far.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    /// More bytes are required.
    Incomplete,
    /// `reply` answers the first `consumed` bytes. The caller passes the following bytes to another
    /// step.
    Reply { consumed: usize, reply: Vec<u8> },
    /// The authenticator must verify a password. After the verification, the caller passes the same
    /// bytes to another step.
    Pending,
    /// The gateway answers the request with `reply` and closes the connection.
    Answered { reply: Vec<u8> },
    /// The first `consumed` bytes are the request.
    Request { consumed: usize, request: Request },
}

/// Why a client is rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rejection {
    /// The reply to the client.
    pub(crate) reply: Vec<u8>,
    pub(crate) code: Code,
    /// The problem, for the log. The text contains nothing that the client sent.
    pub(crate) problem: &'static str,
}

impl Rejection {
    /// A client sent a wrong user name or password, and may be guessing.
    fn password_wrong(reply: Vec<u8>) -> Self {
        Self {
            reply,
            code: Code::PasswordWrong,
            problem: "sent a wrong user name or password",
        }
    }

    /// The password could not be verified in time.
    fn passwords_busy(reply: Vec<u8>) -> Self {
        Self {
            reply,
            code: Code::PasswordsBusy,
            problem: "sent a password that cannot be verified now because too many passwords wait",
        }
    }

    /// The client is evicted, so that another client gets its permit.
    pub(crate) fn evicted() -> Self {
        let code = Code::TooManyGreetings;
        Self {
            reply: Vec::new(),
            code,
            problem: code.cause(),
        }
    }

    /// Whether the rejection counts as a failure: a wrong password, an invalid request or a
    /// timeout. A request without a password does not count as a failure, since the reply requests
    /// a password and the client then connects again.
    pub(crate) fn is_failure(&self) -> bool {
        use Code::{ClientRequestInvalid, ClientRequestTimedOut, PasswordWrong};
        [PasswordWrong, ClientRequestInvalid, ClientRequestTimedOut].contains(&self.code)
    }
}

/// The state of the protocol that precedes the client's payload.
#[derive(Debug, Clone)]
enum Dialogue {
    /// The client sends no protocol before its payload.
    None {
        url: Rc<str>,
    },
    /// The client's first bytes determine the protocol. `target` is the URL of the target for
    /// clients whose first bytes belong to no known protocol.
    Auto {
        target: Option<Rc<str>>,
    },
    Socks4,
    Socks5(socks5::Stage),
    Http(http::Head),
}

impl Dialogue {
    /// Interprets `bytes`: all bytes that were received and not consumed. `authenticator` is set if
    /// the client must authenticate.
    fn step(
        &mut self,
        bytes: &[u8],
        authenticator: Option<&dyn Authenticator>,
    ) -> Result<Step, Rejection> {
        loop {
            match self {
                Self::None { url } => {
                    return Ok(Step::Request {
                        consumed: 0,
                        request: Request::raw(url),
                    });
                }
                Self::Auto { target } => {
                    *self = match detect::detect(bytes) {
                        Detected::Unclear => return Ok(Step::Incomplete),
                        Detected::Socks4 => Self::Socks4,
                        Detected::Socks5 => Self::Socks5(socks5::Stage::default()),
                        Detected::Http => Self::Http(http::Head::default()),
                        Detected::Other => match target.take() {
                            Some(url) => Self::None { url },
                            // Without a default target, the HTTP parser rejects the bytes. A client
                            // that uses HTTP then receives the reason.
                            None => Self::Http(http::Head::default()),
                        },
                    };
                }
                Self::Socks4 => return socks4::step(bytes, authenticator.is_some()),
                Self::Socks5(stage) => return stage.step(bytes, authenticator),
                Self::Http(head) => return head.step(bytes, authenticator),
            }
        }
    }

    /// Handles a client that sends no more bytes. If the forward has a default target, returns a
    /// request for this target.
    fn give_up(&mut self) -> Option<Request> {
        match self {
            Self::Auto { target } => target.take().map(|url| Request::raw(&url)),
            _ => None,
        }
    }
}

impl Request {
    pub(crate) fn raw(url: &Rc<str>) -> Self {
        Self {
            url: Rc::clone(url),
            forwarded: None,
            answer: Answer::None,
        }
    }
}

/// The URL of a host from a client; `None`: the host is neither a name nor an address.
fn url(host: &[u8], port: u16) -> Option<Rc<str>> {
    let host = str::from_utf8(host).ok()?;
    let is_name = host
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    let fits = (1..=255).contains(&host.len()) && port > 0;
    (fits && (is_name || host.parse::<IpAddr>().is_ok())).then(|| dial::url(host, port).into())
}
