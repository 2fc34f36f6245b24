//! The number of carriers that an entry keeps to its exit.

use serde::{Deserialize, Serialize};
use serde_with_macros::skip_serializing_none;

use crate::{ConfigError, Protocol, Transport};

/// Maximum number of carriers of a session.
pub const POOL_MAX: u8 = 16;

/// The number of carriers of a session.
#[skip_serializing_none]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schemars",
    derive(schemars::JsonSchema),
    schemars(transform = crate::schema::open),
    schemars(extend("x-kubernetes-validations" = [{
        "rule": "!has(self.max) || self.min <= self.max",
        "messageExpression": "'carrier.pool: min %d is more than max %d: lower min, or raise max'.format([self.min, self.max])",
    }]))
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Pool {
    /// Least number of carriers.
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = 16)))]
    pub min: u8,
    /// Greatest number of carriers. Default: `min`.
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = 16)))]
    pub max: Option<u8>,
}

impl Pool {
    /// Always one carrier.
    pub const ONE: Self = Self { min: 1, max: None };
    /// As many carriers as the work needs: the default under the conditions of
    /// [`Self::default_of`]. With the kernel's defaults and a round trip of 100 ms, four carriers
    /// transfer one stream at more than 3.5 times the rate of one carrier (docs/performance.md).
    pub const GROWING: Self = Self {
        min: 1,
        max: Some(POOL_MAX),
    };
    /// One to four connections: the default of protocols whose connections have memory of their
    /// own.
    pub const CONNECTIONS: Self = Self {
        min: 1,
        max: Some(4),
    };

    /// The pool of an entry without a pool in its configuration and without a command in `connect`.
    /// [`Self::GROWING`] or [`Self::CONNECTIONS`] under these conditions:
    /// - its protocol supports several carriers
    /// - its transport is TCP or WebSocket
    /// - `resume` is true, or the protocol does not support `resume`
    ///
    /// Otherwise [`Self::ONE`].
    #[must_use]
    pub const fn default_of(protocol: Protocol, transport: Transport, resume: bool) -> Self {
        let can = protocol.can();
        let is_tcp = matches!(transport, Transport::Tcp | Transport::WebSocket);
        match can.several_carriers && is_tcp && (resume || !can.resume) {
            true if can.library_buffers => Self::CONNECTIONS,
            true => Self::GROWING,
            false => Self::ONE,
        }
    }

    /// The value in force of the field of the same name.
    #[must_use]
    pub fn max(self) -> u8 {
        self.max.unwrap_or(self.min)
    }

    pub(crate) fn check(self) -> Result<(), ConfigError> {
        ConfigError::unless_in("pool.min", self.min, 1..=POOL_MAX)?;
        ConfigError::unless_in("pool.max", self.max(), 1..=POOL_MAX)?;
        if self.min > self.max() {
            return Err(ConfigError::field("pool.min", "is greater than pool.max"));
        }
        Ok(())
    }
}
