//! The exits of an entry: the address, the order and the identities of each.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_with_macros::skip_serializing_none;

use crate::carrier::{check_command, check_connect};
use crate::gateway_key::GatewayKey;
use crate::peers::{Peer, PeerList, check_certificate_peers, check_peers};
use crate::rendezvous::{self, ConnectRendezvous};
use crate::{Config, ConfigError, Role, Security, UNIX_PREFIX};

/// Maximum number of exits in `connect`.
pub const CONNECT_MAX: usize = 16;
/// Maximum of [`Connect::order`].
pub const ORDER_MAX: u8 = 100;
/// Maximum length of [`Connect::name`], in characters.
pub const CONNECT_NAME_LENGTH_MAX: usize = 15;

/// One exit of an entry.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Connect {
    /// Unique name, and the identity of the exit: 1 to [`CONNECT_NAME_LENGTH_MAX`] lower-case
    /// letters, digits and `-`. The first character is a letter, and the last is not `-`.
    pub name: String,
    /// The entry uses the exits of the lowest order that answers, and uses them again when they
    /// return: 0..=[`ORDER_MAX`]. Exits of the same order share the streams.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub order: u8,
    /// `host:port` or `unix:/path` of the exit's carrier listener. The host may have several
    /// addresses, each of which is an exit.
    pub address: Option<String>,
    /// Instead of `address`: a program and its arguments, at most
    /// [`COMMAND_WORDS_MAX`](crate::COMMAND_WORDS_MAX) words. The entry starts the program for each
    /// carrier, without a shell. The program's standard input and output are the connection to the
    /// exit. The entry then has no other exit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Instead of `address`: the exit waits at a rendezvous. Only mode PublicKeys.
    pub rendezvous: Option<ConnectRendezvous>,
    /// Mode PublicKeys: the exit's keys, 1..=[`PEER_KEYS_MAX`](crate::PEER_KEYS_MAX).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub public_keys: Vec<GatewayKey>,
    /// Mode Certificates: the exit's certificate must contain one of these names, as in
    /// [`Peer::certificate_names`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub certificate_names: Vec<String>,
    /// Settings of WebSocket carriers to this exit.
    pub web_socket: Option<ConnectWebSocket>,
}

/// Settings of WebSocket carriers to one exit.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ConnectWebSocket {
    /// The Host header of the request. Default: the address.
    pub host: Option<String>,
    /// The scheme of the request.
    #[serde(default, skip_serializing_if = "WebSocketScheme::is_http")]
    pub scheme: WebSocketScheme,
}

/// The scheme of WebSocket requests. HTTP: the entry sends the request without TLS of its own. HTTPS:
/// TLS 1.3 to the proxy in front of the exit, verified by the system's certificates for the host of
/// the request. The carrier's own TLS runs inside. Default: HTTP.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub enum WebSocketScheme {
    /// No TLS outside of the WebSocket connection.
    #[default]
    #[serde(rename = "HTTP")]
    Http,
    /// TLS to the proxy, outside of the WebSocket connection.
    #[serde(rename = "HTTPS")]
    Https,
}

