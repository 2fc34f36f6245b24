//! The proxy through which carriers connect.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::check::check_host_port;
use crate::{Config, ConfigError, connect};

/// Maximum length of a user name and of a password, in bytes (RFC 1929).
const WORD_BYTES_MAX: usize = 255;
/// The spelling of [`Proxy::None`].
const NONE: &str = "none";

/// The proxy for carriers: `none`, or `http://` or `socks5h://` with `[USER:PASSWORD@]HOST:PORT`.
/// The proxy resolves the host name of the exit. No printed form contains the password.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Proxy {
    /// No proxy, even if the environment names one.
    None,
    /// The proxy with this address and these credentials.
    Server(ProxyServer),
}

/// A proxy and its credentials.
#[derive(Clone, PartialEq, Eq)]
pub struct ProxyServer {
    /// The proxy's protocol.
    pub scheme: ProxyScheme,
    /// The proxy's `host:port`.
    pub address: String,
    /// User name and password.
    pub user: Option<(String, String)>,
}

/// The protocol of a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyScheme {
    /// An HTTP proxy, by CONNECT (RFC 9110).
    Http,
    /// A SOCKS5 proxy (RFC 1928). The proxy resolves names.
    Socks5h,
}

/// The text is not a proxy. The message does not repeat the text, which may contain a password.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProxyError {
    /// Unknown scheme.
    #[error(
        "not a proxy: expected http://[USER:PASSWORD@]HOST:PORT, socks5h://[USER:PASSWORD@]HOST:PORT or none"
    )]
    Scheme,
    /// Invalid address.
    #[error("its address must be HOST:PORT, such as proxy.example.com:3128")]
    Address,
    /// Invalid user name or password.
    #[error(
        "expected USER:PASSWORD before the @, each of 1 to {WORD_BYTES_MAX} bytes, with all characters except letters and digits percent-encoded"
    )]
    User,
}

impl FromStr for Proxy {
    type Err = ProxyError;

    fn from_str(text: &str) -> Result<Self, ProxyError> {
        if text == NONE {
            return Ok(Self::None);
        }
        let (scheme, rest) = text.split_once("://").ok_or(ProxyError::Scheme)?;
        let scheme = match scheme.to_ascii_lowercase().as_str() {
            "http" => ProxyScheme::Http,
            "socks5h" => ProxyScheme::Socks5h,
            _ => return Err(ProxyError::Scheme),
        };
        let (user, address) = match rest.rsplit_once('@') {
            Some((user, address)) => (Some(parse_user(user)?), address),
            None => (None, rest),
        };
        let address = address.strip_suffix('/').unwrap_or(address);
        check_host_port("", address).map_err(|_| ProxyError::Address)?;
        if !address.bytes().all(|byte| byte.is_ascii_graphic()) || address.contains(['/', ',']) {
            return Err(ProxyError::Address);
        }
        let address = address.to_owned();
        Ok(Self::Server(ProxyServer {
            scheme,
            address,
            user,
        }))
    }
}

fn parse_user(text: &str) -> Result<(String, String), ProxyError> {
    let (name, password) = text.split_once(':').ok_or(ProxyError::User)?;
    let word = |text: &str| {
        let word = decode(text).filter(|word| (1..=WORD_BYTES_MAX).contains(&word.len()));
        word.ok_or(ProxyError::User)
    };
    let (name, password) = (word(name)?, word(password)?);
    if name.contains(':') {
        return Err(ProxyError::User);
    }
    Ok((name, password))
}

/// Decodes percent-encoding (RFC 3986). `None`: invalid encoding, or not UTF-8.
fn decode(text: &str) -> Option<String> {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let [first, behind @ ..] = rest {
        rest = behind;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = rest.get(..2)?;
        if !digits.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        let digits = std::str::from_utf8(digits).ok()?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).ok()
}

fn encode(text: &str) -> String {
    let one = |byte: u8| match byte.is_ascii_alphanumeric() {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(one).collect()
}

impl TryFrom<String> for Proxy {
    type Error = ProxyError;

    fn try_from(text: String) -> Result<Self, ProxyError> {
        text.parse()
    }
}

impl From<Proxy> for String {
    fn from(proxy: Proxy) -> Self {
        let Proxy::Server(server) = proxy else {
            return NONE.to_owned();
        };
        let user = server.user.as_ref();
        let user = user.map(|(name, password)| format!("{}:{}@", encode(name), encode(password)));
        let (scheme, user) = (server.scheme, user.unwrap_or_default());
        format!("{}://{user}{}", scheme.name(), server.address)
    }
}

impl ProxyScheme {
    const fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Socks5h => "socks5h",
        }
    }
}

impl fmt::Display for ProxyServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme.name(), self.address)
    }
}

impl fmt::Debug for ProxyServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str(NONE),
            Self::Server(server) => fmt::Display::fmt(server, f),
        }
    }
}

/// Checks that only a gateway that dials TCP has a proxy.
pub(crate) fn check(config: &Config) -> Result<(), ConfigError> {
    if !matches!(config.proxy, Some(Proxy::Server(_))) {
        return Ok(());
    }
    let problem = if config.connect.iter().all(|exit| exit.address.is_none()) {
        "only a gateway with connect can use a proxy: remove the field"
    } else if connect::has_unix(config) {
        "a proxy cannot connect to a Unix socket: remove the field, or set HOST:PORT in connect"
    } else {
        return Ok(());
    };
    Err(ConfigError::field("proxy", problem))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_is_written_as_it_is_read_and_printed_without_its_password() {
        for (text, address, user) in [
            (
                "http://proxy.example.com:3128",
                "proxy.example.com:3128",
                None,
            ),
            (
                "socks5h://al%40ice:p%3As%2F%C3%A9@[::1]:1080",
                "[::1]:1080",
                Some(("al@ice", "p:s/é")),
            ),
        ] {
            let proxy: Proxy = text.parse().unwrap();
            let Proxy::Server(server) = &proxy else {
                panic!("{text}");
            };
            assert_eq!(server.address, address);
            let found = server.user.as_ref();
            assert_eq!(found.map(|(name, word)| (&**name, &**word)), user);
            let printed = format!("{proxy:?} {server} {server:?}");
            assert!(
                !printed.contains("p:s") && !printed.contains("p%3"),
                "{printed}"
            );
            assert_eq!(String::from(proxy), text);
        }
        assert_eq!("none".parse(), Ok(Proxy::None));
        assert_eq!("HTTP://a:1/".parse::<Proxy>(), "http://a:1".parse());
    }

    #[test]
    fn what_is_no_proxy_is_refused_without_being_repeated() {
        for (text, problem) in [
            ("proxy:3128", ProxyError::Scheme),
            ("https://proxy:3128", ProxyError::Scheme),
            ("socks5://proxy:1080", ProxyError::Scheme),
            ("http://proxy", ProxyError::Address),
            ("http://proxy:0", ProxyError::Address),
            ("http://proxy:3128/path", ProxyError::Address),
            ("http://a b:3128", ProxyError::Address),
            ("http://alice@proxy:3128", ProxyError::User),
            ("http://:secret@proxy:3128", ProxyError::User),
            ("http://alice:@proxy:3128", ProxyError::User),
            ("http://a%3Ab:secret@proxy:3128", ProxyError::User),
            ("http://alice:%zz@proxy:3128", ProxyError::User),
        ] {
            assert_eq!(text.parse::<Proxy>(), Err(problem), "{text}");
        }
    }
}
