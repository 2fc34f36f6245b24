//! SOCKS5 (RFC 1928), command CONNECT, and authentication by user name (RFC 1929).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use muxtunnel_codes::Code;

use super::answer::Answer;
use super::{Authenticator, Rejection, Request, Step, Verdict, url};

/// The field VER.
pub(super) const VERSION: u8 = 5;
/// The value of REP (the reply code) for a failure that has no code of its own.
pub(super) const GENERAL: u8 = 1;
const COMMAND_NOT_SUPPORTED: u8 = 7;
const ADDRESS_TYPE_NOT_SUPPORTED: u8 = 8;
const CONNECT: u8 = 1;
/// The METHOD for clients without authentication.
const NOBODY_ASKED: u8 = 0;
const USER_AND_PASSWORD: u8 = 2;
const NO_METHOD: u8 = 0xff;
/// The field VER of RFC 1929.
const USER_VERSION: u8 = 1;

/// The message that the client sends next.
#[derive(Debug, Clone, Copy, Default)]
pub(super) enum Stage {
    /// The methods that the client offers.
    #[default]
    Methods,
    User,
    Request,
}

impl Stage {
    pub(super) fn step(
        &mut self,
        bytes: &[u8],
        authenticator: Option<&dyn Authenticator>,
    ) -> Result<Step, Rejection> {
        match self {
            Self::Methods => self.methods(bytes, authenticator.is_some()),
            Self::User => self.user(bytes, authenticator),
            Self::Request => request(bytes),
        }
    }

    /// Parses `VER | NMETHODS | METHODS`.
    fn methods(&mut self, bytes: &[u8], must_be_known: bool) -> Result<Step, Rejection> {
        if bytes.first().is_some_and(|version| *version != VERSION) {
            return Err(invalid(vec![VERSION, NO_METHOD], "is not SOCKS5"));
        }
        let [_, count, rest @ ..] = bytes else {
            return Ok(Step::Incomplete);
        };
        let Some(offered) = rest.get(..usize::from(*count)) else {
            return Ok(Step::Incomplete);
        };
        let method = if !must_be_known && offered.contains(&NOBODY_ASKED) {
            *self = Self::Request;
            NOBODY_ASKED
        } else if offered.contains(&USER_AND_PASSWORD) {
            *self = Self::User;
            USER_AND_PASSWORD
        } else if must_be_known {
            let problem = "does not offer authentication by user name and password";
            return Err(unknown(vec![VERSION, NO_METHOD], problem));
        } else {
            let problem = "offers no supported authentication method";
            return Err(invalid(vec![VERSION, NO_METHOD], problem));
        };
        Ok(Step::Reply {
            consumed: 2 + offered.len(),
            reply: vec![VERSION, method],
        })
    }

    /// Parses `VER | ULEN | UNAME | PLEN | PASSWD`.
    fn user(
        &mut self,
        bytes: &[u8],
        authenticator: Option<&dyn Authenticator>,
    ) -> Result<Step, Rejection> {
        let refused = vec![USER_VERSION, 1];
        if bytes
            .first()
            .is_some_and(|version| *version != USER_VERSION)
        {
            return Err(invalid(
                refused,
                "uses an unknown version of the user name request",
            ));
        }
        let Some((user, rest)) = bytes.get(1..).and_then(counted) else {
            return Ok(Step::Incomplete);
        };
        let Some((password, rest)) = counted(rest) else {
            return Ok(Step::Incomplete);
        };
        match authenticator.map(|authenticator| authenticator.authenticate(user, password)) {
            None | Some(Verdict::Known) => {}
            Some(Verdict::Pending) => return Ok(Step::Pending),
            Some(Verdict::Wrong) => return Err(Rejection::password_wrong(refused)),
            Some(Verdict::Busy) => return Err(Rejection::passwords_busy(refused)),
        }
        *self = Self::Request;
        Ok(Step::Reply {
            consumed: bytes.len() - rest.len(),
            reply: vec![USER_VERSION, 0],
        })
    }
}

/// Parses `VER | CMD | RSV | ATYP | DST.ADDR | DST.PORT`.
fn request(bytes: &[u8]) -> Result<Step, Rejection> {
    if bytes.first().is_some_and(|version| *version != VERSION) {
        return Err(invalid(
            refusal(GENERAL),
            "uses a version of SOCKS other than 5 in its request",
        ));
    }
    if bytes.get(1).is_some_and(|command| *command != CONNECT) {
        let problem = "requests a command other than CONNECT, such as BIND or UDP ASSOCIATE: only CONNECT is supported";
        return Err(invalid(refusal(COMMAND_NOT_SUPPORTED), problem));
    }
    let [_, _, _, kind, rest @ ..] = bytes else {
        return Ok(Step::Incomplete);
    };
    let host = match kind {
        1 => rest
            .split_first_chunk()
            .map(|(address, rest)| (Ipv4Addr::from(*address).to_string().into_bytes(), rest)),
        3 => counted(rest).map(|(name, rest)| (name.to_vec(), rest)),
        4 => rest
            .split_first_chunk::<16>()
            .map(|(address, rest)| (Ipv6Addr::from(*address).to_string().into_bytes(), rest)),
        _ => {
            let problem = "uses an unknown address type";
            return Err(invalid(refusal(ADDRESS_TYPE_NOT_SUPPORTED), problem));
        }
    };
    let Some((host, [high, low, rest @ ..])) = host else {
        return Ok(Step::Incomplete);
    };
    let Some(url) = url(&host, u16::from_be_bytes([*high, *low])) else {
        let problem = "specifies an invalid target";
        return Err(invalid(refusal(GENERAL), problem));
    };
    Ok(Step::Request {
        consumed: bytes.len() - rest.len(),
        request: Request {
            url,
            forwarded: None,
            answer: Answer::Socks5,
        },
    })
}

/// Splits off a field that follows its length; `None`: the field is incomplete.
fn counted(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first()?;
    rest.split_at_checked((*length).into())
}

/// Builds `VER | REP | RSV | ATYP | BND.ADDR | BND.PORT`.
pub(super) fn reply(code: u8, address: SocketAddr) -> Vec<u8> {
    let mut bytes = vec![VERSION, code, 0];
    match address.ip() {
        IpAddr::V4(ip) => {
            bytes.push(1);
            bytes.extend(ip.octets());
        }
        IpAddr::V6(ip) => {
            bytes.push(4);
            bytes.extend(ip.octets());
        }
    }
    bytes.extend(address.port().to_be_bytes());
    bytes
}

/// The reply to a failed request, with an empty address.
pub(super) fn refusal(code: u8) -> Vec<u8> {
    reply(code, SocketAddr::from(([0, 0, 0, 0], 0)))
}

fn invalid(reply: Vec<u8>, problem: &'static str) -> Rejection {
    Rejection {
        reply,
        code: Code::ClientRequestInvalid,
        problem,
    }
}

fn unknown(reply: Vec<u8>, problem: &'static str) -> Rejection {
    Rejection {
        reply,
        code: Code::ClientUnknown,
        problem,
    }
}
