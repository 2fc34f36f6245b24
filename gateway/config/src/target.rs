//! The target of a stream.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_with_macros::skip_serializing_none;

/// The prefix of the path of a Unix socket, in `listen`, in `allow` and in the target that an entry
/// sends to an exit.
pub const UNIX_PREFIX: &str = "unix:";
/// Maximum length of the path of a Unix socket, in bytes: `sun_path` of unix(7) without the
/// terminating zero.
pub const UNIX_PATH_MAX: usize = 107;

/// The target that an exit dials for a stream: `{host, port}` or `{unix}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Fields", into = "Fields")]
pub enum Target {
    /// A TCP port. The exit resolves the name.
    Tcp {
        /// Name or address literal (IPv6 without brackets), at most 253 characters.
        host: String,
        /// 1..=65535.
        port: u16,
    },
    /// A Unix socket on the exit's machine: its absolute path, at most [`UNIX_PATH_MAX`] bytes.
    Unix(String),
}

/// The serialized form.
#[skip_serializing_none]
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Fields {
    host: Option<String>,
    port: Option<u16>,
    unix: Option<String>,
}

impl TryFrom<Fields> for Target {
    type Error = &'static str;

    fn try_from(fields: Fields) -> Result<Self, Self::Error> {
        match fields {
            Fields {
                host: Some(host),
                port: Some(port),
                unix: None,
            } => Ok(Self::Tcp { host, port }),
            Fields {
                host: None,
                port: None,
                unix: Some(path),
            } => Ok(Self::Unix(path)),
            _ => Err("set either host and port, or unix (the path of a socket)"),
        }
    }
}

impl From<Target> for Fields {
    fn from(target: Target) -> Self {
        let (host, port, unix) = match target {
            Target::Tcp { host, port } => (Some(host), Some(port), None),
            Target::Unix(path) => (None, None, Some(path)),
        };
        Self { host, port, unix }
    }
}

impl Target {
    /// The first invalid field, and the problem.
    pub(crate) fn problem(&self) -> Option<(&'static str, String)> {
        match self {
            Self::Tcp { host, .. }
                if host.is_empty() || host.len() > 253 || host.contains(char::is_whitespace) =>
            {
                let problem = "must be a name or an address of 1 to 253 characters";
                Some(("host", problem.to_owned()))
            }
            Self::Tcp { port: 0, .. } => Some(("port", "must be from 1 to 65535".to_owned())),
            Self::Tcp { .. } => None,
            Self::Unix(path) => unix_path_problem(path).map(|problem| ("unix", problem)),
        }
    }
}

/// `host:port`, or `unix:/path`.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{UNIX_PREFIX}{path}"),
        }
    }
}

/// The problem of the path of a Unix socket. `None`: the path is valid.
pub(crate) fn unix_path_problem(path: &str) -> Option<String> {
    let fits = path.starts_with('/') && path.len() <= UNIX_PATH_MAX;
    (!fits || path.contains(char::is_control)).then(|| {
        format!("{path:?} is not an absolute path of at most {UNIX_PATH_MAX} bytes without control characters, such as /run/web.sock")
    })
}
