//! How a client hears what became of its request, in its own protocol.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use muxtunnel_codes::Code;
use muxtunnel_proto::Reason;

use super::{http, socks4, socks5};

/// The protocol of the answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Answer {
    #[default]
    /// None: the connection itself says it, by going on or by a reset.
    None,
    Socks4,
    Socks5,
    /// To an HTTP CONNECT.
    Connect,
    /// To any other HTTP request: where it is granted, the target answers.
    Http,
}

impl Answer {
    /// It is granted, at `address`, as the exit reports it.
    pub(crate) fn granted(self, address: &str) -> Vec<u8> {
        match self {
            Self::None | Self::Http => Vec::new(),
            Self::Socks4 => socks4::reply(socks4::GRANTED),
            Self::Socks5 => {
                let unknown = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
                socks5::reply(0, address.parse().unwrap_or(unknown))
            }
            Self::Connect => http::GRANTED.to_vec(),
        }
    }

    /// It came to nothing, for a reason of the exit's; `None`: for one of this gateway's.
    pub(crate) fn refused(self, reason: Option<Reason>) -> Vec<u8> {
        match self {
            Self::None => Vec::new(),
            Self::Socks4 => socks4::reply(socks4::REJECTED),
            Self::Socks5 => {
                let code = reason.unwrap_or(Reason::General).code();
                socks5::refusal(u8::try_from(code).unwrap_or(socks5::GENERAL))
            }
            Self::Connect | Self::Http => match reason {
                Some(reason) => http::refusal(status(reason), code_of(reason).cause()),
                None => http::refusal(
                    "503 Service Unavailable",
                    "The gateway takes no more connections here now.",
                ),
            },
        }
    }
}

fn status(reason: Reason) -> &'static str {
    match reason {
        Reason::NotAllowed => "403 Forbidden",
        Reason::TimedOut => "504 Gateway Timeout",
        _ => "502 Bad Gateway",
    }
}

/// The code of an open that was refused.
pub(crate) fn code_of(reason: Reason) -> Code {
    match reason {
        Reason::NotAllowed => Code::OpenRefused,
        Reason::TimedOut => Code::OpenTimedOut,
        _ => Code::OpenFailed,
    }
}
