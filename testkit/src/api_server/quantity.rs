//! Quantities (`64Mi`, `1.5G`, `500m`, `1e3`): parsing and the API server's canonical form.

/// The number one in thousand-millionths, the smallest unit of a quantity.
const ONE: i128 = 1_000_000_000;
/// Suffixes with their values, the largest first.
const BINARY: [(&str, i128); 6] = [
    ("Ei", ONE << 60),
    ("Pi", ONE << 50),
    ("Ti", ONE << 40),
    ("Gi", ONE << 30),
    ("Mi", ONE << 20),
    ("Ki", ONE << 10),
];
const DECIMAL: [(&str, i128); 6] = [
    ("E", ONE * 10_i128.pow(18)),
    ("P", ONE * 10_i128.pow(15)),
    ("T", ONE * 10_i128.pow(12)),
    ("G", ONE * 10_i128.pow(9)),
    ("M", ONE * 10_i128.pow(6)),
    ("k", ONE * 1000),
];
const SMALL: [(&str, i128); 4] = [
    ("", ONE),
    ("m", ONE / 1000),
    ("u", ONE / 1_000_000),
    ("n", 1),
];

/// The value of a quantity in thousand-millionths; `None` if the text is not a quantity.
pub(super) fn nanos(text: &str) -> Option<i128> {
    let is_number = |letter: char| letter.is_ascii_digit() || matches!(letter, '.' | '+' | '-');
    let end = text.find(|letter| !is_number(letter)).unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let mut units = BINARY.iter().chain(&DECIMAL).chain(&SMALL);
    let unit = match units.find(|(name, _)| *name == suffix) {
        Some((_, unit)) => *unit,
        None => {
            let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            let factor = 10_i128.checked_pow(exponent.unsigned_abs())?;
            match exponent < 0 {
                true => ONE / factor,
                false => ONE.checked_mul(factor)?,
            }
        }
    };
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let digits: i128 = format!("{whole}{part}").parse().ok()?;
    let divisor = 10_i128.checked_pow(u32::try_from(part.len()).ok()?)?;
    let worth = digits.checked_mul(unit)?;
    // Rounds the value away from zero.
    Some(worth / divisor + worth.signum() * i128::from(worth % divisor != 0))
}

/// The canonical form: with the largest suffix of the quantity's own kind (binary or decimal) that
/// gives a whole number.
pub(super) fn spelled(text: &str) -> Option<String> {
    let worth = nanos(text)?;
    let large = if text.ends_with('i') { BINARY } else { DECIMAL };
    let mut units = large.iter().chain(&SMALL);
    units
        .find(|(_, unit)| worth % unit == 0)
        .map(|(suffix, unit)| format!("{}{suffix}", worth / unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_spelled_as_the_server_does() {
        for (asked, stored) in [
            ("1024Mi", "1Gi"),
            ("1.5Gi", "1536Mi"),
            ("1000m", "1"),
            ("0.5", "500m"),
            ("2000", "2k"),
            ("100Mi", "100Mi"),
        ] {
            assert_eq!(spelled(asked).as_deref(), Some(stored), "{asked}");
        }
    }
}
