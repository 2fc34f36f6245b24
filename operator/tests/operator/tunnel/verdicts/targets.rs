//! Targets that no connection reaches.

use muxtunnel_gateway_config::status::Dials;
use muxtunnel_operator::tunnel_controller::validate::Finding;

use super::causes::{PROVIDED, forward};
use super::*;

fn dialled(case: &mut Case, end: End, name: &str, (connected, failed): (u64, u64)) {
    let mut forward = forward(name);
    forward.dials = Some(Dials { connected, failed });
    case.status(end).forwards.push(forward);
}

#[test]
fn a_forward_that_loses_every_connection_is_not_available() {
    let detail = "forward web: no connection of the last 2 minutes reached the target web:80. Check that the target \
                  listens on this port, and check the targetPort";
    for (dials, holds) in [
        ((0, 5), false),
        // Too few dials, a target that some connections reach, and no connections.
        ((0, 4), true),
        ((1, 1000), true),
        ((0, 0), true),
    ] {
        let mut case = case(PROVIDED);
        dialled(&mut case, End::Entry, "web", dials);
        let (code, detail) = match holds {
            true => (Code::Reconciled, "kube-proxy"),
            false => (Code::OpenFailed, detail),
        };
        case.expect("Available", Some(holds), code, detail);
        // The object is ready if all of its conditions are true.
        assert_eq!(case.verdict("Ready").holds, Some(holds));
        case.expect("Programmed", Some(true), Code::Programmed, "");
    }
}

#[test]
fn what_one_gateway_or_the_clients_of_a_proxy_lose_does_not_count() {
    // One of two gateways reaches the target.
    let mut two = case(SMALLEST);
    dialled(&mut two, End::Entry, "web", (0, 50));
    let mut other = two.another(End::Entry);
    let mut web = forward("web");
    web.dials = Some(Dials {
        connected: 3,
        failed: 0,
    });
    other
        .answer
        .as_mut()
        .unwrap()
        .as_mut()
        .unwrap()
        .forwards
        .push(web);
    two.seen.pods.push(other);
    two.expect("Available", Some(true), Code::Reconciled, "");
    // The gateway reports no dials of targets that clients name.
    let mut proxy = case(SMALLEST);
    proxy.status(End::Entry).forwards.push(forward("proxy"));
    proxy.expect("Available", Some(true), Code::Reconciled, "");
    // One of two forwards reaches its target.
    let mut half = case(
        "
forwards:
- {name: web, port: 80, targets: [{host: web, port: 80}]}
- {name: db, port: 81, targets: [{host: db, port: 80}]}
",
    );
    dialled(&mut half, End::Entry, "web", (0, 50));
    let detail = "forward web: no connection";
    half.expect("Available", Some(true), Code::Reconciled, detail);
    dialled(&mut half, End::Entry, "db", (0, 50));
    half.expect(
        "Available",
        Some(false),
        Code::OpenFailed,
        "forward db: no connection",
    );
}

#[test]
fn a_forward_counts_once_with_the_first_of_its_problems() {
    let mut case = case(
        "
forwards:
- {name: web, port: 80, targets: [{host: web, port: 80}]}
- {name: db, port: 81, targets: [{host: db, port: 80}]}
",
    );
    let sentence = "forward web: no pod behind Service web is ready";
    case.object.findings.all = vec![Finding {
        code: Code::TargetNotReady,
        place: "forward web".to_owned(),
        detail: "no pod behind Service web is ready".to_owned(),
        is_lost: true,
    }];
    dialled(&mut case, End::Entry, "web", (0, 50));
    case.expect("Available", Some(true), Code::Reconciled, sentence);
    assert!(!case.verdict("Available").detail.contains("no connection"));
}
