//! Where clients arrive: sockets that are listened on, and how a client says where it wants to go.
//!
//! In come bytes of a client, out goes a [`Request`] or a [`Rejection`]. What is read and written is one
//! part ([`greeting`], which has the bounds in number and time); what it means is another, which is pure: a
//! [`Dialogue`] of bytes. Opens nothing: that is [`crate::roles::entry`].

pub(crate) mod answer;
mod detect;
pub(crate) mod greeting;
pub(crate) mod http;
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

pub(crate) use unix::UnixListeners;
pub(crate) use users::{Users, UsersError};

/// Most bytes of a client that are held before it has said where it wants to go: the head of an HTTP
/// request, with what comes along behind it.
const GREETING_BYTES_MAX: usize = 8 << 10;

/// Says whether a user has this password.
pub(crate) trait Authenticator {
    /// In a time that depends neither on how much of the password is right nor on whether there is such a user.
    fn authenticate(&self, user: &[u8], password: &[u8]) -> Verdict;
}

/// What an authenticator says of a user name and a password.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Known,
    /// There is no such user, or the password is another one.
    Wrong,
    /// It has to be verified, and to be asked again then.
    Pending,
    /// Too many passwords wait to be verified, or this one waited too long.
    Busy,
}

/// What a client wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    /// The URL that the exit is asked for.
    pub(crate) url: Rc<str>,
    /// What the target gets before what the client sent behind its request.
    pub(crate) head: Vec<u8>,
    /// How the client hears what became of it.
    pub(crate) answer: Answer,
}

/// What comes of the bytes that a client has sent so far.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    /// More of them are needed.
    Incomplete,
    /// The first `consumed` are answered by `reply`; the next ones are another part.
    Reply { consumed: usize, reply: Vec<u8> },
    /// The same bytes are to be judged again, once the authenticator has verified a password.
    Pending,
    /// The first `consumed` are the request.
    Request { consumed: usize, request: Request },
}

/// Why a client is not served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rejection {
    /// What it is told.
    pub(crate) reply: Vec<u8>,
    pub(crate) code: Code,
    /// For the log; nothing that the client wrote.
    pub(crate) problem: &'static str,
}

impl Rejection {
    /// A client gave a wrong user name or password: it may be guessing.
    fn password_wrong(reply: Vec<u8>) -> Self {
        Self {
            reply,
            code: Code::PasswordWrong,
            problem: "has a wrong user name or password",
        }
    }

    /// Nobody knows in time whether its password is right.
    fn passwords_busy(reply: Vec<u8>) -> Self {
        Self {
            reply,
            code: Code::PasswordsBusy,
            problem: "has a password that cannot be verified now",
        }
    }

    /// Others want to be heard, and this one has said nothing for longest.
    pub(crate) fn evicted() -> Self {
        let code = Code::TooManyGreetings;
        Self {
            reply: Vec::new(),
            code,
            problem: code.cause(),
        }
    }

    /// Whether the client gave a wrong password, or asked for nothing that makes sense, or for nothing in time. One that
    /// gives none is asked for it by the answer, and comes again.
    pub(crate) fn is_failure(&self) -> bool {
        use Code::{ClientRequestInvalid, ClientRequestTimedOut, PasswordWrong};
        [PasswordWrong, ClientRequestInvalid, ClientRequestTimedOut].contains(&self.code)
    }
}

/// What a client says before its own bytes, as far as it has come.
#[derive(Debug, Clone)]
enum Dialogue {
    /// Nothing.
    None {
        url: Rc<str>,
    },
    /// To be told by the first bytes. `target`: the URL for those that say nothing.
    Auto {
        target: Option<Rc<str>>,
    },
    Socks4,
    Socks5(socks5::Stage),
    Http(http::Head),
}

impl Dialogue {
    /// Judges `bytes`, all that is there and not consumed. `authenticator`: of users, where one has to be known.
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
                            // A client that speaks HTTP gets the reason.
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

    /// The client says no more: it gets what one gets who says nothing, where there is such a thing.
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
            head: Vec::new(),
            answer: Answer::None,
        }
    }
}

/// The URL of a host that a client named; `None`: it is neither a name nor an address.
fn url(host: &[u8], port: u16) -> Option<Rc<str>> {
    let host = str::from_utf8(host).ok()?;
    let is_name = host
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    let fits = (1..=255).contains(&host.len()) && port > 0;
    (fits && (is_name || host.parse::<IpAddr>().is_ok())).then(|| dial::url(host, port).into())
}