impl WebSocketScheme {
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde needs a reference")]
    fn is_http(&self) -> bool {
        *self == Self::Http
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde needs a reference")]
const fn is_zero(order: &u8) -> bool {
    *order == 0
}

impl Connect {
    /// The exit as a peer, with the identities that it may prove.
    #[must_use]
    pub fn peer(&self) -> Peer {
        Peer {
            name: Some(self.name.clone()),
            public_keys: self.public_keys.clone(),
            certificate_names: self.certificate_names.clone(),
            ..Peer::default()
        }
    }

    /// The address that the entry dials: that of the exit or of its rendezvous. `None`: the exit has
    /// a command.
    #[must_use]
    pub fn dialled(&self) -> Option<&str> {
        let rendezvous = self.rendezvous.as_ref().map(|place| &place.address);
        self.address.as_ref().or(rendezvous).map(String::as_str)
    }

    /// Whether the exit is a Unix socket.
    pub(crate) fn is_unix(&self) -> bool {
        let address = self.address.as_deref();
        address.is_some_and(|address| address.starts_with(UNIX_PREFIX))
    }

    /// The exit without the identities that it may prove.
    fn without_identities(&self) -> Self {
        Self {
            public_keys: Vec::new(),
            certificate_names: Vec::new(),
            rendezvous: self.rendezvous.as_ref().map(|place| ConnectRendezvous {
                public_keys: Vec::new(),
                ..place.clone()
            }),
            ..self.clone()
        }
    }
}

/// Whether an exit of `connect` is a Unix socket.
pub(crate) fn has_unix(config: &Config) -> bool {
    config.connect.iter().any(Connect::is_unix)
}

/// Whether `connect` names the host of every exit. A Unix socket, a command and an exit at a
/// rendezvous have no host.
pub(crate) fn has_hosts(config: &Config) -> bool {
    let has = |exit: &Connect| exit.address.is_some() && !exit.is_unix();
    config.connect.iter().all(has)
}

/// The exits without their identities: the part that needs a restart.
pub(crate) fn without_identities(exits: &[Connect]) -> Vec<Connect> {
    exits.iter().map(Connect::without_identities).collect()
}

/// The exits of `running` with the identities of the exits of the same names in `new`.
pub(crate) fn with_identities_of(running: &[Connect], new: &[Connect]) -> Vec<Connect> {
    let take = |exit: &mut Connect, new: &Connect| {
        exit.public_keys.clone_from(&new.public_keys);
        exit.certificate_names.clone_from(&new.certificate_names);
        if let (Some(place), Some(new)) = (&mut exit.rendezvous, &new.rendezvous) {
            place.public_keys.clone_from(&new.public_keys);
        }
    };
    with_keys_of(running, new, take, |exit| &exit.name)
}

/// The elements of `running`, after `take` has changed each by the element of the same name in `new`.
pub(crate) fn with_keys_of<T: Clone>(
    running: &[T],
    new: &[T],
    take: impl Fn(&mut T, &T),
    name: impl Fn(&T) -> &String,
) -> Vec<T> {
    let mut running = running.to_vec();
    for element in &mut running {
        if let Some(new) = new.iter().find(|new| name(new) == name(element)) {
            take(element, new);
        }
    }
    running
}

/// Checks `connect` of each role.
pub(crate) fn check(config: &Config) -> Result<(), ConfigError> {
    let exits = &config.connect;
    let problem = match (config.role, exits.len()) {
        (Role::Entry, 0) => {
            "an entry needs its exits: list the name and the address (HOST:PORT) of each".to_owned()
        }
        (Role::Exit | Role::Rendezvous, 0) => return Ok(()),
        (Role::Exit | Role::Rendezvous, _) => {
            "only an entry dials carriers: remove the field".to_owned()
        }
        (_, count) if count > CONNECT_MAX => {
            format!("has {count} exits: at most {CONNECT_MAX} are allowed")
        }
        _ => return check_exits(config),
    };
    Err(ConfigError::field("connect", problem))
}

fn check_exits(config: &Config) -> Result<(), ConfigError> {
    let mut names = BTreeSet::new();
    for (index, exit) in config.connect.iter().enumerate() {
        let at = |field: &str| format!("connect[{index}].{field}");
        let wrong = |field: &str, problem: String| Err(ConfigError::field(at(field), problem));
        if let Err(problem) = check_name(&mut names, &exit.name) {
            return wrong("name", problem);
        }
        ConfigError::unless_in(&at("order"), exit.order, 0..=ORDER_MAX)?;
        check_command(config, index)?;
        match &exit.address {
            Some(_) if exit.rendezvous.is_some() => {
                return wrong(
                    "address",
                    "an exit has an address or a rendezvous".to_owned(),
                );
            }
            Some(_) if !exit.command.is_empty() => {
                return wrong("address", "an exit has an address or a command".to_owned());
            }
            None if exit.rendezvous.is_some() && !exit.command.is_empty() => {
                return wrong(
                    "command",
                    "an exit has a rendezvous or a command".to_owned(),
                );
            }
            Some(address) => check_connect(&at("address"), address)?,
            None if exit.command.is_empty() && exit.rendezvous.is_none() => {
                return wrong(
                    "address",
                    "is missing: write HOST:PORT of the exit".to_owned(),
                );
            }
            None => {}
        }
        let web_socket = exit.web_socket.as_ref();
        if web_socket.is_some_and(|own| own.scheme == WebSocketScheme::Https) {
            let problem = match &config.security {
                _ if config.web_socket.is_none() => "HTTPS needs webSocket.path",
                _ if exit.address.is_none() || exit.is_unix() => "HTTPS needs address: HOST:PORT",
                Security::None {} | Security::PublicKeys(_) => "",
                Security::Certificates(_) | Security::ServerTls(_) | Security::Ssh(_) => {
                    "HTTPS is for security mode PublicKeys and None: in this mode, TLS runs outside of the WebSocket \
                     connection already"
                }
            };
            if !problem.is_empty() {
                return wrong("webSocket.scheme", problem.to_owned());
            }
        }
        let host = web_socket.and_then(|it| it.host.as_ref());
        match host {
            Some(host) if host.is_empty() || !host.bytes().all(|byte| byte.is_ascii_graphic()) => {
                return wrong(
                    "webSocket.host",
                    format!("{host:?} is not HOST or HOST:PORT"),
                );
            }
            Some(_) if config.web_socket.is_none() => {
                let problem = "is only for carriers over WebSocket: set webSocket.path".to_owned();
                return wrong("webSocket.host", problem);
            }
            _ => {}
        }
    }
    check_identities(config)
}

/// Checks a name, and that `names`, to which the function adds it, does not have it.
pub(crate) fn check_name<'a>(names: &mut BTreeSet<&'a str>, name: &'a str) -> Result<(), String> {
    if !is_name(name) {
        return Err(format!(
            "{name:?} is not a name: expected 1 to {CONNECT_NAME_LENGTH_MAX} lower-case letters, digits and -, and a \
             letter first"
        ));
    }
    match names.insert(name) {
        true => Ok(()),
        false => Err(format!("{name:?} is used twice")),
    }
}

/// A name that a Service port may have, and that is not the text of a key.
fn is_name(name: &str) -> bool {
    let may = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=CONNECT_NAME_LENGTH_MAX).contains(&name.len())
        && name.bytes().all(may)
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && !name.ends_with('-')
}

