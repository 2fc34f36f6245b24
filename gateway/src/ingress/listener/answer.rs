//! The reply to a client, in the client's protocol.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use muxtunnel_codes::Code;
use muxtunnel_proto::Reason;

use super::{http, socks4, socks5};

/// The protocol of the reply.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Answer {
    #[default]
    /// No reply: the connection continues or is reset.
    None,
    Socks4,
    Socks5,
    /// The reply to an HTTP CONNECT.
    Connect,
    /// The reply to any other HTTP request. If the open succeeds, the target replies.
    Http,
}

impl Answer {
    /// The reply to a granted request. `address`: the target's address that the exit reached, empty
    /// if unknown.
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

    /// The reply to a refused request. `reason` is the exit's reason; `None`: this gateway refused
    /// the request.
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
                    "The gateway accepts no further connections on this port now.",
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

/// The code of a refused open.
pub(crate) fn code_of(reason: Reason) -> Code {
    match reason {
        Reason::NotAllowed => Code::OpenRefused,
        Reason::TimedOut => Code::OpenTimedOut,
        _ => Code::OpenFailed,
    }
}
