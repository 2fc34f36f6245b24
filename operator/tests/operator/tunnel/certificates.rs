//! Certificates of a tunnel and its join bundle: the pure part.

use muxtunnel_operator::tunnel_controller::apply::Applied;
use muxtunnel_operator::tunnel_controller::build::certificates::due;
use muxtunnel_operator::tunnel_controller::publish::address;

use super::*;

const MADE: i64 = 1_900_000_000;
const DAY: i64 = 24 * 3600;

#[test]
fn tunnels_are_renewed_at_different_times() {
    let due = |uid: &str| due(uid, MADE, MADE + DAY);
    let times: std::collections::BTreeSet<_> =
        (0..50).map(|number| due(&number.to_string())).collect();
    assert!(times.len() > 40, "{times:?}");
}

#[test]
fn a_node_port_that_is_not_there_yet_is_waited_for() {
    let carrier = "exit: {service: {type: NodePort}}\ncarrier: {address: 192.0.2.1}";
    let spec = format!("side: Exit\n{DIRECT}{carrier}");
    let applied = Applied {
        services: built(&spec).services,
        ..Applied::default()
    };
    let missing = address(&valid(&spec), &applied).unwrap_err();
    assert!(missing.contains("has no node port yet"), "{missing}");
}

#[test]
fn the_schemas_rules_hold_for_what_was_stored_before_them() {
    for (spec, says) in [
        (format!("side: Entry\n{DIRECT}"), "side Entry needs carrier"),
        (
            format!("side: Entry\n{DIRECT}carrier: {{address: 'a:1'}}"),
            "side Entry needs carrier.joinFrom",
        ),
        (
            format!("side: Entry\n{DIRECT}carrier: {{address: a, security: {{mode: None}}}}"),
            "expected host:port",
        ),
        (
            format!("side: Exit\n{DIRECT}carrier: {{joinFrom: {{secretName: far}}}}"),
            "is only for side Entry: remove carrier.joinFrom",
        ),
        (
            format!(
                "side: Entry\n{DIRECT}carrier: {{joinFrom: {{secretName: far}}, security: {{mode: None}}}}"
            ),
            "contains the certificates of carriers",
        ),
        (
            format!(
                "{DIRECT}carrier: {{security: {{entry: {{peers: [a]}}, exit: {{peers: [b]}}}}}}"
            ),
            "needs secretName",
        ),
    ] {
        match validate(&tunnel(&spec), &Dereferenced::default(), &settings()) {
            Err(Hindrance::Invalid(problem)) => assert!(problem.contains(says), "{problem}"),
            other => panic!("{spec}: {other:?}"),
        }
    }
}
