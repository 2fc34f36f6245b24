//! Keys of labels and annotations that pods may have.

use muxtunnel_operator::settings::{KeyPattern, LabelKey};

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

#[test]
fn a_label_is_permitted_by_its_whole_key() {
    for (permitted, key, is_it) in [
        ("team", "team", true),
        ("team", "teams", false),
        ("team", "example.com/team", false),
        ("example.com/team", "example.com/team", true),
        ("example.com/team", "team", false),
        ("example.com/team", "example.com/other", false),
    ] {
        let parsed: LabelKey = permitted.parse().unwrap();
        assert_eq!(parsed.is(key), is_it, "{permitted}: {key}");
    }
    for wrong in [
        "",
        "*",
        "example.com/*",
        "/",
        "*/name",
        "a/",
        "a*",
        "a/b/c",
        "a b",
    ] {
        assert!(wrong.parse::<LabelKey>().is_err(), "{wrong}");
    }
}
