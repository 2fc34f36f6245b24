//! The exits of an entry: the address, the order and the identities of each.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_with_macros::{apply, skip_serializing_none};

use crate::carrier::{STARTS_COMMANDS, check_command, check_connect};
use crate::gateway_key::GatewayKey;
use crate::peers::{Peer, PeerList, check_certificate_peers, check_peers};
use crate::rendezvous::{self, ConnectRendezvous};
use crate::text::is_default;
use crate::{Config, ConfigError, Role, Security, UNIX_PREFIX};

/// Maximum number of exits in `connect`.
pub const CONNECT_MAX: usize = 16;
/// Maximum of [`Connect::order`].
pub const ORDER_MAX: u8 = 100;
/// Maximum length of [`Connect::name`], in characters.
pub const CONNECT_NAME_LENGTH_MAX: usize = 15;

/// One exit of an entry.
#[apply(crate = "serde_with_macros", Vec => #[serde(default, skip_serializing_if = "Vec::is_empty")])]
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Connect {
    /// Unique name, and the identity of the exit: 1 to [`CONNECT_NAME_LENGTH_MAX`] lower-case
    /// letters, digits and `-`. The first character is a letter, and the last is not `-`.
    pub name: String,
    /// The entry uses the exits of the lowest order that answers, and uses them again when they
    /// return: 0..=[`ORDER_MAX`]. Exits of the same order share the streams.
    #[serde(default, skip_serializing_if = "is_default")]
    pub order: u8,
    /// `host:port` or `unix:/path` of the exit's carrier listener. The host may have several
    /// addresses, each of which is an exit.
    pub address: Option<String>,
    /// Instead of `address`: a program and its arguments, at most
    /// [`COMMAND_WORDS_MAX`](crate::COMMAND_WORDS_MAX) words. The entry starts the program for each
    /// carrier, without a shell. The program's standard input and output are the connection to the
    /// exit. The entry then has no other exit.
    pub command: Vec<String>,
    /// Instead of `address`: the exit waits at a rendezvous. Only mode PublicKeys.
    pub rendezvous: Option<ConnectRendezvous>,
    /// Mode PublicKeys: the exit's keys, 1..=[`PEER_KEYS_MAX`](crate::PEER_KEYS_MAX).
    pub public_keys: Vec<GatewayKey>,
    /// Mode Certificates: the exit's certificate must contain one of these names, as in
    /// [`Peer::certificate_names`].
    pub certificate_names: Vec<String>,
    /// Settings of WebSocket carriers to this exit.
    pub web_socket: Option<ConnectWebSocket>,
}

/// WebSocket connections to one exit.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schemars",
    derive(schemars::JsonSchema),
    schemars(transform = crate::schema::open)
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ConnectWebSocket {
    /// The host in the HTTP requests of the entry. An Ingress can route by this host. Default: the
    /// host of the exit.
    #[cfg_attr(
        feature = "schemars",
        schemars(length(min = 1, max = 260), regex(pattern = r"^[-_.:\[\]a-zA-Z0-9]+$"))
    )]
    pub host: Option<String>,
    /// The scheme of the requests. HTTP: the entry sends the request without TLS of its own. HTTPS:
    /// TLS 1.3 to the proxy in front of the exit, verified by the system's certificates for the host
    /// of the request. The carrier's own TLS runs inside. HTTPS needs security mode PublicKeys or
    /// None. Default: HTTP.
    #[serde(default, skip_serializing_if = "is_default")]
    pub scheme: WebSocketScheme,
}

/// The scheme of WebSocket requests.
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

/// The exits of `running` with the identities of the exits of the same names in `new`. Without `new`,
/// they have no identities: this part needs a restart.
pub(crate) fn with_identities_of(running: &[Connect], new: Option<&[Connect]>) -> Vec<Connect> {
    let take = |exit: &mut Connect, new: Option<&Connect>| {
        exit.public_keys = new.map_or(Vec::new(), |new| new.public_keys.clone());
        exit.certificate_names = new.map_or(Vec::new(), |new| new.certificate_names.clone());
        if let Some(place) = &mut exit.rendezvous {
            match new.map(|new| &new.rendezvous) {
                None => place.public_keys.clear(),
                Some(Some(new)) => place.public_keys.clone_from(&new.public_keys),
                Some(None) => {}
            }
        }
    };
    with_keys_of(running, new, take, |exit| &exit.name)
}

/// The elements of `running`, after `take` has changed each by the element of the same name in `new`.
/// Without `new`, `take` has no other element.
pub(crate) fn with_keys_of<T: Clone>(
    running: &[T],
    new: Option<&[T]>,
    take: impl Fn(&mut T, Option<&T>),
    name: impl Fn(&T) -> &String,
) -> Vec<T> {
    let mut running = running.to_vec();
    for element in &mut running {
        match new.map(|new| new.iter().find(|new| name(new) == name(element))) {
            None => take(element, None),
            Some(Some(new)) => take(element, Some(new)),
            Some(None) => {}
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
        check_name(&mut names, &exit.name).or_else(|problem| wrong("name", problem))?;
        ConfigError::unless_in(&at("order"), exit.order, 0..=ORDER_MAX)?;
        check_command(config, index, STARTS_COMMANDS)?;
        let (has_place, has_command) = (exit.rendezvous.is_some(), !exit.command.is_empty());
        let found = match &exit.address {
            Some(_) if has_place => Some(("address", "an exit has an address or a rendezvous")),
            Some(_) if has_command => Some(("address", "an exit has an address or a command")),
            Some(address) => {
                check_connect(&at("address"), address)?;
                None
            }
            None if has_place && has_command => {
                Some(("command", "an exit has a rendezvous or a command"))
            }
            None if has_place || has_command => None,
            None => Some(("address", "is missing: write HOST:PORT of the exit")),
        };
        ConfigError::unless_none(found.map(|(field, problem)| (at(field), problem)))?;
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
                let field = match (&*exit.public_keys, &*exit.certificate_names) {
                    ([], []) => continue,
                    ([], _) => "certificateNames",
                    _ => "publicKeys",
                };
                let problem = "does not belong to this security mode and role, or security.peersFile replaces it: remove the \
                               field";
                let field = format!("connect[{index}].{field}");
                return Err(ConfigError::field(field, problem));
            }
            return Ok(());
        }
    };
    checked.map_err(|found| found.within("connect"))
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
