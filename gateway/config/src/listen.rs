//! The protocols of a forward's clients, and the authentication of these clients.

use serde::{Deserialize, Serialize};

use crate::{Target, forward::Forward};

/// The protocol that the clients of a forward use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ListenProtocol {
    /// No protocol: the gateway forwards all bytes to the forward's target.
    #[default]
    Tcp,
    /// SOCKS5 (RFC 1928), command CONNECT only. Each client names its target.
    Socks5,
    /// HTTP, as to a proxy. Each connection carries a CONNECT request (RFC 9110, section 9.3.6), or
    /// one request for an absolute `http://` URL.
    HttpConnect,
    /// SOCKS5, SOCKS4, SOCKS4a or HTTP. If the forward has a target, other clients are forwarded to
    /// it.
    Auto,
    /// No protocol: iptables REDIRECT has redirected each connection to this listener. The original
    /// destination of the connection is the target.
    Transparent,
}

impl ListenProtocol {
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde needs a reference")]
    pub(crate) fn is_tcp(&self) -> bool {
        *self == Self::Tcp
    }

    /// Whether a client can authenticate.
    #[must_use]
    pub const fn asks(self) -> bool {
        matches!(self, Self::Socks5 | Self::HttpConnect | Self::Auto)
    }

    /// The protocol's name in the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "Tcp",
            Self::Socks5 => "Socks5",
            Self::HttpConnect => "HttpConnect",
            Self::Auto => "Auto",
            Self::Transparent => "Transparent",
        }
    }
}

/// The users of a SOCKS5 or HTTP forward: `{user, passwordFile}` or `{usersFile}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Fields", into = "Fields")]
pub enum Auth {
    /// One user.
    User {
        /// The user name: 1 to 255 bytes without a colon.
        name: String,
        /// The file with the bcrypt hash of the password, or with the password itself (1 to 255
        /// bytes). A line end after the hash or the password is ignored.
        password_file: String,
    },
    /// The users in this file: each line is `name:hash`, with a bcrypt hash, or `name:password`.
    /// Empty lines and lines that begin with `#` are ignored.
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

/// The serialized form.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Fields {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    password_file: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    users_file: Option<String>,
}

impl TryFrom<Fields> for Auth {
    type Error = &'static str;

    fn try_from(fields: Fields) -> Result<Self, Self::Error> {
        match fields {
            Fields {
                user: Some(name),
                password_file: Some(password_file),
                users_file: None,
            } => Ok(Self::User {
                name,
                password_file,
            }),
            Fields {
                user: None,
                password_file: None,
                users_file: Some(file),
            } => Ok(Self::UsersFile(file)),
            _ => Err("auth needs either a user and a passwordFile, or a usersFile"),
        }
    }
}

impl From<Auth> for Fields {
    fn from(auth: Auth) -> Self {
        let (user, password_file, users_file) = match auth {
            Auth::User {
                name,
                password_file,
            } => (Some(name), Some(password_file), None),
            Auth::UsersFile(file) => (None, None, Some(file)),
        };
        Self {
            user,
            password_file,
            users_file,
        }
    }
}

/// The first field of `forward` that conflicts with another field, and the problem.
pub(crate) fn problem(forward: &Forward) -> Option<(&'static str, String)> {
    use ListenProtocol::{Auto, HttpConnect, Socks5, Tcp, Transparent};
    let (protocol, name) = (forward.protocol, forward.protocol.name());
    match (protocol, &forward.target) {
        (Tcp, None) => {
            let problem = "is missing: a forward of protocol Tcp needs a target";
            return Some(("target", problem.to_owned()));
        }
        (Socks5 | HttpConnect | Transparent, Some(Target::Tcp { .. } | Target::Unix(_))) => {
            let problem = format!(
                "is not allowed with protocol {name}: each client names its own target; remove the field"
            );
            return Some(("target", problem));
        }
        _ => {}
    }
    let unix = forward.listen.starts_with(crate::UNIX_PREFIX);
    if protocol == Transparent && unix {
        let problem = "must be ADDRESS:PORT with protocol Transparent, because iptables redirects only TCP connections";
        return Some(("listen", problem.to_owned()));
    }
    let auth = forward.auth.as_ref()?;
    match protocol {
        Tcp | Transparent => {
            let problem =
                format!("clients of protocol {name} cannot authenticate; remove the field");
            return Some(("auth", problem));
        }
        Auto if forward.target.is_some() => {
            let problem = "clients that are forwarded to the target cannot authenticate: remove target or auth";
            return Some(("auth", problem.to_owned()));
        }
        Auto | Socks5 | HttpConnect => {}
    }
    match auth {
        Auth::User { name, .. } if name.is_empty() || name.len() > 255 || name.contains(':') => {
            let problem = "must have 1 to 255 bytes without a colon";
            Some(("auth.user", problem.to_owned()))
        }
        Auth::User { .. } | Auth::UsersFile(_) => None,
    }
}