/// Checks that an exit has the identities of the security mode, and no others.
fn check_identities(config: &Config) -> Result<(), ConfigError> {
    let checked = match (&config.security, config.role) {
        (Security::PublicKeys(keys), Role::Entry) if keys.peers_file.is_none() => {
            check_peers(&peers(config), PeerList::Exits, &[])
        }
        (Security::Certificates(_), Role::Entry) => check_certificate_peers(&peers(config), true),
        _ => {
            for (index, exit) in config.connect.iter().enumerate() {
                for (field, is_there) in [
                    ("publicKeys", !exit.public_keys.is_empty()),
                    ("certificateNames", !exit.certificate_names.is_empty()),
                ] {
                    if is_there {
                        let problem = "does not belong to this security mode and role, or security.peersFile replaces it: \
                                       remove the field";
                        let field = format!("connect[{index}].{field}");
                        return Err(ConfigError::field(field, problem));
                    }
                }
            }
            return Ok(());
        }
    };
    checked.map_err(|found| {
        let field = format!("connect[{}].{}", found.index, found.field);
        ConfigError::field(field.trim_end_matches('.'), found.problem)
    })
}

/// The exits with identities in `connect`. A file of peers replaces all of them.
fn peers(config: &Config) -> Vec<Peer> {
    let exits = config.connect.iter().map(Connect::peer);
    match &config.security {
        Security::PublicKeys(keys) if keys.peers_file.is_some() => Vec::new(),
        _ => exits.collect(),
    }
}

impl Config {
    /// The program and the arguments that connect an entry to its only exit, if it has them.
    #[must_use]
    pub fn command(&self) -> Option<&[String]> {
        let exit = self.connect.first()?;
        (!exit.command.is_empty()).then_some(&*exit.command)
    }

    /// The security with all other gateways that this gateway accepts: at an entry, the exits of
    /// `connect`; at a rendezvous, its members; at a leaf, its rendezvous, too.
    #[must_use]
    pub fn trusted(&self) -> Security {
        let security = match self.role {
            Role::Entry => self.security.with_peers(peers(self)),
            Role::Rendezvous => self.security.with_peers(rendezvous::members(self)),
            Role::Exit => self.security.clone(),
        };
        security.with_places(rendezvous::places(self))
    }
}

#[cfg(test)]
mod tests;
