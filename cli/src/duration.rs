//! Durations on the command line: `50ms`, `8h`, `1m30s`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration as StdDuration;

/// Units in milliseconds, largest first.
const UNITS: [(&str, u64); 4] = [("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];
/// Maximum number of digits of a number, so that no sum overflows.
const DIGITS_MAX: usize = 5;
/// Maximum number of parts, each with a number and a unit.
const PARTS_MAX: usize = 4;

/// A duration in whole milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Duration(u64);

impl Duration {
    /// The same as a [`StdDuration`].
    #[must_use]
    pub const fn as_std(self) -> StdDuration {
        StdDuration::from_millis(self.0)
    }
}

impl FromStr for Duration {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fail = || {
            format!(
                "invalid duration {text:?}: expected numbers with units h, m, s or ms, such as 50ms or 1m30s"
            )
        };
        let (mut milliseconds, mut rest, mut parts) = (0, text, 0);
        while parts == 0 || !rest.is_empty() {
            let length = |text: &str, digits| {
                let same = |byte: &u8| byte.is_ascii_digit() == digits;
                text.bytes().take_while(same).count()
            };
            let (number, tail) = rest.split_at(length(rest, true));
            let (unit, tail) = tail.split_at(length(tail, false));
            let unit = UNITS.iter().find(|(name, _)| *name == unit);
            let (_, factor) = unit.ok_or_else(fail)?;
            parts += 1;
            if number.len() > DIGITS_MAX || parts > PARTS_MAX {
                return Err(fail());
            }
            milliseconds += number.parse::<u64>().map_err(|_| fail())? * factor;
            rest = tail;
        }
        Ok(Self(milliseconds))
    }
}

/// Writes the shortest text. A duration of zero is `0s`.
impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        if rest == 0 {
            return f.write_str("0s");
        }
        for (unit, factor) in UNITS {
            if rest >= factor {
                write!(f, "{}{unit}", rest / factor)?;
                rest %= factor;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_numbers_and_units() {
        for (text, milliseconds, shown) in [
            ("50ms", 50, "50ms"),
            ("1m30s", 90_000, "1m30s"),
            ("120s", 120_000, "2m"),
            ("0s", 0, "0s"),
            ("99999h99999h99999h99999h", 1_439_985_600_000, "399996h"),
        ] {
            let duration: Duration = text.parse().unwrap();
            assert_eq!(duration.as_std(), StdDuration::from_millis(milliseconds));
            assert_eq!(duration.to_string(), shown);
        }
        for text in [
            "",
            "5",
            "s",
            "1.5s",
            "-1s",
            "1 s",
            "1d",
            "100000s",
            "1s1s1s1s1s",
            "1µs",
        ] {
            let error = text.parse::<Duration>().unwrap_err();
            assert!(error.contains("such as 50ms"), "{text}: {error}");
        }
    }
}
