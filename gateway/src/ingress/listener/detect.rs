//! What a client speaks, told by its first bytes.
//!
//! No more is waited for than it takes: one byte tells most, and of HTTP only what is meant for a proxy
//! counts, a CONNECT or a request for an absolute URL. `GET /` is for the target.

use super::{socks4, socks5};

/// Longest method that is taken for one, bytes.
const METHOD_BYTES_MAX: usize = 20;
const ABSOLUTE: &[u8] = b"http://";

/// What it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Detected {
    /// More bytes will tell.
    Unclear,
    Socks4,
    Socks5,
    /// A request to a proxy.
    Http,
    /// None of them.
    Other,
}

pub(super) fn detect(bytes: &[u8]) -> Detected {
    match bytes {
        [] | [socks4::VERSION | socks5::VERSION] => Detected::Unclear,
        [socks4::VERSION, 1 | 2, ..] => Detected::Socks4,
        [socks5::VERSION, methods, ..] if *methods > 0 => Detected::Socks5,
        _ => http(bytes),
    }
}

fn http(bytes: &[u8]) -> Detected {
    let length = bytes.iter().take_while(|byte| byte.is_ascii_uppercase());
    let (method, rest) = bytes.split_at(length.count());
    match rest {
        _ if method.is_empty() || method.len() > METHOD_BYTES_MAX => Detected::Other,
        [] => Detected::Unclear,
        [b' ', ..] if method == b"CONNECT" => Detected::Http,
        [b' ', target @ ..] => {
            let begun = &target[..target.len().min(ABSOLUTE.len())];
            if !begun.eq_ignore_ascii_case(&ABSOLUTE[..begun.len()]) {
                Detected::Other
            } else if begun.len() < ABSOLUTE.len() {
                Detected::Unclear
            } else {
                Detected::Http
            }
        }
        _ => Detected::Other,
    }
}
