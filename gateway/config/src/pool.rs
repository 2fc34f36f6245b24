//! How many carriers an entry keeps to its exit.

use serde::{Deserialize, Serialize};

use crate::ConfigError;

/// Most carriers of one session.
pub const POOL_MAX: u8 = 16;

/// Carriers of one session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Pool {
    /// As many are kept, 1..=[`POOL_MAX`].
    pub min: u8,
    /// There are never more, `min`..=[`POOL_MAX`].
    pub max: u8,
}

impl Default for Pool {
    /// [`Pool::ONE`].
    fn default() -> Self {
        Self::ONE
    }
}

impl Pool {
    /// One carrier, always.
    pub const ONE: Self = Self { min: 1, max: 1 };
    /// One to four: what an entry has unless configured otherwise, where the protocol allows it. Four
    /// carry one stream over 100 ms at more than 3.5 times what one does with the kernel's defaults
    /// (docs/performance.md).
    pub const GROWING: Self = Self { min: 1, max: 4 };

    /// # Errors
    /// [`ConfigError::Field`]: out of bounds.
    pub(crate) fn check(self) -> Result<(), ConfigError> {
        for (field, value) in [("pool.min", self.min), ("pool.max", self.max)] {
            if !(1..=POOL_MAX).contains(&value) {
                let problem = format!("must be 1..={POOL_MAX}");
                return Err(ConfigError::field(field, problem));
            }
        }
        if self.min > self.max {
            return Err(ConfigError::field("pool.min", "is more than pool.max"));
        }
        Ok(())
    }
}
