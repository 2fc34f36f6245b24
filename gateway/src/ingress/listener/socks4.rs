//! SOCKS4 and SOCKS4a, command CONNECT. Neither protocol has passwords, so a forward with `auth`
//! rejects their clients.
//!
//! Source: "SOCKS: A protocol for TCP proxy across firewalls" and its extension 4A, Ying-Da Lee.

use std::net::Ipv4Addr;

use muxtunnel_codes::Code;

use super::answer::Answer;
use super::{Rejection, Request, Step, url};

/// The field VN.
pub(super) const VERSION: u8 = 4;
/// The field CD of a reply.
pub(super) const GRANTED: u8 = 90;
pub(super) const REJECTED: u8 = 91;
const CONNECT: u8 = 1;
/// Maximum length of a user id and of a name, in bytes.
const TEXT_BYTES_MAX: usize = 255;

/// Parses `VN | CD | DSTPORT | DSTIP | USERID | 0`, followed by `NAME | 0` if DSTIP is 0.0.0.x.
pub(super) fn step(bytes: &[u8], must_be_known: bool) -> Result<Step, Rejection> {
    if bytes.get(1).is_some_and(|command| *command != CONNECT) {
        let problem =
            "requests a command other than CONNECT, such as BIND: only CONNECT is supported";
        return Err(rejection(Code::ClientRequestInvalid, problem));
    }
    let Some(([_, _, high, low, address @ ..], rest)) = bytes.split_first_chunk::<8>() else {
        return Ok(Step::Incomplete);
    };
    if must_be_known {
        let problem = "uses SOCKS4, which has no passwords, but the forward requires a password";
        return Err(rejection(Code::ClientUnknown, problem));
    }
    let Some((_, rest)) = text(rest) else {
        return unfinished(rest);
    };
    let (host, rest) = match *address {
        [0, 0, 0, last] if last > 0 => match text(rest) {
            Some((name, rest)) => (name.to_vec(), rest),
            None => return unfinished(rest),
        },
        address => (Ipv4Addr::from(address).to_string().into_bytes(), rest),
    };
    let Some(url) = url(&host, u16::from_be_bytes([*high, *low])) else {
        let problem = "specifies an invalid target";
        return Err(rejection(Code::ClientRequestInvalid, problem));
    };
    Ok(Step::Request {
        consumed: bytes.len() - rest.len(),
        request: Request {
            url,
            forwarded: None,
            answer: Answer::Socks4,
        },
    })
}

/// Splits the text at the next zero byte; `None`: the text is incomplete.
fn text(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut most = bytes.iter().take(TEXT_BYTES_MAX + 1);
    let end = most.position(|byte| *byte == 0)?;
    Some((&bytes[..end], &bytes[end + 1..]))
}

fn unfinished(text: &[u8]) -> Result<Step, Rejection> {
    if text.len() <= TEXT_BYTES_MAX {
        return Ok(Step::Incomplete);
    }
    let problem = "has a user id or a name of more than 255 bytes";
    Err(rejection(Code::ClientRequestInvalid, problem))
}

/// Builds `VN | CD | DSTPORT | DSTIP`. Clients read only CD.
pub(super) fn reply(code: u8) -> Vec<u8> {
    vec![0, code, 0, 0, 0, 0, 0, 0]
}

fn rejection(code: Code, problem: &'static str) -> Rejection {
    Rejection {
        reply: reply(REJECTED),
        code,
        problem,
    }
}
