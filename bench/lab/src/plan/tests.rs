use super::*;
use crate::{metric::Metric, report::table};

const TIMES: Times = Times {
    seconds: 2,
    warm_up_seconds: 1,
    duplex_seconds: 4,
};

fn default() -> Selection {
    Selection {
        congestion_controls: vec!["cubic".to_owned(), "bbr".to_owned()],
        ..Selection::default()
    }
}

#[test]
fn five_rounds_of_everything_take_at_most_130_minutes() {
    // Distributions do not package frp and chisel.
    let found = |system| !matches!(system, System::Frp | System::Chisel);
    let environments = environments(&default());
    let seconds: f64 = (1..=5)
        .map(|round| estimate(&environments, TIMES, round, found))
        .sum();
    assert!(seconds < 130.0 * 60.0, "{seconds}");
}

#[test]
fn what_is_answered_by_yes_or_no_is_not_asked_in_every_round() {
    let selection = Selection {
        topologies: Some(vec![Topology::Veth]),
        scenarios: Some(vec![Scenario::CarrierCuts]),
        ..default()
    };
    let seconds = |round| estimate(&environments(&selection), TIMES, round, |_| true);
    assert!(seconds(1) > 0.0);
    assert_eq!(seconds(2), 0.0);
}

#[test]
fn every_scenario_and_every_topology_is_part_of_the_whole_run() {
    let environments = environments(&default());
    let topologies = environments.iter().map(|environment| environment.topology);
    assert!(
        Topology::ALL
            .into_iter()
            .all(|topology| topologies.clone().any(|t| t == topology))
    );
    let cells = environments
        .iter()
        .flat_map(|environment| &environment.cells);
    assert!(
        Scenario::ALL
            .into_iter()
            .all(|s| cells.clone().any(|cell| cell.scenario == s))
    );
}

/// If a table compares a row with another system, the lab measures that system in the same
/// cell.
#[test]
fn a_table_sets_no_system_against_one_that_was_not_measured() {
    for environment in environments(&default()) {
        for cell in environment.cells {
            for control in table::controls(cell.scenario) {
                assert!(cell.systems.contains(&control), "{control:?}: {cell:?}");
            }
        }
    }
}

/// A figure that depends on the speed of the machine needs a control in the same cell. For all
/// other figures, the comments below state why they need no control.
#[test]
fn a_figure_of_the_machine_has_a_control() {
    for environment in environments(&default()) {
        for cell in environment.cells {
            let control = match cell.scenario.metric() {
                Metric::MbitS
                    if matches!(cell.scenario, Scenario::BulkWays | Scenario::BulkProtocols) =>
                {
                    System::MuxgateCopy
                }
                Metric::P99Us if cell.scenario == Scenario::Keystrokes => System::RelayCopy,
                Metric::MbitS | Metric::P50Us | Metric::P99Us | Metric::OpensS => System::Direct,
                Metric::CompleteMs | Metric::CpuSPerGb => System::Direct,
                // These figures are relative to the system's own rate, in per cent or as an
                // index.
                Metric::BulkPercent | Metric::OthersPercent => continue,
                Metric::Jain | Metric::DuplexPercent => continue,
                // These figures are numbers, or times whose bound is the same on every machine.
                Metric::Streams | Metric::LostStreams | Metric::WrongBytes => continue,
                Metric::StalledSeconds | Metric::StallMs | Metric::BeyondReconnectMs => {
                    continue;
                }
                Metric::ReconnectMs | Metric::RecoveredMs => continue,
                Metric::EntryQueuedPercent | Metric::ExitQueuedPercent => continue,
                Metric::EntrySplicedPercent | Metric::ExitSplicedPercent => continue,
                Metric::ExitFellBackPercent | Metric::PipesLackingPerGb => continue,
                Metric::EntryRssMib | Metric::ExitRssMib => continue,
                Metric::OutOfOrder | Metric::LostPercent | Metric::NoRoomPercent => continue,
            };
            assert!(cell.systems.contains(&control), "{control:?}: {cell:?}");
        }
    }
}

#[test]
fn two_builds_are_compared_in_bulk_and_in_exchanges_on_loopback_and_veth() {
    let selection = Selection {
        congestion_controls: vec![USUAL.to_owned()],
        ..Selection::default()
    };
    let rows: Vec<(Topology, Scenario, u32)> = paired(&selection)
        .iter()
        .flat_map(|environment| {
            let cells = environment.cells.iter();
            cells.map(|cell| {
                let systems = [System::MuxgateNative, System::MuxgateKeys];
                assert_eq!(cell.systems, systems);
                (environment.topology, cell.scenario, cell.connections)
            })
        })
        .collect();
    let each = |topology| {
        [
            (topology, Scenario::BulkIperf2, 1),
            (topology, Scenario::BulkIperf2, 10),
            (topology, Scenario::PingPong, 0),
        ]
    };
    assert_eq!(
        rows,
        [each(Topology::Loopback), each(Topology::Veth)].concat()
    );
}

#[test]
fn what_is_chosen_replaces_the_defaults() {
    let selection = Selection {
        topologies: Some(vec![Topology::Veth]),
        congestion_controls: vec!["bbr".to_owned()],
        scenarios: Some(vec![Scenario::BulkIperf2, Scenario::Opens]),
        connections: Some(vec![4]),
        systems: Some(vec![System::MuxgateJmux]),
    };
    let [environment] = &environments(&selection)[..] else {
        panic!("expected one environment");
    };
    let cells: Vec<(Scenario, u32, usize)> = environment
        .cells
        .iter()
        .map(|cell| (cell.scenario, cell.connections, cell.systems.len()))
        .collect();
    assert_eq!(
        cells,
        [(Scenario::BulkIperf2, 4, 1), (Scenario::Opens, 64, 1)]
    );
}
