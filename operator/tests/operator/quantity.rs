//! Quantities in Kubernetes' notation.

use muxtunnel_operator::quantity::are_equal;

#[test]
fn one_worth_in_many_spellings() {
    for (one, other) in [
        ("1024Mi", "1Gi"),
        ("1Gi", "1073741824"),
        ("1000m", "1"),
        ("0.5", "500m"),
        ("1.5Gi", "1536Mi"),
        ("1e3", "1k"),
        ("1E3", "1000"),
        ("1E", "1000P"),
        ("12e-1", "1200m"),
        ("+1", "1"),
        (".5", "0.5"),
        ("-1k", "-1000"),
    ] {
        assert!(are_equal(one, other), "{one} and {other}");
    }
}

#[test]
fn what_differs_or_is_no_quantity_is_not_equal() {
    for (one, other) in [
        ("1G", "1Gi"),
        ("1", "1m"),
        ("", ""),
        (".", "."),
        ("1.2.3", "1.2.3"),
        ("one", "one"),
        ("1Qi", "1Qi"),
        ("1e999", "1e999"),
        ("340282366920938463463374607431768211456", "1"),
    ] {
        assert!(!are_equal(one, other), "{one} and {other}");
    }
}
