//! One entry of an exit's allow list: `HOST|CIDR[:PORT]`.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A target pattern. Text forms: `web.example.com:443`, `web.example.com`, `10.0.0.0/8:5432`,
/// `192.0.2.7`, `[2001:db8::1]:443`, `[2001:db8::]/32:443`, `2001:db8::/32`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allow {
    /// The hosts it covers.
    pub host: AllowHost,
    /// The port it covers; `None`: every port.
    pub port: Option<u16>,
}

/// The host part of an [`Allow`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AllowHost {
    /// A DNS name, lower case, matched literally against the name that was asked for.
    Name(String),
    /// A network, matched against the resolved address: address and prefix length. A single
    /// address is a network of full length.
    Network(IpAddr, u8),
}

/// The text is not `HOST|CIDR[:PORT]`.
#[derive(Debug, thiserror::Error)]
#[error(
    "{text:?} is not HOST|CIDR[:PORT], such as web.example.com:443, 10.0.0.0/8 or [2001:db8::1]:443: {problem}"
)]
pub struct AllowError {
    text: String,
    problem: &'static str,
}

impl FromStr for Allow {
    type Err = AllowError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).map_err(|problem| AllowError {
            text: text.to_owned(),
            problem,
        })
    }
}

fn parse(text: &str) -> Result<Allow, &'static str> {
    if let Some(rest) = text.strip_prefix('[') {
        let (address, rest) = rest.split_once(']').ok_or("a bracket is not closed")?;
        let (prefix, port) = match rest.split_once(':') {
            Some((prefix, port)) => (prefix, Some(parse_port(port)?)),
            None => (rest, None),
        };
        return Ok(Allow {
            host: parse_network(address, prefix)?,
            port,
        });
    }
    if text.matches(':').count() > 1 {
        // An IPv6 address without brackets: all of it, with no port.
        let (address, prefix) = text.split_at(text.find('/').unwrap_or(text.len()));
        return Ok(Allow {
            host: parse_network(address, prefix)?,
            port: None,
        });
    }
    let (host, port) = match text.split_once(':') {
        Some((host, port)) => (host, Some(parse_port(port)?)),
        None => (text, None),
    };
    let (address, prefix) = host.split_at(host.find('/').unwrap_or(host.len()));
    if address.parse::<IpAddr>().is_ok() || !prefix.is_empty() {
        return Ok(Allow {
            host: parse_network(address, prefix)?,
            port,
        });
    }
    parse_name(host).map(|name| Allow {
        host: AllowHost::Name(name),
        port,
    })
}

fn parse_port(text: &str) -> Result<u16, &'static str> {
    match text.parse() {
        Ok(0) | Err(_) => Err("the port must be 1..=65535"),
        Ok(port) => Ok(port),
    }
}

/// `prefix`: empty, or `/` and a length.
fn parse_network(address: &str, prefix: &str) -> Result<AllowHost, &'static str> {
    let address: IpAddr = address.parse().map_err(|_| "the address cannot be read")?;
    let bits: u8 = if address.is_ipv4() { 32 } else { 128 };
    let length = match prefix.strip_prefix('/') {
        Some(length) => length
            .parse()
            .map_err(|_| "the prefix length is not a number")?,
        None if prefix.is_empty() => bits,
        None => return Err("unexpected text behind the address"),
    };
    if length > bits {
        return Err("the prefix length is too large");
    }
    Ok(AllowHost::Network(address, length))
}

/// RFC 1123 names; digits and dots alone would be an address in one of its odd spellings.
fn parse_name(text: &str) -> Result<String, &'static str> {
    let label_ok = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && label
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    let name = text.strip_suffix('.').unwrap_or(text);
    if name.is_empty() || name.len() > 253 || !name.split('.').all(label_ok) {
        return Err("the host is not a DNS name");
    }
    if name
        .rsplit('.')
        .next()
        .is_some_and(|last| last.bytes().all(|b| b.is_ascii_digit()))
    {
        return Err("the host looks like an address but cannot be read as one");
    }
    Ok(name.to_ascii_lowercase())
}

impl fmt::Display for Allow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            AllowHost::Name(name) => f.write_str(name)?,
            AllowHost::Network(address, length) => {
                let full = if address.is_ipv4() { 32 } else { 128 };
                match (address, self.port) {
                    (IpAddr::V6(address), Some(_)) => write!(f, "[{address}]")?,
                    _ => write!(f, "{address}")?,
                }
                if *length != full {
                    write!(f, "/{length}")?;
                }
            }
        }
        match self.port {
            Some(port) => write!(f, ":{port}"),
            None => Ok(()),
        }
    }
}

impl Serialize for Allow {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Allow {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}
