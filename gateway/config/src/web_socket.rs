//! Carriers as WebSocket connections.

use serde::{Deserialize, Serialize};

use crate::ConfigError;

/// Carriers are WebSocket connections (RFC 6455): over TLS where that secures them, and below Noise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WebSocket {
    /// The path that is asked for, or answered at; from `/` on.
    pub path: String,
    /// Entry: what the request names as its host; absent: the exit's address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

impl WebSocket {
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        if !self.path.starts_with('/') || !plain(&self.path) || self.path.contains(['?', '#']) {
            let problem = format!("{:?} is not a path such as /carrier", self.path);
            return Err(ConfigError::field("webSocket.path", problem));
        }
        match &self.host {
            Some(host) if host.is_empty() || !plain(host) => {
                let problem = format!("{host:?} is not HOST or HOST:PORT");
                Err(ConfigError::field("webSocket.host", problem))
            }
            _ => Ok(()),
        }
    }
}
