//! Reads Kubernetes quantities of memory and CPU.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Whole bytes of a quantity such as `64Mi`, `1.5G` or `128974848`; `None` where it is none, or not
/// positive.
pub(super) fn bytes(quantity: &Quantity) -> Option<u64> {
    let text = quantity.0.trim();
    let digits = text
        .bytes()
        .take_while(|byte| byte.is_ascii_digit() || *byte == b'.')
        .count();
    let (number, suffix) = text.split_at(digits);
    let factor = match suffix {
        "" => 1.0,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "Ki" => 1024.0,
        "Mi" => 1024.0 * 1024.0,
        "Gi" => 1024.0 * 1024.0 * 1024.0,
        "Ti" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
        _ => return None,
    };
    let bytes = number.parse::<f64>().ok()? * factor;
    // Above 2^53 a float skips numbers; no machine has that much.
    (1.0..=9_007_199_254_740_992.0)
        .contains(&bytes)
        .then_some(bytes as u64)
}

/// CPUs of a quantity such as `2`, `1.5` or `500m`, rounded up; `None` where it is none, or not
/// positive.
pub(super) fn cores(quantity: &Quantity) -> Option<u16> {
    let text = quantity.0.trim();
    let (number, factor) = text.strip_suffix('m').map_or((text, 1.0), |n| (n, 1e-3));
    let cores = number.parse::<f64>().ok()? * factor;
    (cores > 0.0 && cores <= f64::from(u16::MAX)).then_some(cores.ceil() as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_rounded_up() {
        for (text, expected) in [
            ("2", Some(2)),
            ("1.5", Some(2)),
            ("500m", Some(1)),
            ("2500m", Some(3)),
            ("0", None),
            ("", None),
            ("2Ki", None),
            ("nan", None),
        ] {
            assert_eq!(cores(&Quantity(text.to_owned())), expected, "{text}");
        }
    }

    #[test]
    fn binary_and_decimal_suffixes_are_read() {
        for (text, expected) in [
            ("64Mi", Some(64 << 20)),
            ("1.5Gi", Some(3 << 29)),
            ("1G", Some(1_000_000_000)),
            ("128974848", Some(128_974_848)),
            ("100m", None),
            ("", None),
            ("-1", None),
            ("1e3", None),
        ] {
            assert_eq!(bytes(&Quantity(text.to_owned())), expected, "{text}");
        }
    }
}
