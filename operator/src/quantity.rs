//! Kubernetes quantities (`64Mi`, `1.5G`, `500m`, `1e3`), computed exactly. Pure.
//!
//! The API server normalizes quantities (`1024Mi` to `1Gi`), so the operator compares quantities by
//! value.

/// Nano units per unit. A nano unit is the smallest unit of a quantity.
const NANO: i128 = 1_000_000_000;

/// The value of a quantity in nano units, rounded up as the API server does; `None` if `text` is
/// not a quantity.
pub fn nanos(text: &str) -> Option<i128> {
    let (negative, text) = match text.strip_prefix('-') {
        Some(text) => (true, text),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let end = text
        .find(|letter: char| !letter.is_ascii_digit() && letter != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    if whole.len() + part.len() == 0 || part.contains('.') {
        return None;
    }
    let digits = format!("{whole}{part}").parse::<i128>().ok()?;
    let (factor, divisor) = scale(suffix)?;
    let numerator = digits.checked_mul(factor)?.checked_mul(NANO)?;
    let denominator = divisor.checked_mul(10_i128.checked_pow(u32::try_from(part.len()).ok()?)?)?;
    let amount = numerator / denominator + i128::from(numerator % denominator != 0);
    Some(if negative { -amount } else { amount })
}

/// The factor and the divisor of a suffix.
fn scale(suffix: &str) -> Option<(i128, i128)> {
    let power = |exponent: u32| 10_i128.checked_pow(exponent);
    let binary = |exponent: u32| Some((1_i128 << exponent, 1));
    match suffix {
        "n" => Some((1, power(9)?)),
        "u" => Some((1, power(6)?)),
        "m" => Some((1, power(3)?)),
        "" => Some((1, 1)),
        "k" => Some((power(3)?, 1)),
        "M" => Some((power(6)?, 1)),
        "G" => Some((power(9)?, 1)),
        "T" => Some((power(12)?, 1)),
        "P" => Some((power(15)?, 1)),
        "E" => Some((power(18)?, 1)),
        "Ki" => binary(10),
        "Mi" => binary(20),
        "Gi" => binary(30),
        "Ti" => binary(40),
        "Pi" => binary(50),
        "Ei" => binary(60),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?;
            let exponent: i32 = exponent.parse().ok()?;
            let factor = power(exponent.unsigned_abs())?;
            Some(if exponent < 0 {
                (1, factor)
            } else {
                (factor, 1)
            })
        }
    }
}

/// Whether both texts are quantities with the same value.
pub fn are_equal(one: &str, other: &str) -> bool {
    nanos(one).is_some_and(|worth| nanos(other) == Some(worth))
}
