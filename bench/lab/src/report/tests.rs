use super::*;
use crate::{
    plan::USUAL,
    report::{json::write, table::tables},
    verdict::verdicts,
};

fn key(scenario: Scenario, connections: u32, system: System) -> Key {
    Key {
        topology: Topology::Loopback,
        congestion_control: USUAL.to_owned(),
        scenario,
        connections,
        system,
    }
}

/// Conditions of runs of a few seconds.
pub(crate) fn conditions(rounds: u32) -> Conditions {
    Conditions {
        iperf2: "2.1.8".to_owned(),
        kernel: "6.18.0".to_owned(),
        cpus: 2,
        times: Times {
            seconds: 2,
            warm_up_seconds: 1,
            duplex_seconds: 4,
        },
        rounds,
    }
}

/// Bulk and ping-pong of a direct connection and of muxgate. jetsocat is not installed.
fn report() -> Report {
    let mut report = Report {
        conditions: conditions(3),
        rows: Vec::new(),
    };
    for (system, scale) in [(System::Direct, 1.0), (System::MuxgateJmux, 0.5)] {
        let bulk = report.row_mut(key(Scenario::BulkIperf2, 1, system));
        for mbit_s in [20_000.0, 18_000.0, 25_000.0] {
            let mut figures = Figures::from([(Metric::MbitS, mbit_s * scale)]);
            if system != System::Direct {
                figures.insert(Metric::CpuSPerGb, 0.876);
                figures.insert(Metric::EntryRssMib, 6.3);
                figures.insert(Metric::ExitRssMib, 40.0);
            }
            bulk.add(Measured {
                figures,
                foreign_share: mbit_s / 1e6,
                basis: Basis::default(),
            });
        }
        let ping_pong = report.row_mut(key(Scenario::PingPong, 0, system));
        ping_pong.add(Measured {
            figures: Figures::from([
                (Metric::P50Us, 100.0 / scale),
                (Metric::P99Us, 150.0 / scale),
            ]),
            foreign_share: 0.0,
            basis: Basis::default(),
        });
    }
    for scenario in [Scenario::BulkIperf2, Scenario::PingPong] {
        let connections = u32::from(scenario.is_bulk());
        let missing = report.row_mut(key(scenario, connections, System::Jetsocat));
        missing.reason = Some(NOT_FOUND.to_owned());
    }
    report
}

#[test]
fn the_tables_set_every_system_against_direct_within_100_columns() {
    let text = tables(&report());
    assert_eq!(
        text,
        "\n\
         bulk-iperf2, loopback, cubic\n\
         \x20conns  system                 Gbit/s (min..max)    of direct     CPU-s/GB    \
         entry MiB     exit MiB\n\
         \x20    1  direct              20.00 (18.00..25.00)         1.00            -            \
         -            -\n\
         \x20    1  muxgate-jmux         10.00 (9.00..12.50)         0.50         0.88          \
         6.3         40.0\n\
         \x20    1  jetsocat        not found\n\
         \n\
         ping-pong, loopback, cubic\n\
         \x20conns  system                 p50 us (min..max)     us added       p99 us       \
         bulk %     CPU-s/GB\n\
         \x20    0  direct                    100 (100..100)            -          150            \
         -            -\n\
         \x20    0  muxgate-jmux              200 (200..200)          100          300            \
         -            -\n\
         \x20    0  jetsocat        not found\n"
    );
    assert!(text.lines().all(|line| line.len() <= 100));
}

#[test]
fn other_work_on_the_machine_is_named_and_warned_of() {
    let said = report().foreign_work().unwrap();
    assert!(
        said.starts_with("other programs used 2 % of the processors"),
        "{said}"
    );
    let mut busy = report();
    busy.rows[0].foreign_share = vec![0.5; 9];
    let said = busy.foreign_work().unwrap();
    assert!(said.ends_with("repeat on a quiet machine"), "{said}");
}

#[test]
fn targets_that_the_run_covers_are_judged_and_no_others() {
    let verdicts = verdicts(&report());
    let texts: Vec<&str> = verdicts
        .iter()
        .map(|verdict| verdict.text.as_str())
        .collect();
    assert_eq!(
        texts,
        [
            "muxgate-jmux, loopback, cubic, bulk-iperf2 x 1, Gbit/s of direct: \
             MISSED (0.5, wanted >= 0.6)",
            "muxgate-jmux, loopback, cubic, bulk-iperf2 x 1, Gbit/s of jetsocat: \
             not judged (jetsocat: not found)",
            "muxgate-jmux, loopback, cubic, ping-pong x 0, p50 us added to direct: \
             met (100, wanted <= 100)",
        ]
    );
    assert!(verdicts[0].is_missed && !verdicts[1].is_missed && !verdicts[2].is_missed);
}

#[test]
fn opens_are_judged_by_the_lower_of_a_constant_and_half_of_direct() {
    let judged = |direct: f64, ours: f64| {
        let mut report = Report {
            conditions: conditions(3),
            rows: Vec::new(),
        };
        for (system, opens) in [(System::Direct, direct), (System::MuxgateNative, ours)] {
            let row = report.row_mut(key(Scenario::Opens, 64, system));
            row.add(Measured {
                figures: Figures::from([(Metric::OpensS, opens)]),
                foreign_share: 0.0,
                basis: Basis::default(),
            });
        }
        !verdicts(&report)[0].is_missed
    };
    assert!(judged(40_000.0, 10_000.0));
    assert!(!judged(40_000.0, 9_999.0));
    assert!(judged(12_000.0, 6_000.0));
    assert!(!judged(12_000.0, 5_999.0));
}

#[test]
fn the_most_of_all_rounds_counts_for_memory() {
    let mut report = report();
    let row = report.row_mut(key(Scenario::IdleStreams, 10_000, System::MuxgateJmux));
    for mib in [20.0, 65.0, 20.0] {
        row.add(Measured {
            figures: Figures::from([(Metric::EntryRssMib, mib)]),
            foreign_share: 0.0,
            basis: Basis::default(),
        });
    }
    let verdicts = verdicts(&report);
    let verdict = verdicts.last().unwrap();
    assert!(
        verdict.text.ends_with("MISSED (65, wanted <= 64)"),
        "{}",
        verdict.text
    );
}

#[test]
fn every_row_is_a_json_line_with_its_system() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("results.jsonl");
    write(&report(), &path).unwrap();
    let lines: Vec<serde_json::Value> = std::fs::read_to_string(path)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 6);
    let ours = &lines[2];
    assert_eq!(ours["system"], "muxgate-jmux");
    assert_eq!(ours["scenario"], "bulk-iperf2");
    assert_eq!(ours["topology"], "loopback");
    assert_eq!(ours["mbit_s"]["median"], 10_000.0);
    assert_eq!(ours["ratio_to_direct"], 0.5);
    assert_eq!(ours["status"], "ok");
    assert_eq!(lines[4]["status"], "failed");
    assert_eq!(lines[4]["reason"], NOT_FOUND);
}

#[test]
fn a_peer_that_is_not_installed_leaves_the_report_complete_and_a_failure_does_not() {
    let mut report = report();
    assert!(report.is_complete());
    report.rows[4].reason = Some("the iperf client failed".to_owned());
    assert!(!report.is_complete());
    let mut report = self::report();
    report.rows[2].reason = Some(NOT_FOUND.to_owned());
    assert!(!report.is_complete());
}
