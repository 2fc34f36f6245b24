//! Ports whose clients name their targets, and the authentication of these clients.

use serde::{Deserialize, Serialize};
use serde_with_macros::skip_serializing_none;

use crate::text::{is_default, named};
use crate::{Accept, ConfigError, Limits, Priority, Send, Target, UNIX_PREFIX};

/// Maximum number of proxies in a configuration.
pub const PROXIES_MAX: usize = 16;

named! {
    /// The protocol of a proxy's clients. SOCKS5: SOCKS5 with the command CONNECT. HTTP: HTTP, as to a
    /// proxy. Auto: SOCKS5, SOCKS4, SOCKS4a and HTTP on one port.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    #[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
    pub enum ProxyListen {
        /// SOCKS5 (RFC 1928) with the command CONNECT. Each client names its target.
        Socks5 = "SOCKS5",
        /// HTTP, as to a proxy. Each connection carries a CONNECT request (RFC 9110, section 9.3.6), or
        /// one request for an absolute `http://` URL.
        Http = "HTTP",
        /// SOCKS5, SOCKS4, SOCKS4a and HTTP on one port. With fallback targets, clients of other
        /// protocols reach these.
        Auto = "Auto",
        /// No protocol: iptables REDIRECT has redirected each connection to this listener. The original
        /// destination of the connection is the target. Not in the resources of the operator.
        #[cfg_attr(feature = "schemars", schemars(skip))]
        Transparent = "Transparent",
    }
}

impl ProxyListen {
    /// Whether a client can authenticate.
    #[must_use]
    pub const fn asks(self) -> bool {
        !matches!(self, Self::Transparent)
    }
}

/// A port of the entry whose clients name their targets. The exit must allow the targets.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ProxyListener {
    /// Unique name, used in logs and metrics.
    pub name: String,
    /// The protocol of the clients.
    pub protocol: ProxyListen,
    /// The listen address: `addr:port`, or `unix:/path` for a socket of mode 0600 that this gateway
    /// creates.
    pub listen: String,
    /// Protocol Auto without users: the targets of clients of other protocols, at most
    /// [`TARGETS_MAX`](crate::TARGETS_MAX), in the order in which they are dialled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fallback_targets: Vec<Target>,
    /// The file with the users that may connect: each line is `name:hash`, with a bcrypt hash, or
    /// `name:password`. Empty lines and lines that begin with `#` are ignored. Default: every
    /// client may connect.
    pub users_file: Option<String>,
    /// In place of `users_file`: the only user, 1 to 255 bytes without a colon.
    pub user: Option<String>,
    /// The file with the bcrypt hash of the user's password, or with the password itself (1 to 255
    /// bytes). A line end after the hash or the password is ignored.
    pub password_file: Option<String>,
    /// Each connection must begin with a PROXY protocol header, version 2, which names the client.
    /// Set this field only if the sender of these headers is the only client that can reach the
    /// port. Any other client could send a false address.
    pub accept_proxy_protocol: Option<Accept>,
    /// Before the payload, the exit sends the target a header that names the client. Protocol Native
    /// only.
    pub send_proxy_protocol: Option<Send>,
    /// The priority of the proxy's new streams, relative to the streams of other ports.
    #[serde(default, skip_serializing_if = "is_default")]
    pub priority: Priority,
    /// Limits of the proxy's streams. Default: no limit.
    #[serde(default, skip_serializing_if = "is_default")]
    pub limits: Limits,
}

/// The users of a proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Auth {
    /// One user.
    User {
        /// The value of [`ProxyListener::user`].
        name: String,
        /// The value of [`ProxyListener::password_file`].
        password_file: String,
    },
    /// The value of [`ProxyListener::users_file`].
    UsersFile(String),
}

impl Auth {
    /// The path of the file.
    #[must_use]
    pub fn path(&self) -> &str {
        match self {
            Self::User { password_file, .. } => password_file,
            Self::UsersFile(path) => path,
        }
    }
}

impl ProxyListener {
    /// The users. `None`: every client may connect.
    #[must_use]
    pub fn auth(&self) -> Option<Auth> {
        let user = self.user.clone().zip(self.password_file.clone());
        let user = user.map(|(name, password_file)| Auth::User {
            name,
            password_file,
        });
        user.or_else(|| self.users_file.clone().map(Auth::UsersFile))
    }

    /// The first field that conflicts with another field, and the problem.
    fn problem(&self) -> Option<(&'static str, String)> {
        let name = self.protocol.as_str();
        let users = [
            ("usersFile", self.users_file.is_some()),
            ("user", self.user.is_some()),
            ("passwordFile", self.password_file.is_some()),
        ];
        let users = users.iter().find(|(_, is_set)| *is_set);
        let (field, problem) = if self.protocol != ProxyListen::Auto
            && !self.fallback_targets.is_empty()
        {
            let problem = format!(
                "is not allowed with protocol {name}: each client names its own target; remove the field"
            );
            ("fallbackTargets", problem)
        } else if self.protocol == ProxyListen::Transparent && self.listen.starts_with(UNIX_PREFIX)
        {
            let problem = "must be ADDRESS:PORT with protocol Transparent, because iptables redirects only TCP connections";
            ("listen", problem.to_owned())
        } else if let Some((field, _)) = users {
            (*field, self.problem_of_users()?)
        } else {
            return None;
        };
        Some((field, problem))
    }

    fn problem_of_users(&self) -> Option<String> {
        let problem = match (&self.users_file, &self.user, &self.password_file) {
            _ if !self.protocol.asks() => {
                let name = self.protocol.as_str();
                return Some(format!(
                    "clients of protocol {name} cannot authenticate; remove the field"
                ));
            }
            _ if !self.fallback_targets.is_empty() => {
                "clients that are forwarded to the fallback target cannot authenticate: remove fallbackTargets or the users"
            }
            (Some(_), None, None) => return None,
            (None, Some(user), Some(_)) => {
                if (1..=255).contains(&user.len()) && !user.contains(':') {
                    return None;
                }
                "must have 1 to 255 bytes without a colon"
            }
            _ => "a proxy has either a usersFile, or a user and a passwordFile",
        };
        Some(problem.to_owned())
    }
}

/// Checks the fields of each proxy that depend on each other.
pub(crate) fn check(proxies: &[ProxyListener]) -> Result<(), ConfigError> {
    for (index, proxy) in proxies.iter().enumerate() {
        let found = proxy.problem();
        let found = found.map(|(field, problem)| (format!("proxies[{index}].{field}"), problem));
        ConfigError::unless_none(found)?;
    }
    Ok(())
}
