//! The permissions of a login by SSH, which apply in addition to the policy.

use crate::base::glob::glob_in_any_case;

/// The part of a gateway's policy that a key's line or a certificate permits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Grant {
    /// Whether the login may forward connections.
    pub(in crate::io) forwards: bool,
    /// Permitted targets; `None`: all targets.
    pub(in crate::io) opens: Option<Vec<Pattern>>,
    /// Addresses on which the login may request listeners; `None`: all addresses.
    pub(in crate::io) listens: Option<Vec<Pattern>>,
}

impl Default for Grant {
    fn default() -> Self {
        Self {
            forwards: true,
            opens: None,
            listens: None,
        }
    }
}

/// A host and a port, as in `permitopen` and `permitlisten`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::io) struct Pattern {
    /// The host; `None`: any host.
    host: Option<String>,
    /// The port; `None`: any port.
    port: Option<u16>,
}

impl Pattern {
    /// Parses `HOST:PORT`. The port may be `*`. `none` permits no target.
    pub(in crate::io) fn parse_open(text: &str) -> Result<Option<Self>, String> {
        if text == "none" {
            return Ok(None);
        }
        let wrong = || format!("{text:?} is not HOST:PORT, with an IPv6 address in brackets");
        Self::parse(text).ok_or_else(wrong).map(Some)
    }

    /// Parses `[HOST:]PORT`. The host may contain `*` and `?`, and the port may be `*`. `none`
    /// permits no listener.
    pub(in crate::io) fn parse_listen(text: &str) -> Result<Option<Self>, String> {
        if text == "none" {
            return Ok(None);
        }
        let wrong = || format!("{text:?} is not [HOST:]PORT, with an IPv6 address in brackets");
        let parsed = match text.contains(':') {
            true => Self::parse(text),
            false => Self::new("*", text),
        };
        parsed.ok_or_else(wrong).map(Some)
    }

    fn parse(text: &str) -> Option<Self> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => rest.split_once("]:")?,
            None => text.split_once(':')?,
        };
        Self::new(host, port)
    }

    fn new(host: &str, port: &str) -> Option<Self> {
        let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
        let port = match port {
            "*" => None,
            port if is_number => Some(port.parse().ok().filter(|port: &u16| *port > 0)?),
            _ => return None,
        };
        let host = match host {
            "" => return None,
            "*" => None,
            host => Some(host.to_ascii_lowercase()),
        };
        Some(Self { host, port })
    }

    /// Matches a target. The host is literal.
    fn has_target(&self, host: &str, port: u16) -> bool {
        let has_host = |own: &String| own.eq_ignore_ascii_case(host);
        self.host.as_ref().is_none_or(has_host) && self.has_port(port)
    }

    /// Matches a listener. The host is a pattern.
    fn has_listener(&self, host: &str, port: u16) -> bool {
        let has_host = |own: &String| glob_in_any_case(own, host);
        self.host.as_ref().is_none_or(has_host) && self.has_port(port)
    }

    fn has_port(&self, port: u16) -> bool {
        self.port.is_none_or(|own| own == port)
    }
}

impl Grant {
    /// Why a channel may not connect to `host` and `port`; `None`: it may connect.
    pub(in crate::io) fn denies_open(&self, host: &str, port: u16) -> Option<&'static str> {
        let is_it = |one: &Pattern| one.has_target(host, port);
        match &self.opens {
            _ if !self.forwards => Some("the login does not permit forwarding"),
            Some(patterns) if !patterns.iter().any(is_it) => {
                Some("the login's permitopen does not permit the target")
            }
            _ => None,
        }
    }

    /// Why a channel may not connect to a Unix socket; `None`: it may connect. The option
    /// `permitopen` cannot name a Unix socket.
    pub(in crate::io) fn denies_unix(&self) -> Option<&'static str> {
        match &self.opens {
            _ if !self.forwards => Some("the login does not permit forwarding"),
            Some(_) => Some("the login's permitopen does not permit the target"),
            None => None,
        }
    }

    /// Whether this side may listen on `host` and `port`.
    pub(in crate::io) fn permits_listen(&self, host: &str, port: u16) -> bool {
        let is_it = |one: &Pattern| one.has_listener(host, port);
        let permits = |patterns: &Vec<Pattern>| patterns.iter().any(is_it);
        self.forwards && self.listens.as_ref().is_none_or(permits)
    }
}
