//! Detects the protocol of a client from its first bytes.
//!
//! Detection uses as few bytes as possible: two bytes for SOCKS, and the start of the request line
//! for HTTP. A request counts as HTTP only if it is for a proxy: a CONNECT, or a request for an
//! absolute URL. A request such as `GET /` is payload for the default target.

use super::{socks4, socks5};

/// Maximum length of an HTTP method, in bytes.
const METHOD_BYTES_MAX: usize = 20;
const ABSOLUTE: &[u8] = b"http://";

/// The detected protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Detected {
    /// More bytes are required.
    Unclear,
    Socks4,
    Socks5,
    /// An HTTP request to a proxy.
    Http,
    /// None of these protocols.
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
