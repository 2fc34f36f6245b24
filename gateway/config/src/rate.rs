//! Bit rates in the format of Kubernetes: `500k`, `100M`, `1G`.

use crate::text::{quantity, schema_of};

/// Bits per second. Text form: an integer with an optional suffix `k`, `M`, `G` or `T`
/// (resource.Quantity's decimal suffixes).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BitRate(
    /// Bits per second.
    pub u64,
);

const SUFFIXES: [(&str, u64); 4] = [
    ("T", 1_000_000_000_000),
    ("G", 1_000_000_000),
    ("M", 1_000_000),
    ("k", 1_000),
];

impl BitRate {
    /// The rate in bytes per second, rounded down.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0 / 8
    }
}

quantity!(
    BitRate,
    SUFFIXES,
    "a rate in bits per second such as 500k, 100M or 1G"
);

// A resource.Quantity with a decimal suffix, from 100k to 1T.
schema_of!(BitRate: {
    "x-kubernetes-int-or-string": true,
    "pattern": BIT_RATE,
    "minimum": crate::RATE_MIN.0,
    "maximum": crate::RATE_MAX.0,
});

/// The texts from [`crate::RATE_MIN`] to [`crate::RATE_MAX`].
#[cfg(feature = "schemars")]
const BIT_RATE: &str = "^([1-9][0-9]{5,11}|10{12}|[1-9][0-9]{2,8}k|10{9}k|[1-9][0-9]{0,5}M|10{6}M|[1-9][0-9]{0,2}G|1000G|1T)$";
