//! What a run measures: environments (topology, congestion control), in each of them cells (scenario,
//! connections), in each cell the systems that are compared.
//!
//! Pure but for the look at which programs are installed. What is not chosen has a default that keeps a
//! whole run below 110 minutes: not every system in every cell.

use crate::{
    scenario::{Scenario, Times},
    system::System,
    topology::Topology,
};

/// The congestion control of most machines; everything is measured with it.
pub(crate) const USUAL: &str = "cubic";

/// What was chosen on the command line; `None`: the default.
#[derive(Debug, Clone, Default)]
pub(crate) struct Selection {
    pub(crate) topologies: Option<Vec<Topology>>,
    pub(crate) congestion_controls: Vec<String>,
    pub(crate) scenarios: Option<Vec<Scenario>>,
    pub(crate) connections: Option<Vec<u32>>,
    pub(crate) systems: Option<Vec<System>>,
}

/// One network and what is measured in it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Environment {
    pub(crate) topology: Topology,
    pub(crate) congestion_control: String,
    pub(crate) cells: Vec<Cell>,
}

/// One comparison.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Cell {
    pub(crate) scenario: Scenario,
    pub(crate) connections: u32,
    pub(crate) systems: Vec<System>,
}

/// The environments of a selection, without those in which nothing is measured.
pub(crate) fn environments(selection: &Selection) -> Vec<Environment> {
    let topologies = selection.topologies.as_deref().unwrap_or(&Topology::ALL);
    let pairs = topologies.iter().flat_map(|&topology| {
        let all = &selection.congestion_controls;
        all.iter().map(move |control| (topology, control))
    });
    pairs
        .map(|(topology, congestion_control)| Environment {
            topology,
            congestion_control: congestion_control.clone(),
            cells: cells(selection, topology, congestion_control == USUAL),
        })
        .filter(|environment| !environment.cells.is_empty())
        .collect()
}

/// The environments of a comparison of two builds; a ping-pong in them has no bulk beside it, where the
/// spread of an exchange would hide any difference.
pub(crate) fn paired(selection: &Selection) -> Vec<Environment> {
    fn or<T: Clone>(chosen: &Option<Vec<T>>, default: &[T]) -> Option<Vec<T>> {
        Some(chosen.clone().unwrap_or_else(|| default.to_vec()))
    }
    let mut environments = environments(&Selection {
        topologies: or(&selection.topologies, &[Topology::Loopback, Topology::Veth]),
        congestion_controls: selection.congestion_controls.clone(),
        scenarios: or(
            &selection.scenarios,
            &[Scenario::BulkIperf2, Scenario::PingPong],
        ),
        connections: or(&selection.connections, &[1, 10]),
        systems: or(&selection.systems, &[System::MuxgateNative]),
    });
    for environment in &mut environments {
        let cells = &mut environment.cells;
        cells.retain(|cell| cell.scenario != Scenario::PingPong || cell.connections == 0);
    }
    environments
}

fn cells(selection: &Selection, topology: Topology, usual: bool) -> Vec<Cell> {
    let default = default_scenarios(topology, usual);
    let scenarios = selection.scenarios.as_deref().unwrap_or(default);
    let pairs = scenarios.iter().flat_map(|&scenario| {
        let default = scenario.connections(topology);
        let connections: &[u32] = match &selection.connections {
            Some(chosen) if scenario.is_bulk() => chosen,
            // Over the WAN it is the one carrier that shows what a congestion control does.
            _ if scenario.is_bulk() && topology.is_wan() && !usual => &[1],
            _ if scenario.is_bulk() && !usual => &[1, 10],
            _ => default,
        };
        connections.iter().map(move |&count| (scenario, count))
    });
    pairs
        .map(|(scenario, connections)| Cell {
            scenario,
            connections,
            systems: match &selection.systems {
                Some(chosen) => chosen.clone(),
                None => default_systems(scenario, connections, topology, usual).to_vec(),
            },
        })
        .collect()
}

/// On loopback with [`USUAL`].
const ON_LOOPBACK: [Scenario; 11] = [
    Scenario::BulkIperf2,
    Scenario::BulkWays,
    Scenario::BulkProtocols,
    Scenario::BulkIperf3,
    Scenario::PingPong,
    Scenario::Opens,
    Scenario::StalledReader,
    Scenario::Fairness,
    Scenario::FullDuplex,
    Scenario::IdleStreams,
    Scenario::StalledStreams,
];

