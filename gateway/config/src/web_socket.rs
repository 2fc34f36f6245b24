//! Carriers as WebSocket connections.

use serde::{Deserialize, Serialize};

use crate::{ConfigError, Role};

/// Maximum number of origins in `webSocket.origins`.
pub const ORIGINS_MAX: usize = 16;

/// Carriers as WebSocket connections (RFC 6455). With security mode PublicKeys, TLS runs inside the
/// WebSocket connection, so proxies that terminate TLS pass it. With mode Certificates, TLS encrypts
/// the WebSocket connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schemars",
    derive(schemars::JsonSchema),
    schemars(transform = crate::schema::open)
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WebSocket {
    /// The path of the HTTP requests, such as /carrier. The exit answers only requests with this
    /// path.
    #[cfg_attr(
        feature = "schemars",
        schemars(
            length(min = 1, max = 256),
            regex(pattern = "^/[-._~!$&'()*+,;=:@%/a-zA-Z0-9]*$")
        )
    )]
    pub path: String,
    /// Exit: origins (RFC 6454) of the web pages whose browsers may open carriers, such as
    /// `https://app.example.com`, at most [`ORIGINS_MAX`]. Empty: no web page may open carriers.
    /// Gateways send no Origin header. Not in the resources of the operator.
    #[cfg_attr(feature = "schemars", schemars(skip))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub origins: Vec<String>,
}

impl WebSocket {
    pub(crate) fn check(&self, role: Role) -> Result<(), ConfigError> {
        let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        if !self.path.starts_with('/') || !plain(&self.path) || self.path.contains(['?', '#']) {
            let problem = format!("{:?} is not a path such as /carrier", self.path);
            return Err(ConfigError::field("webSocket.path", problem));
        }
        self.check_origins(role)
    }

    fn check_origins(&self, role: Role) -> Result<(), ConfigError> {
        let field = "webSocket.origins";
        if role != Role::Exit && !self.origins.is_empty() {
            return Err(ConfigError::field(
                field,
                "only an exit accepts WebSocket carriers: remove the field",
            ));
        }
        if self.origins.len() > ORIGINS_MAX {
            let problem = format!("has too many origins: at most {ORIGINS_MAX} are allowed");
            return Err(ConfigError::field(field, problem));
        }
        let is_origin = |text: &str| {
            text.split_once("://").is_some_and(|(scheme, host)| {
                let plain = |b: u8| b.is_ascii_graphic() && !b"/?#@".contains(&b);
                matches!(scheme, "http" | "https") && !host.is_empty() && host.bytes().all(plain)
            })
        };
        let wrong = self.origins.iter().find(|origin| !is_origin(origin));
        let problem = wrong.map(|origin| {
            format!("{origin:?} is not SCHEME://HOST[:PORT], such as https://app.example.com")
        });
        ConfigError::unless_none(problem.map(|problem| (field, problem)))
    }
}
