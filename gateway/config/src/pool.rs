//! The number of carriers that an entry keeps to its exit.

use serde::{Deserialize, Serialize};

use crate::ConfigError;

/// Maximum number of carriers of a session.
pub const POOL_MAX: u8 = 16;

/// The number of carriers of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Pool {
    /// Minimum number of carriers, 1..=[`POOL_MAX`].
    pub min: u8,
    /// Maximum number of carriers, `min`..=[`POOL_MAX`].
    pub max: u8,
}

impl Default for Pool {
    fn default() -> Self {
        Self::ONE
    }
}

impl Pool {
    /// Always one carrier.
    pub const ONE: Self = Self { min: 1, max: 1 };
    /// One to four carriers: the default under the conditions that `Config::pool` lists. With the
    /// kernel's defaults and a round trip of 100 ms, four carriers transfer one stream at more than
    /// 3.5 times the rate of one carrier (docs/performance.md).
    pub const GROWING: Self = Self { min: 1, max: 4 };

    /// # Errors
    /// [`ConfigError::Field`]: out of bounds.
    pub(crate) fn check(self) -> Result<(), ConfigError> {
        for (field, value) in [("pool.min", self.min), ("pool.max", self.max)] {
            if !(1..=POOL_MAX).contains(&value) {
                let problem = format!("must be from 1 to {POOL_MAX}");
                return Err(ConfigError::field(field, problem));
            }
        }
        if self.min > self.max {
            return Err(ConfigError::field("pool.min", "is greater than pool.max"));
        }
        Ok(())
    }
}
