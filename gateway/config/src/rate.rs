//! Bit rates in the format of `tc` and `spec.wan`: `500kbit`, `100Mbit`, `1Gbit`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Bits per second. Text form: an integer with a decimal unit, `kbit`, `Mbit` or `Gbit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BitRate(
    /// Bits per second.
    pub u64,
);

const UNITS: [(&str, u64); 3] = [
    ("Gbit", 1_000_000_000),
    ("Mbit", 1_000_000),
    ("kbit", 1_000),
];

impl BitRate {
    /// The rate in bytes per second, rounded down.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0 / 8
    }
}

/// Prints the rate as an integer in the largest unit of which the rate is a multiple. A rate below
/// 1 kbit has no text form and is printed in bits.
impl fmt::Display for BitRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, factor) in UNITS {
            if self.0 != 0 && self.0.is_multiple_of(factor) {
                return write!(f, "{}{unit}", self.0 / factor);
            }
        }
        write!(f, "{}bit", self.0)
    }
}

/// The text is not a bit rate.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not a rate such as 500kbit, 100Mbit or 1Gbit")]
pub struct BitRateError(String);

impl FromStr for BitRate {
    type Err = BitRateError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || BitRateError(text.to_owned());
        let (digits, factor) = UNITS
            .iter()
            .find_map(|(unit, factor)| text.strip_suffix(unit).map(|digits| (digits, *factor)))
            .ok_or_else(error)?;
        if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(error());
        }
        let number: u64 = digits.parse().map_err(|_| error())?;
        number.checked_mul(factor).map(Self).ok_or_else(error)
    }
}

impl Serialize for BitRate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for BitRate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}
