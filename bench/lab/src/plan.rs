//! The plan of a run: environments (topology, congestion control), their cells (scenario,
//! connections), and the systems of each cell.
//!
//! Pure, except for the search for installed programs. By default, each cell has only some of the
//! systems, so that a whole run takes less than 130 minutes.

use crate::{
    scenario::{Scenario, Times},
    system::System,
    topology::Topology,
};

/// The congestion control of most machines. The lab measures all scenarios with it.
pub(crate) const USUAL: &str = "cubic";

/// The selection of the command line. `None` selects the default.
#[derive(Debug, Clone, Default)]
pub(crate) struct Selection {
    pub(crate) topologies: Option<Vec<Topology>>,
    pub(crate) congestion_controls: Vec<String>,
    pub(crate) scenarios: Option<Vec<Scenario>>,
    pub(crate) connections: Option<Vec<u32>>,
    pub(crate) systems: Option<Vec<System>>,
}

/// A network and its measurements.
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

/// The environments of a selection, without environments that have no measurements.
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

/// The environments of a comparison of two builds. Their ping-pong runs without concurrent bulk.
/// With bulk, the times of exchanges vary so much that they hide differences.
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
        systems: or(
            &selection.systems,
            &[System::MuxgateNative, System::MuxgateKeys],
        ),
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
            // Over the WAN, one connection is sufficient to show the effect of a congestion
            // control.
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

/// The scenarios on loopback with [`USUAL`].
const ON_LOOPBACK: [Scenario; 12] = [
    Scenario::BulkIperf2,
    Scenario::BulkWays,
    Scenario::BulkProtocols,
    Scenario::BulkIperf3,
    Scenario::PingPong,
    Scenario::Keystrokes,
    Scenario::Opens,
    Scenario::StalledReader,
    Scenario::Fairness,
    Scenario::FullDuplex,
    Scenario::IdleStreams,
    Scenario::StalledStreams,
];

/// `usual`: whether the congestion control is [`USUAL`].
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

/// The systems of most scenarios. Systems with a fixed number of several carriers are left out,
/// because several carriers have no advantage without a delay.
const BESIDE_ONE_ANOTHER: [System; 13] = [
    System::Direct,
    System::RelayCopy,
    System::RelaySplice,
    System::MuxgateJmux,
    System::MuxgateNative,
    System::MuxgateNoResume,
    System::MuxgateDefault,
    System::Jetsocat,
    System::Haproxy,
    System::Openssh,
    System::Rathole,
    System::Frp,
    System::Chisel,
];

/// Systems with encryption, the same systems without encryption, and systems without a plain
/// forward.
const WAYS: [System; 21] = [
    System::MuxgateNative,
    System::MuxgateCopy,
    System::MuxgateTls,
    System::MuxgateTlsSocks5,
    System::MuxgateTlsReverse,
    System::MuxgateKeys,
    System::MuxgateKeysSocks5,
    System::MuxgateKeysReverse,
    System::MuxgateSocks5,
    System::MuxgateHttp,
    System::MuxgateReverse,
    System::MuxgateKeysVisitor,
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

/// Systems with other protocols, the same systems with the native protocol, and other programs with
/// these protocols.
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

/// Systems over UDP, bare quinn, and TLS over TCP.
const OVER_UDP: [System; 7] = [
    System::Direct,
    System::Quinn,
    System::MuxgateKcp,
    System::MuxgateTls,
    System::MuxgateQuic,
    System::MuxgateQuicReverse,
    System::MuxgateHttp3,
];

/// Systems over UDP for paths that lose frames, and one carrier over TCP.
const OVER_UDP_AND_LOSS: [System; 4] = [
    System::Direct,
    System::MuxgateNative,
    System::MuxgateKcp,
    System::MuxgateQuicBbr,
];

/// Systems that carry IP packets, and stream forwards for comparison.
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

/// Systems that carry UDP. The list has no stream forwards. It has no systems with several queues
/// either, because the scenario has one flow, which uses one queue.
const UDP_PACKETS: [System; 8] = [
    System::Direct,
    System::MuxgateTun,
    System::MuxgateTunTls,
    System::MuxgateTunQuic,
    System::MuxgateTunNoOffload,
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
        Scenario::PingPong => &[
            Direct,
            System::RelayCopy,
            MuxgateJmux,
            MuxgateNative,
            System::MuxgateDefault,
            Jetsocat,
        ],
        Scenario::Keystrokes => &[System::RelayCopy, MuxgateNative, System::MuxgateDefault],
        Scenario::StalledReader | Scenario::Fairness => &[MuxgateJmux, MuxgateNative, Jetsocat],
        Scenario::FullDuplex if topology == Topology::WanTuned => &[MuxgateNative, MuxgateNativeX4],
        Scenario::FullDuplex if topology.is_wan() => &[Direct, MuxgateNative, MuxgateNativeX4],
        Scenario::FullDuplex => &[MuxgateJmux, MuxgateNative],
        Scenario::IdleStreams | Scenario::StalledStreams => &[MuxgateJmux, MuxgateNative],
        // In all other systems a stream ends with its connection.
        Scenario::CarrierCuts | Scenario::CarrierCutsSmall => &[MuxgateNative, MuxgateNativeX4],
        Scenario::FixedStreams => &[Direct, MuxgateNative, MuxgateNativeX4],
        Scenario::PathChange | Scenario::CrossTraffic => &[Direct, MuxgateNative],
        Scenario::BulkPackets | Scenario::PingPackets => &PACKETS,
        Scenario::UdpPackets => &UDP_PACKETS,
    }
}

/// Estimate of the duration of a round in seconds, for the systems for which `is_found` is true.
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
mod tests;
