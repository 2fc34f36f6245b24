//! Reads Kubernetes quantities of memory and CPU.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::quantity::nanos;

/// Upper bound of the accepted values, which is more than any machine has.
const MOST: i128 = 1 << 53;
const ONE: i128 = 1_000_000_000;

/// Whole bytes of a quantity such as `64Mi`, `1.5G` or `128974848`; `None` if it is invalid or not
/// positive.
pub(super) fn bytes(quantity: &Quantity) -> Option<u64> {
    let bytes = nanos(quantity.0.trim())? / ONE;
    (1..=MOST).contains(&bytes).then_some(bytes as u64)
}

/// CPUs of a quantity such as `2`, `1.5` or `500m`, rounded up; `None` if it is invalid or not
/// positive.
pub(super) fn cores(quantity: &Quantity) -> Option<u16> {
    let cores = (nanos(quantity.0.trim())? + ONE - 1).div_euclid(ONE);
    u16::try_from(cores).ok().filter(|cores| *cores > 0)
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
            ("2Ki", Some(2048)),
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
            ("1e3", Some(1000)),
        ] {
            assert_eq!(bytes(&Quantity(text.to_owned())), expected, "{text}");
        }
    }
}
