//! Time-outs of streams.

use serde::{Deserialize, Serialize};
use serde_with_macros::skip_serializing_none;

use crate::ConfigError;

/// Value in force of [`Timeouts::half_open_seconds`].
pub const HALF_OPEN_SECONDS_DEFAULT: u32 = 3600;
/// Value in force of [`Timeouts::keepalive_seconds`].
pub const KEEPALIVE_SECONDS_DEFAULT: u32 = 60;
/// Maximum of [`Timeouts::keepalive_seconds`]: 2 hours.
pub const KEEPALIVE_SECONDS_MAX: u32 = 7200;
/// Maximum time-out of a stream: 30 days.
pub const TIMEOUT_SECONDS_MAX: u32 = 30 * 24 * 3600;

/// Time-outs of idle streams, and of clients and targets that have vanished. 0 disables a time-out.
#[skip_serializing_none]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schemars",
    derive(schemars::JsonSchema),
    schemars(transform = crate::schema::open)
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Timeouts {
    /// A stream is reset if it transmits no byte in either direction for this time. 0: no time-out.
    /// Default: 0.
    #[cfg_attr(feature = "schemars", schemars(range(max = 2_592_000)))]
    pub idle_seconds: Option<u32>,
    /// A stream with one closed direction is reset if it transmits no byte for this time. 0: no
    /// time-out. Default: 3600.
    #[cfg_attr(feature = "schemars", schemars(range(max = 2_592_000)))]
    pub half_open_seconds: Option<u32>,
    /// A gateway probes a client or target over TCP that is silent for this time. A stream is reset
    /// if the client or target does not answer in as much time again. 0: no probes. Default: 60.
    #[cfg_attr(feature = "schemars", schemars(range(max = 7200)))]
    pub keepalive_seconds: Option<u32>,
}

impl Timeouts {
    /// The value in force of the field of the same name.
    #[must_use]
    pub fn idle_seconds(self) -> u32 {
        self.idle_seconds.unwrap_or_default()
    }

    /// The value in force of the field of the same name.
    #[must_use]
    pub fn half_open_seconds(self) -> u32 {
        self.half_open_seconds.unwrap_or(HALF_OPEN_SECONDS_DEFAULT)
    }

    /// The value in force of the field of the same name.
    #[must_use]
    pub fn keepalive_seconds(self) -> u32 {
        self.keepalive_seconds.unwrap_or(KEEPALIVE_SECONDS_DEFAULT)
    }

    pub(crate) fn check(self) -> Result<(), ConfigError> {
        let half_open = self.half_open_seconds();
        for (field, seconds, most) in [
            (
                "timeouts.idleSeconds",
                self.idle_seconds(),
                TIMEOUT_SECONDS_MAX,
            ),
            ("timeouts.halfOpenSeconds", half_open, TIMEOUT_SECONDS_MAX),
            (
                "timeouts.keepaliveSeconds",
                self.keepalive_seconds(),
                KEEPALIVE_SECONDS_MAX,
            ),
        ] {
            ConfigError::unless_in(field, seconds, 0..=most)?;
        }
        Ok(())
    }
}
