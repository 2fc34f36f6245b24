//! Decides whether a carrier is a WebSocket connection, by configuration or by the peer's choice.

use std::io::Result;

use muxtunnel_gateway_config::WebSocket;

use super::{Inside, Transport};

/// Whether a carrier is a WebSocket connection.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Upgrade<'a> {
    /// The carrier is not a WebSocket connection.
    Never,
    /// The carrier is a WebSocket connection.
    Always(&'a WebSocket),
    /// For the accepting side: the peer chooses. With TLS, the peer chooses by ALPN. Without TLS, a
    /// first byte `G`, as in GET, selects WebSocket.
    Asked(&'a WebSocket),
}

impl<'a> Upgrade<'a> {
    /// The choice after a handshake in which both ends agreed on `inside`.
    pub(crate) const fn agreed(self, inside: Inside) -> Option<&'a WebSocket> {
        match (self, inside) {
            (Self::Always(web_socket), _) | (Self::Asked(web_socket), Inside::WebSocket) => {
                Some(web_socket)
            }
            _ => None,
        }
    }

    /// The choice without TLS, for [`Self::Asked`] by the peer's first byte.
    ///
    /// # Errors
    /// The connection failed.
    pub(crate) async fn heard(self, below: &dyn Transport) -> Result<Option<&'a WebSocket>> {
        match self {
            Self::Never => Ok(None),
            Self::Always(web_socket) => Ok(Some(web_socket)),
            Self::Asked(web_socket) => {
                let mut first = [0];
                // Transports other than TCP are never WebSocket here.
                if let Some(tcp) = below.plain() {
                    tcp.peek(&mut first).await?;
                }
                Ok((first == *b"G").then_some(web_socket))
            }
        }
    }
}
