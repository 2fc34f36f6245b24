//! Bit rates in the format of Kubernetes: `500k`, `100M`, `1G`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

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

/// Prints the rate as an integer with the largest suffix of which the rate is a multiple.
impl fmt::Display for BitRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (suffix, factor) in SUFFIXES {
            if self.0 != 0 && self.0.is_multiple_of(factor) {
                return write!(f, "{}{suffix}", self.0 / factor);
            }
        }
        write!(f, "{}", self.0)
    }
}

/// The text is not a bit rate.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not a rate in bits per second such as 500k, 100M or 1G")]
pub struct BitRateError(String);

impl FromStr for BitRate {
    type Err = BitRateError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || BitRateError(text.to_owned());
        let (digits, factor) = SUFFIXES
            .iter()
            .find_map(|(suffix, factor)| text.strip_suffix(suffix).map(|digits| (digits, *factor)))
            .unwrap_or((text, 1));
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
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = BitRate;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a rate in bits per second such as 500k, 100M or 1G")
            }
            fn visit_u64<E: de::Error>(self, value: u64) -> Result<BitRate, E> {
                Ok(BitRate(value))
            }
            fn visit_i64<E: de::Error>(self, value: i64) -> Result<BitRate, E> {
                let rate = u64::try_from(value).map(BitRate);
                rate.map_err(|_| E::invalid_value(de::Unexpected::Signed(value), &self))
            }
            fn visit_str<E: de::Error>(self, value: &str) -> Result<BitRate, E> {
                value.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// A resource.Quantity with a decimal suffix, from 100k to 1T.
#[cfg(feature = "schemars")]
impl schemars::JsonSchema for BitRate {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "BitRate".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "x-kubernetes-int-or-string": true,
            "pattern": BIT_RATE,
            "minimum": crate::RATE_MIN.0,
            "maximum": crate::RATE_MAX.0,
        })
    }
}

/// The texts from [`crate::RATE_MIN`] to [`crate::RATE_MAX`].
#[cfg(feature = "schemars")]
const BIT_RATE: &str = "^([1-9][0-9]{5,11}|10{12}|[1-9][0-9]{2,8}k|10{9}k|[1-9][0-9]{0,5}M|10{6}M|[1-9][0-9]{0,2}G|1000G|1T)$";
