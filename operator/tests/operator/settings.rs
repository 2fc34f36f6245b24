//! Keys of labels and annotations that pods may have.

use muxtunnel_operator::settings::KeyPattern;

#[test]
fn a_pattern_is_of_one_prefix_or_of_none() {
    for (pattern, key, matches) in [
        ("*", "team", true),
        ("*", "prometheus.io/scrape", false),
        ("team", "team", true),
        ("team", "other", false),
        ("prometheus.io/*", "prometheus.io/scrape", true),
        ("prometheus.io/*", "scrape", false),
        ("prometheus.io/*", "not-prometheus.io/scrape", false),
        ("prometheus.io/*", "prometheus.io.example.com/scrape", false),
        ("prometheus.io/port", "prometheus.io/port", true),
        ("prometheus.io/port", "prometheus.io/path", false),
    ] {
        let parsed: KeyPattern = pattern.parse().unwrap();
        assert_eq!(parsed.matches(key), matches, "{pattern}: {key}");
    }
    for wrong in ["", "/", "*/name", "a/", "a*", "a/b/c", "a b"] {
        assert!(wrong.parse::<KeyPattern>().is_err(), "{wrong}");
    }
}
