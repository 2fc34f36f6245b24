//! Whether a carrier is a WebSocket connection: as it is configured, or as the other end wants it.

use std::io::Result;

use muxtunnel_gateway_config::WebSocket;

use super::{Inside, Transport};

/// Whether a carrier is a WebSocket connection.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Upgrade<'a> {
    /// It is none.
    Never,
    /// It is one.
    Always(&'a WebSocket),
    /// On the side that accepts: it is one where the other end wants that, by the protocol that it names in its handshake
    /// (ALPN), or else by its first byte, which is that of a GET.
    Asked(&'a WebSocket),
}

impl<'a> Upgrade<'a> {
    /// Behind a handshake in which both ends agreed on `inside`.
    pub(crate) const fn agreed(self, inside: Inside) -> Option<&'a WebSocket> {
        match (self, inside) {
            (Self::Always(web_socket), _) | (Self::Asked(web_socket), Inside::WebSocket) => {
                Some(web_socket)
            }
            _ => None,
        }
    }

    /// Where nobody agreed on anything.
    ///
    /// # Errors
    /// The connection failed.
    pub(crate) async fn heard(self, below: &dyn Transport) -> Result<Option<&'a WebSocket>> {
        match self {
            Self::Never => Ok(None),
            Self::Always(web_socket) => Ok(Some(web_socket)),
            Self::Asked(web_socket) => {
                let mut first = [0];
                // What is no TCP connection is dialled as it is.
                if let Some(tcp) = below.plain() {
                    tcp.peek(&mut first).await?;
                }
                Ok((first == *b"G").then_some(web_socket))
            }
        }
    }
}
