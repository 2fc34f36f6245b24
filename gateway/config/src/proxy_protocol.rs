//! The PROXY protocol on the connections of a forward.

use serde::{Deserialize, Serialize};
use serde_with_macros::skip_serializing_none;

/// Headers of the PROXY protocol, which contain a client's address. Default: no headers.
#[skip_serializing_none]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schemars",
    derive(schemars::JsonSchema),
    schemars(transform = crate::schema::open)
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ProxyProtocol {
    /// Whether connections of clients begin with a header. Default: they do not.
    pub accept: Option<Accept>,
    /// Whether the exit sends a header to the target before the payload. Needs protocol Native.
    /// Default: it does not.
    pub send: Option<Send>,
}

/// Required: each connection must begin with a PROXY header, which a load balancer sends. Set this
/// value only if no other sender can reach the port, because any sender can claim any client address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub enum Accept {
    /// Each connection must begin with a header, version 2.
    Required,
}

/// V2: the exit sends the target a PROXY header, version 2, with the address of the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub enum Send {
    /// A header of version 2.
    V2,
}

impl ProxyProtocol {
    /// Whether each connection must begin with a header.
    #[must_use]
    pub const fn accepts(self) -> bool {
        self.accept.is_some()
    }

    /// Whether the exit sends a header to the target.
    #[must_use]
    pub const fn sends(self) -> bool {
        self.send.is_some()
    }
}