/// `usual`: with [`USUAL`].
fn default_scenarios(topology: Topology, usual: bool) -> &'static [Scenario] {
    use Scenario::{
        BulkIperf2, BulkPackets, BulkUdp, CarrierCuts, CarrierCutsSmall, FixedStreams, FullDuplex,
        PingPackets, UdpPackets,
    };
    match (topology, usual) {
        (Topology::Loopback, true) => &ON_LOOPBACK,
        (Topology::Veth, true) => &[
            BulkIperf2,
            BulkUdp,
            CarrierCuts,
            CarrierCutsSmall,
            BulkPackets,
            PingPackets,
            UdpPackets,
        ],
        (Topology::Wan | Topology::WanTuned, true) => &[BulkIperf2, FullDuplex],
        (Topology::WanTuned | Topology::WanChanging | Topology::WanDeep, false) => &[],
        (Topology::WanChanging, true) => &[Scenario::PathChange],
        (Topology::WanDeep, true) => &[Scenario::CrossTraffic],
        (Topology::Wan20, true) => &[BulkPackets, PingPackets, UdpPackets],
        (Topology::Wan20Tuned, true) => &[BulkPackets],
        (Topology::Wan20 | Topology::Wan20Tuned, false) => &[],
        (Topology::WanLoss1, true) => &[BulkIperf2, BulkUdp],
        (Topology::WanLoss5, _) => &[FixedStreams],
        (Topology::Loopback | Topology::Veth | Topology::Wan, false) | (Topology::WanLoss1, _) => {
            &[BulkIperf2]
        }
    }
}

/// Where everything is measured. On a path without a delay several carriers have nothing to gain.
const BESIDE_ONE_ANOTHER: [System; 12] = [
    System::Direct,
    System::RelayCopy,
    System::RelaySplice,
    System::MuxgateJmux,
    System::MuxgateNative,
    System::MuxgateNoResume,
    System::Jetsocat,
    System::Haproxy,
    System::Openssh,
    System::Rathole,
    System::Frp,
    System::Chisel,
];

/// What encrypts, with what we would do without; and what comes another way than by a forward.
const WAYS: [System; 22] = [
    System::MuxgateNative,
    System::MuxgateCopy,
    System::MuxgateTls,
    System::MuxgateTlsSocks5,
    System::MuxgateTlsReverse,
    System::MuxgateNoise,
    System::MuxgateNoiseSocks5,
    System::MuxgateNoiseReverse,
    System::MuxgateSocks5,
    System::MuxgateHttp,
    System::MuxgateReverse,
    System::MuxgateVisitor,
    System::MuxgateNoiseVisitor,
    System::Openssh,
    System::OpensshDynamic,
    System::OpensshReverse,
    System::RatholeNoise,
    System::Frp,
    System::FrpTls,
    System::FrpStcp,
    System::FrpStcpEncrypted,
    System::Chisel,
];

/// The protocols of others, what they are compared with, and the programs that speak them.
const PROTOCOLS: [System; 13] = [
    System::MuxgateCopy,
    System::MuxgateTls,
    System::MuxgateH2c,
    System::MuxgateHttp2,
    System::MuxgateHttp2Reverse,
    System::MuxgateHbone,
    System::MuxgateSsh,
    System::MuxgateSshReverse,
    System::Openssh,
    System::EnvoyH2c,
    System::EnvoyHttp2,
    System::GoH2c,
    System::GoHttp2,
];

/// What runs on UDP, the library of one of them, and TLS over TCP.
const OVER_UDP: [System; 7] = [
    System::Direct,
    System::Quinn,
    System::MuxgateKcp,
    System::MuxgateTls,
    System::MuxgateQuic,
    System::MuxgateQuicReverse,
    System::MuxgateHttp3,
];

/// The same where frames are lost, beside one carrier over TCP.
const OVER_UDP_AND_LOSS: [System; 4] = [
    System::Direct,
    System::MuxgateNative,
    System::MuxgateKcp,
    System::MuxgateQuicBbr,
];

/// What carries IP packets, and stream forwards.
const PACKETS: [System; 12] = [
    System::Direct,
    System::MuxgateNative,
    System::MuxgateQuic,
    System::MuxgateTun,
    System::MuxgateTunTls,
    System::MuxgateTunQuic,
    System::MuxgateTunNoOffload,
    System::MuxgateTunQueues2,
    System::MuxgateTunQueues4,
    System::WireguardGo,
    System::WireguardGoCurrent,
    System::Openvpn,
];

/// The same without the stream forwards, which carry no UDP.
const UDP_PACKETS: [System; 10] = [
    System::Direct,
    System::MuxgateTun,
    System::MuxgateTunTls,
    System::MuxgateTunQuic,
    System::MuxgateTunNoOffload,
    System::MuxgateTunQueues2,
    System::MuxgateTunQueues4,
    System::WireguardGo,
    System::WireguardGoCurrent,
    System::Openvpn,
];

