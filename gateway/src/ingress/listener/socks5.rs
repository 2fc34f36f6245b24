//! SOCKS5 (RFC 1928) and its user names (RFC 1929): CONNECT, nothing else.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use muxtunnel_codes::Code;

use super::answer::Answer;
use super::{Authenticator, Rejection, Request, Step, Verdict, url};

/// VER.
pub(super) const VERSION: u8 = 5;
/// REP of a failure that has no number of its own.
pub(super) const GENERAL: u8 = 1;
const COMMAND_NOT_SUPPORTED: u8 = 7;
const ADDRESS_TYPE_NOT_SUPPORTED: u8 = 8;
const CONNECT: u8 = 1;
/// METHOD.
const NOBODY_ASKED: u8 = 0;
const USER_AND_PASSWORD: u8 = 2;
const NO_METHOD: u8 = 0xff;
/// VER of RFC 1929.
const USER_VERSION: u8 = 1;

/// Which part comes next.
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

    /// `VER | NMETHODS | METHODS`.
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
            let problem = "offers no user name";
            return Err(unknown(vec![VERSION, NO_METHOD], problem));
        } else {
            let problem = "offers no method of authentication that there is";
            return Err(invalid(vec![VERSION, NO_METHOD], problem));
        };
        Ok(Step::Reply {
            consumed: 2 + offered.len(),
            reply: vec![VERSION, method],
        })
    }

    /// `VER | ULEN | UNAME | PLEN | PASSWD`.
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
            return Err(invalid(refused, "has a user name of an unknown version"));
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

/// `VER | CMD | RSV | ATYP | DST.ADDR | DST.PORT`.
fn request(bytes: &[u8]) -> Result<Step, Rejection> {
    if bytes.first().is_some_and(|version| *version != VERSION) {
        return Err(invalid(
            refusal(GENERAL),
            "has a request of another version",
        ));
    }
    if bytes.get(1).is_some_and(|command| *command != CONNECT) {
        let problem = "asks for BIND or UDP ASSOCIATE, and there is CONNECT alone";
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
            let problem = "names its target by an unknown type of address";
            return Err(invalid(refusal(ADDRESS_TYPE_NOT_SUPPORTED), problem));
        }
    };
    let Some((host, [high, low, rest @ ..])) = host else {
        return Ok(Step::Incomplete);
    };
    let Some(url) = url(&host, u16::from_be_bytes([*high, *low])) else {
        let problem = "names a target that is no host and port";
        return Err(invalid(refusal(GENERAL), problem));
    };
    Ok(Step::Request {
        consumed: bytes.len() - rest.len(),
        request: Request {
            url,
            head: Vec::new(),
            answer: Answer::Socks5,
        },
    })
}

/// A part behind its length, and what follows; `None`: it is not whole.
fn counted(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first()?;
    rest.split_at_checked((*length).into())
}

/// `VER | REP | RSV | ATYP | BND.ADDR | BND.PORT`.
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

/// A failure, which has no address.
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
