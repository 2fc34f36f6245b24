//! Durations as Gateway API writes them (GEP-2257): `50ms`, `1m30s`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration as StdDuration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// The pattern by which the API server checks durations. Every text that matches it can be parsed.
/// Source: GEP-2257.
const PATTERN: &str = "^([0-9]{1,5}(h|m|s|ms)){1,4}$";
/// The length of four parts, each with five digits and a unit of two letters.
const LENGTH_MAX: usize = 28;

/// A duration in whole milliseconds. Its text has at most four parts, such as `99999h`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Duration(StdDuration);

/// The text is not a GEP-2257 duration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DurationError(String);

impl std::error::Error for DurationError {}

impl fmt::Display for DurationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "invalid duration {:?}: expected numbers with units h, m, s or ms, such as 50ms or 1m30s",
            self.0
        )
    }
}

impl Duration {
    /// A duration of `milliseconds`.
    #[must_use]
    pub const fn from_millis(milliseconds: u64) -> Self {
        Self(StdDuration::from_millis(milliseconds))
    }

    /// Whole milliseconds.
    #[must_use]
    pub fn as_millis(self) -> u64 {
        u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX)
    }

    /// The same as a [`StdDuration`].
    #[must_use]
    pub const fn as_std(self) -> StdDuration {
        self.0
    }

    /// Whether the duration is zero.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.0.is_zero()
    }
}

impl FromStr for Duration {
    type Err = DurationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fail = || DurationError(text.to_owned());
        let mut milliseconds = 0_u64;
        let mut rest = text;
        let mut parts = 0;
        while !rest.is_empty() {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            let (number, tail) = rest.split_at(digits);
            let units = tail
                .bytes()
                .take_while(|byte| !byte.is_ascii_digit())
                .count();
            let (unit, tail) = tail.split_at(units);
            let factor = match unit {
                "h" => 3_600_000,
                "m" => 60_000,
                "s" => 1_000,
                "ms" => 1,
                _ => return Err(fail()),
            };
            parts += 1;
            if !(1..=5).contains(&digits) || parts > 4 {
                return Err(fail());
            }
            let number: u64 = number.parse().map_err(|_| fail())?;
            milliseconds += number * factor;
            rest = tail;
        }
        if parts == 0 {
            return Err(fail());
        }
        Ok(Self::from_millis(milliseconds))
    }
}

/// Writes the shortest text, without units whose number is 0. A duration of zero is `0s`.
impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.as_millis();
        if rest == 0 {
            return f.write_str("0s");
        }
        for (unit, factor) in [("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)] {
            if rest >= factor {
                write!(f, "{}{unit}", rest / factor)?;
                rest %= factor;
            }
        }
        Ok(())
    }
}

impl Serialize for Duration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Duration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

impl JsonSchema for Duration {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": PATTERN, "maxLength": LENGTH_MAX })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_add_up_and_the_shortest_text_comes_back() {
        for (text, milliseconds, shortest) in [
            ("50ms", 50, "50ms"),
            ("0ms", 0, "0s"),
            ("0s", 0, "0s"),
            ("1m30s", 90_000, "1m30s"),
            ("90s", 90_000, "1m30s"),
            ("1h0m5ms", 3_600_005, "1h5ms"),
        ] {
            let duration: Duration = text.parse().unwrap();
            assert_eq!(duration.as_millis(), milliseconds, "{text}");
            assert_eq!(duration.to_string(), shortest, "{text}");
        }
    }

    #[test]
    fn what_gep_2257_does_not_allow_is_refused() {
        for text in [
            "",
            "5",
            "ms",
            "1.5s",
            "-1s",
            "123456s",
            "1d",
            "1s1s1s1s1s",
            "1 s",
            "1µs",
        ] {
            assert!(text.parse::<Duration>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn the_longest_text_the_pattern_allows_can_be_parsed() {
        let text = "99999h99999h99999h99999h";
        assert!(text.len() <= LENGTH_MAX);
        assert_eq!(
            text.parse::<Duration>().unwrap().as_millis(),
            4 * 99_999 * 3_600_000
        );
    }
}
