//! The output of `check`, compared with the files in `cli/tests/golden`.

use clap::Parser;
use muxtunnel_testkit::generated::compare;

use super::*;
use crate::args::{Cli, Command};
use crate::object::Gateways;
use crate::output::{COLUMNS, Document, Format, Style, rendered};

fn report() -> Report {
    let right = Right {
        verb: "list",
        group: "",
        resource: "nodes",
        namespace: None,
    };
    let slow = serde_json::json!({"metadata": {"name": "slow", "namespace": "shop"}, "spec": {}});
    let slow: Gateways = serde_json::from_value(slow).unwrap();
    let slow = fix::Owner::new("MuxTunnel", &slow);
    let fix = fix::condition("ClassNotPermitted", &slow);
    let cause = "wanEmulation needs the feature WANEmulation, which permitted.features of MuxClass muxtunnel does not have";
    let disabled = Finding::new(Code::ClassNotPermitted, cause, fix);
    let mut report = Report::default();
    report.add(
        Category::Cluster,
        vec![
            Check::good("the API server answers"),
            Check::finding("you may list nodes", right.missing()),
        ],
    );
    let buffers = Finding::new(
        Code::UdpBuffersSmall,
        "net.core.rmem_max is 212992 and net.core.wmem_max is 212992",
        fix::udp_buffers("worker-1", "shop"),
    );
    report.add(
        Category::Node,
        vec![
            Check::skipped(
                "sysctls and kernel features of nodes, tested with pods",
                "not requested",
            ),
            Check::warning(
                "worker-1: UDP buffers have the size that gateways request",
                buffers,
            ),
        ],
    );
    report.add(
        Category::Tunnels,
        vec![
            Check::warning(
                "MuxTunnel shop/slow: something",
                Finding::new(Code::TunMissing, "a cause ".repeat(20), "true"),
            ),
            Check::finding("MuxTunnel shop/slow: Accepted", disabled),
        ],
    );
    report
}

#[test]
fn a_report_in_all_forms() {
    for (name, format) in [("check.txt", Format::Table), ("check.json", Format::Json)] {
        let text = rendered(&report(), format, Style::default()).unwrap();
        compare(&format!("cli/tests/golden/{name}"), &text, "UPDATE_GOLDEN");
    }
    let text = report().text(Style::default());
    assert!(
        text.lines().all(|line| line.chars().count() <= COLUMNS),
        "{text}"
    );
}

#[test]
fn findings_decide_the_status_and_warnings_do_not() {
    assert_eq!(report().ended(), Ended::Findings);
    let mut report = Report::default();
    report.add(
        Category::Node,
        vec![
            Check::warning("one", Finding::new(Code::TunMissing, "two", "three")),
            Check::skipped("four", "five"),
        ],
    );
    assert_eq!(report.ended(), Ended::Good);
}

#[test]
fn categories_are_those_that_make_sense_or_were_named() {
    use Category::{Cluster, Installation, Namespace, Node, Tunnels};
    for (line, wanted) in [
        (
            "check",
            vec![Cluster, Installation, Node, Namespace, Tunnels],
        ),
        ("check --pre", vec![Cluster, Node, Namespace]),
        (
            "check --only tunnels --only cluster",
            vec![Cluster, Tunnels],
        ),
        ("check --pre --only installation", vec![Installation]),
    ] {
        let cli = Cli::parse_from(["muxtunnel"].into_iter().chain(line.split(' ')));
        let Command::Check(args) = cli.command else {
            panic!("{line}");
        };
        assert_eq!(super::categories(&args), wanted, "{line}");
    }
}