fn default_systems(
    scenario: Scenario,
    connections: u32,
    topology: Topology,
    usual: bool,
) -> &'static [System] {
    use System::{
        Direct, Haproxy, Jetsocat, MuxgateHttp, MuxgateJmux, MuxgateNative, MuxgateNativeX4,
        MuxgateNoResume, MuxgateSocks5,
    };
    let is_lossy = topology.loss_percent() > 0;
    match scenario {
        Scenario::BulkIperf2 if is_lossy => &[Direct, MuxgateNative, MuxgateNativeX4],
        Scenario::BulkIperf2 if topology == Topology::Wan && (connections, usual) == (1, true) => {
            &[
                Direct,
                MuxgateJmux,
                MuxgateNative,
                MuxgateNativeX4,
                Jetsocat,
            ]
        }
        Scenario::BulkIperf2 if topology.is_wan() => &[Direct, MuxgateJmux, MuxgateNative],
        Scenario::BulkIperf2 if topology == Topology::Loopback && !usual => {
            &[Direct, MuxgateNoResume, Jetsocat]
        }
        Scenario::BulkIperf2 if !usual || connections == 2 => {
            &[Direct, MuxgateJmux, MuxgateNative, Jetsocat]
        }
        Scenario::BulkIperf2 => &BESIDE_ONE_ANOTHER,
        Scenario::BulkWays => &WAYS,
        Scenario::BulkProtocols => &PROTOCOLS,
        Scenario::BulkUdp if is_lossy => &OVER_UDP_AND_LOSS,
        Scenario::BulkUdp => &OVER_UDP,
        Scenario::BulkIperf3 => &[Direct, MuxgateJmux, MuxgateNative],
        Scenario::Opens => &[Direct, MuxgateJmux, MuxgateNative, Jetsocat, Haproxy],
        Scenario::PingPong if connections == 0 => &[
            Direct,
            MuxgateJmux,
            MuxgateNative,
            MuxgateSocks5,
            MuxgateHttp,
            System::MuxgateH2c,
            System::MuxgateHttp2,
            Jetsocat,
        ],
        Scenario::PingPong => &[Direct, MuxgateJmux, MuxgateNative, Jetsocat],
        Scenario::StalledReader | Scenario::Fairness => &[MuxgateJmux, MuxgateNative, Jetsocat],
        Scenario::FullDuplex if topology == Topology::WanTuned => &[MuxgateNative, MuxgateNativeX4],
        Scenario::FullDuplex if topology.is_wan() => &[Direct, MuxgateNative, MuxgateNativeX4],
        Scenario::FullDuplex => &[MuxgateJmux, MuxgateNative],
        Scenario::IdleStreams | Scenario::StalledStreams => &[MuxgateJmux, MuxgateNative],
        // The streams of every other system end with their connection.
        Scenario::CarrierCuts | Scenario::CarrierCutsSmall => &[MuxgateNative, MuxgateNativeX4],
        Scenario::FixedStreams => &[Direct, MuxgateNative, MuxgateNativeX4],
        Scenario::PathChange | Scenario::CrossTraffic => &[Direct, MuxgateNative],
        Scenario::BulkPackets | Scenario::PingPackets => &PACKETS,
        Scenario::UdpPackets => &UDP_PACKETS,
    }
}

/// About how many seconds this round takes, of the systems for which `is_found` holds.
pub(crate) fn estimate(
    environments: &[Environment],
    times: Times,
    round: u32,
    is_found: impl Fn(System) -> bool,
) -> f64 {
    environments
        .iter()
        .flat_map(|environment| {
            environment
                .cells
                .iter()
                .map(move |cell| (environment, cell))
        })
        .filter(|(_, cell)| round <= cell.scenario.rounds_max())
        .map(|(environment, cell)| {
            let systems = cell
                .systems
                .iter()
                .filter(|system| is_found(**system))
                .count();
            let (scenario, connections) = (cell.scenario, cell.connections);
            systems as f64 * times.estimate(scenario, connections, environment.topology)
        })
        .sum()
}

#[cfg(test)]
mod tests {
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
    fn five_rounds_of_everything_take_at_most_110_minutes() {
        // frp and chisel are in no distribution.
        let found = |system| !matches!(system, System::Frp | System::Chisel);
        let environments = environments(&default());
        let seconds: f64 = (1..=5)
            .map(|round| estimate(&environments, TIMES, round, found))
            .sum();
        assert!(seconds < 110.0 * 60.0, "{seconds}");
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

    /// What a table divides a row by, and what it subtracts from one, is measured in the same cell.
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

    /// A figure that a faster machine changes says nothing without a control; of the others the list says
    /// what they are set against.
    #[test]
    fn a_figure_of_the_machine_has_a_control() {
        for environment in environments(&default()) {
            for cell in environment.cells {
                let control = match cell.scenario.metric() {
                    Metric::MbitS
                        if matches!(
                            cell.scenario,
                            Scenario::BulkWays | Scenario::BulkProtocols
                        ) =>
                    {
                        System::MuxgateCopy
                    }
                    Metric::MbitS | Metric::P50Us | Metric::P99Us | Metric::OpensS => {
                        System::Direct
                    }
                    Metric::CompleteMs | Metric::CpuSPerGb => System::Direct,
                    // Of the system's own rate, in per cent or as an index.
                    Metric::BulkPercent | Metric::OthersPercent => continue,
                    Metric::Jain | Metric::DuplexPercent => continue,
                    // A number, or a bound that holds on any machine.
                    Metric::Streams | Metric::LostStreams | Metric::WrongBytes => continue,
                    Metric::StalledSeconds | Metric::StallMs | Metric::BeyondReconnectMs => {
                        continue;
                    }
                    Metric::ReconnectMs | Metric::RecoveredMs => continue,
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
                    assert_eq!(cell.systems, [System::MuxgateNative]);
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
            panic!("not one environment");
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
}
