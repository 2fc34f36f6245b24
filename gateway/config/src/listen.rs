//! What clients speak on the port of a forward, and who they are.

use serde::{Deserialize, Serialize};

use crate::{Target, forward::Forward};

/// What the clients of a forward speak.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ListenProtocol {
    /// Nothing before their own bytes. The gateway forwards all of them to the forward's target.
    #[default]
    Tcp,
    /// SOCKS5 (RFC 1928), CONNECT alone: each says its target.
    Socks5,
    /// An HTTP proxy: CONNECT (RFC 9110, section 9.3.6), or a single request for an absolute `http://` URL.
    HttpConnect,
    /// SOCKS5, SOCKS4, SOCKS4a, HTTP, and where there is a target, anything else, which goes to it.
    Auto,
    /// Nothing; the connection was redirected on its way to its target (iptables REDIRECT).
    Transparent,
}

impl ListenProtocol {
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
    pub(crate) fn is_tcp(&self) -> bool {
        *self == Self::Tcp
    }

    /// Whether a client can be asked who it is.
    #[must_use]
    pub const fn asks(self) -> bool {
        matches!(self, Self::Socks5 | Self::HttpConnect | Self::Auto)
    }

    /// Its name, as it is written.
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

/// Whom a SOCKS5 or HTTP forward serves: `{user, passwordFile}` or `{usersFile}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Fields", into = "Fields")]
pub enum Auth {
    /// One user.
    User {
        /// 1 to 255 bytes without a colon.
        name: String,
        /// The file with the bcrypt hash of the password, or with the password, 1 to 255 bytes; a line end behind it does
        /// not count.
        password_file: String,
    },
    /// Those of a file: a line each, `name:hash` with a bcrypt hash, or `name:password`; empty ones and those that begin
    /// with `#` do not count.
    UsersFile(String),
}

/// As it is written.
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
            _ => Err("auth has either a user and a passwordFile, or a usersFile"),
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

/// The PROXY protocol, version 2, on the connections of a forward.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ProxyProtocol {
    /// Each connection begins with a header that says who the client is. Only for ports that nobody
    /// but such a sender reaches: who does says what it likes.
    #[serde(skip_serializing_if = "is_false")]
    pub accept: bool,
    /// The exit writes such a header to the target before anything else. Protocol Native.
    #[serde(skip_serializing_if = "is_false")]
    pub send: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
const fn is_false(value: &bool) -> bool {
    !*value
}

impl ProxyProtocol {
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
    pub(crate) fn is_off(&self) -> bool {
        *self == Self::default()
    }
}

/// What of a forward does not go together: the field and what is wrong with it.
pub(crate) fn problem(forward: &Forward) -> Option<(&'static str, String)> {
    use ListenProtocol::{Auto, HttpConnect, Socks5, Tcp, Transparent};
    let (protocol, name) = (forward.protocol, forward.protocol.name());
    match (protocol, &forward.target) {
        (Tcp, None) => {
            let problem = "is missing: a forward of protocol Tcp leads to one";
            return Some(("target", problem.to_owned()));
        }
        (Socks5 | HttpConnect | Transparent, Some(Target::Tcp { .. } | Target::Unix(_))) => {
            let problem = format!("does not go with protocol {name}: each client says its own");
            return Some(("target", problem));
        }
        _ => {}
    }
    let unix = forward.listen.starts_with(crate::UNIX_PREFIX);
    if protocol == Transparent && unix {
        let problem = "only TCP connections can be redirected to a port";
        return Some(("listen", problem.to_owned()));
    }
    let auth = forward.auth.as_ref()?;
    match protocol {
        Tcp | Transparent => {
            let problem = format!("clients of protocol {name} have no way to say who they are");
            return Some(("auth", problem));
        }
        Auto if forward.target.is_some() => {
            let problem = "would not be asked of those that are led to the target: leave that out";
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
