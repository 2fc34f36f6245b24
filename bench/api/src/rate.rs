//! Rates in the format of MuxBenchmark and of the flags of `muxbench run`.

use crate::{UDP_RATE_KBIT_S_MAX, UDP_RATE_KBIT_S_MIN};

/// Parses a rate such as `500kbit`, `100Mbit` or `1Gbit`. Returns 10^3 bit/s.
///
/// # Errors
/// If the text is not a rate, or the rate is out of bounds.
pub fn parse_rate(text: &str) -> Result<u32, String> {
    let units = [("kbit", 1), ("Mbit", 1000), ("Gbit", 1_000_000)];
    let parsed = units.into_iter().find_map(|(unit, factor)| {
        let number: u32 = text.strip_suffix(unit)?.parse().ok()?;
        number.checked_mul(factor)
    });
    let bounds = UDP_RATE_KBIT_S_MIN..=UDP_RATE_KBIT_S_MAX;
    parsed.filter(|rate| bounds.contains(rate)).ok_or_else(|| {
        format!("{text:?} is not a rate from 100kbit to 10Gbit: write for example 500kbit, 100Mbit or 1Gbit")
    })
}

/// The rate in its largest whole unit: `100Mbit`. `rate_kbit_s`: 10^3 bit/s.
#[must_use]
pub fn rate_text(rate_kbit_s: u32) -> String {
    match rate_kbit_s {
        rate if rate > 0 && rate.is_multiple_of(1_000_000) => format!("{}Gbit", rate / 1_000_000),
        rate if rate > 0 && rate.is_multiple_of(1000) => format!("{}Mbit", rate / 1000),
        rate => format!("{rate}kbit"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_and_written_in_their_largest_unit() {
        for (text, kbit) in [
            ("100kbit", 100),
            ("1500kbit", 1500),
            ("100Mbit", 100_000),
            ("10Gbit", 10_000_000),
        ] {
            assert_eq!(parse_rate(text), Ok(kbit));
            assert_eq!(rate_text(kbit), text);
        }
        assert_eq!(rate_text(parse_rate("2000Mbit").unwrap()), "2Gbit");
    }

    #[test]
    fn rates_out_of_bounds_are_refused() {
        for text in [
            "99kbit",
            "11Gbit",
            "10001Mbit",
            "5000Gbit",
            "100",
            "100mbit",
            "-5Mbit",
            "1.5Mbit",
            "",
        ] {
            assert!(parse_rate(text).is_err(), "{text:?}");
        }
    }
}
