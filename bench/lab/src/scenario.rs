//! Scenarios: each [`Scenario`] is a load with its figures, and a [`Run`] runs it once.
//!
//! [`iperf2`], [`iperf3`] and [`crate::load`] measure the rates. [`crate::bench`] starts the system
//! before the load, and records the system's CPU time and memory after the load.

pub(crate) mod iperf2;
pub(crate) mod iperf3;
pub(crate) mod load;
mod packets;
mod paths;
mod udp;

use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;
use muxbench::statistics::Window;
use muxtunnel_gateway_config::{RECEIVE_DEFAULT, RETAIN_DEFAULT, STREAMS_DEFAULT};

use crate::{
    bench::Bench,
    metric::{Figures, Metric},
    system::{Limits, Running},
    topology::Topology,
};

/// Number of idle streams. The number is below the limit of open files of a process.
const IDLE_STREAMS: u32 = 10_000;
/// Number of streams that the client does not read.
const STALLED_STREAMS: u32 = 1_000;
/// `memory.receive` in the scenario with stalled streams.
pub(crate) const STALLED_RECEIVE_BYTES: u64 = 64 << 20;
/// Number of streams while carriers are cut.
const CUT_STREAMS: u32 = 1_000;
/// Number of cuts in one run, one after the other.
const CUTS: u32 = 100;
/// Number of cuts in the scenario with little memory, which measures the peak memory.
const CUTS_SMALL: u32 = 30;
/// `memory.receive` in the scenario with little memory: about half of the bytes that 1,000 streams
/// have in flight.
pub(crate) const SMALL_RECEIVE_BYTES: u64 = 32 << 20;
/// `memory.retain` with little memory or with stalled streams.
pub(crate) const SMALL_RETAIN_BYTES: u64 = 16 << 20;
/// Number of streams of a fixed size.
const FIXED_STREAMS: u32 = 20;
/// Bytes of each stream of a fixed size: about 50 frames in each direction.
const FIXED_BYTES: u64 = 64 << 10;
/// Time-out of the streams of a fixed size, in seconds.
const FIXED_PATIENCE_SECONDS: u32 = 120;
/// Seconds for which idle and stalled streams are held.
const HOLD_SECONDS: u32 = 2;
/// Number of readers next to the stalled reader.
const READERS: u32 = 4;
/// Number of streams of the fairness scenario.
const FAIR_STREAMS: u32 = 10;
/// Number of concurrent opens.
const OPENS_AT_ONCE: u32 = 64;
/// Seconds until rates settle at an RTT of 100 ms, because slow start takes many round trips to
/// reach large windows.
const WAN_WARM_UP_SECONDS: u32 = 4;
/// Seconds of warm-up on a path that changes or is shared. The warm-up covers the time until the
/// change, and the time until a gateway has adapted its windows. A gateway uses 10 s of samples for
/// its windows.
const CHANGE_WARM_UP_SECONDS: u32 = CHANGE_AFTER_SECONDS + 20;
/// Time between two exchanges, as for a person who types fast and holds keys.
const KEYSTROKE_EVERY: Duration = Duration::from_millis(50);
/// Measured seconds of [`Scenario::Keystrokes`], so that the 99th percentile has 12 samples above it.
const KEYSTROKE_SECONDS: u32 = 60;
/// Seconds until the path changes.
const CHANGE_AFTER_SECONDS: u32 = 5;
/// Least seconds of a run on a path that loses frames. Few frames are in flight on such a path, so
/// a shorter run has no stable rate.
const LOSS_SECONDS_MIN: u32 = 10;
/// Estimate of the seconds until the sockets are drained after a run on a path that loses frames.
/// Single runs can take half a minute.
const LOSS_DRAIN_SECONDS: u32 = 6;

/// A scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Scenario {
    /// Throughput, by iperf 2.
    BulkIperf2,
    /// Throughput with encryption, and of other ways to a target than a forward like `ssh -L`.
    BulkWays,
    /// Throughput of other protocols, compared with the native protocol.
    BulkProtocols,
    /// Throughput over UDP, compared with bare quinn and TLS.
    BulkUdp,
    /// Throughput, by iperf 3.
    BulkIperf3,
    /// Time of an exchange of 64 bytes, with and without concurrent bulk.
    PingPong,
    /// Time of an exchange of 64 bytes, 20 a second, with concurrent bulk.
    Keystrokes,
    /// Connections that are opened, used and closed per second.
    Opens,
    /// Effect of a stalled stream on other streams.
    StalledReader,
    /// Fairness among ten streams.
    Fairness,
    /// Throughput of both directions at once.
    FullDuplex,
    /// Memory of idle streams.
    IdleStreams,
    /// Memory of stalled streams.
    StalledStreams,
    /// Survival of streams while carriers are cut.
    CarrierCuts,
    /// Survival of streams while carriers are cut, with little memory.
    CarrierCutsSmall,
    /// Completion of streams of a fixed size.
    FixedStreams,
    /// Throughput after the path became longer.
    PathChange,
    /// Throughput next to a foreign connection on the same link.
    CrossTraffic,
    /// TCP throughput over IP packets, and the share of segments that arrive out of order.
    BulkPackets,
    /// Time of an exchange over IP packets, with concurrent bulk.
    PingPackets,
    /// UDP datagrams in IP packets: the shares that are lost or arrive out of order.
    UdpPackets,
}

impl Scenario {
    /// All scenarios, in the order of the tables.
    #[cfg(test)]
    pub(crate) const ALL: [Self; 21] = [
        Self::BulkIperf2,
        Self::BulkWays,
        Self::BulkProtocols,
        Self::BulkUdp,
        Self::BulkIperf3,
        Self::PingPong,
        Self::Keystrokes,
        Self::Opens,
        Self::StalledReader,
        Self::Fairness,
        Self::FullDuplex,
        Self::IdleStreams,
        Self::StalledStreams,
        Self::CarrierCuts,
        Self::CarrierCutsSmall,
        Self::FixedStreams,
        Self::PathChange,
        Self::CrossTraffic,
        Self::BulkPackets,
        Self::PingPackets,
        Self::UdpPackets,
    ];

    /// The name in tables, JSON lines and flags.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::BulkIperf2 => "bulk-iperf2",
            Self::BulkWays => "bulk-ways",
            Self::BulkProtocols => "bulk-protocols",
            Self::BulkUdp => "bulk-udp",
            Self::BulkIperf3 => "bulk-iperf3",
            Self::PingPong => "ping-pong",
            Self::Keystrokes => "keystrokes",
            Self::Opens => "opens",
            Self::StalledReader => "stalled-reader",
            Self::Fairness => "fairness",
            Self::FullDuplex => "full-duplex",
            Self::IdleStreams => "idle-streams",
            Self::StalledStreams => "stalled-streams",
            Self::CarrierCuts => "carrier-cuts",
            Self::CarrierCutsSmall => "carrier-cuts-small",
            Self::FixedStreams => "fixed-streams",
            Self::PathChange => "path-change",
            Self::CrossTraffic => "cross-traffic",
            Self::BulkPackets => "bulk-packets",
            Self::PingPackets => "ping-packets",
            Self::UdpPackets => "udp-packets",
        }
    }

    /// Whether `--connections` sets the number of connections.
    pub(crate) fn is_bulk(self) -> bool {
        matches!(
            self,
            Self::BulkIperf2
                | Self::BulkWays
                | Self::BulkProtocols
                | Self::BulkUdp
                | Self::BulkIperf3
                | Self::BulkPackets
        )
    }

    /// The default numbers of connections. For the ping-pong they are numbers of concurrent bulk
    /// connections.
    pub(crate) fn connections(self, topology: Topology) -> &'static [u32] {
        match (self, topology) {
            (Self::BulkIperf2, Topology::Loopback) => &[1, 2, 10],
            (Self::BulkIperf2, Topology::WanTuned | Topology::WanLoss1 | Topology::WanLoss5) => {
                &[1]
            }
            (Self::BulkIperf2 | Self::BulkWays | Self::BulkProtocols | Self::BulkIperf3, _) => {
                &[1, 10]
            }
            (Self::BulkUdp, _) => &[1],
            (Self::PingPong, _) => &[0, 1, 10],
            (Self::Keystrokes, _) => &[1],
            (Self::Opens, _) => &[OPENS_AT_ONCE],
            (Self::StalledReader, _) => &[READERS],
            (Self::Fairness, _) => &[FAIR_STREAMS],
            (Self::FullDuplex | Self::PathChange | Self::CrossTraffic, _) => &[1],
            (Self::IdleStreams, _) => &[IDLE_STREAMS],
            (Self::StalledStreams, _) => &[STALLED_STREAMS],
            (Self::CarrierCuts | Self::CarrierCutsSmall, _) => &[CUT_STREAMS],
            (Self::FixedStreams, _) => &[FIXED_STREAMS],
            (Self::BulkPackets, Topology::Wan20) => &[10],
            (Self::BulkPackets, Topology::Wan20Tuned) => &[1],
            (Self::BulkPackets, _) => &[1, 10],
            (Self::PingPackets | Self::UdpPackets, _) => &[1],
        }
    }

    /// The main figure of the scenario's table.
    pub(crate) fn metric(self) -> Metric {
        match self {
            Self::BulkIperf2 | Self::BulkWays | Self::BulkProtocols | Self::BulkIperf3 => {
                Metric::MbitS
            }
            Self::BulkUdp | Self::PathChange | Self::CrossTraffic => Metric::MbitS,
            Self::BulkPackets => Metric::MbitS,
            Self::PingPackets | Self::Keystrokes => Metric::P99Us,
            Self::UdpPackets => Metric::LostPercent,
            Self::PingPong => Metric::P50Us,
            Self::Opens => Metric::OpensS,
            Self::StalledReader => Metric::OthersPercent,
            Self::Fairness => Metric::Jain,
            Self::FullDuplex => Metric::DuplexPercent,
            Self::IdleStreams | Self::StalledStreams => Metric::ExitRssMib,
            Self::CarrierCuts | Self::CarrierCutsSmall => Metric::StallMs,
            Self::FixedStreams => Metric::CompleteMs,
        }
    }

    /// The greatest number of rounds with this scenario. A scenario with figures has all rounds, or
    /// at most three if it has many rows. A scenario with a yes-or-no result has one round, because
    /// one round already repeats the check for many cuts or many streams. A scenario whose path
    /// changes or is shared also has one round.
    pub(crate) fn rounds_max(self) -> u32 {
        match self {
            Self::CarrierCuts | Self::CarrierCutsSmall | Self::FixedStreams => 1,
            Self::PathChange | Self::CrossTraffic => 1,
            Self::BulkProtocols | Self::Keystrokes => 3,
            Self::BulkPackets | Self::PingPackets | Self::UdpPackets => 3,
            _ => u32::MAX,
        }
    }

    /// The limits of muxgate's gateways in the scenario.
    pub(crate) fn limits(self) -> Limits {
        let usual = Limits {
            streams: STREAMS_DEFAULT,
            receive_bytes: RECEIVE_DEFAULT.0,
            retain_bytes: RETAIN_DEFAULT.0,
        };
        match self {
            Self::IdleStreams => Limits {
                streams: IDLE_STREAMS + 64,
                ..usual
            },
            Self::StalledStreams => Limits {
                streams: STALLED_STREAMS + 64,
                receive_bytes: STALLED_RECEIVE_BYTES,
                retain_bytes: SMALL_RETAIN_BYTES,
            },
            Self::CarrierCutsSmall => Limits {
                receive_bytes: SMALL_RECEIVE_BYTES,
                retain_bytes: SMALL_RETAIN_BYTES,
                ..usual
            },
            _ => usual,
        }
    }
}

/// The durations of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    /// Measured seconds.
    pub(crate) seconds: u32,
    /// Seconds of warm-up.
    pub(crate) warm_up_seconds: u32,
    /// Seconds of full duplex.
    pub(crate) duplex_seconds: u32,
}

impl Times {
    /// The measured part of a bulk run.
    pub(crate) fn window(self, topology: Topology) -> Window {
        let warm_up_s = match topology {
            Topology::WanChanging | Topology::WanDeep => CHANGE_WARM_UP_SECONDS,
            _ if topology.is_wan() => WAN_WARM_UP_SECONDS,
            _ => 0,
        };
        let warm_up_s = warm_up_s.max(self.warm_up_seconds);
        let seconds = match topology {
            Topology::WanLoss1 | Topology::WanLoss5 => LOSS_SECONDS_MIN.max(self.seconds),
            Topology::WanChanging | Topology::WanDeep => LOSS_SECONDS_MIN.max(self.seconds),
            _ => self.seconds,
        };
        Window {
            warm_up_s,
            duration_s: warm_up_s + seconds,
        }
    }

    /// Estimate of the duration of a run, including start and end of the processes.
    pub(crate) fn estimate(self, scenario: Scenario, connections: u32, topology: Topology) -> f64 {
        const START_AND_END: f64 = 0.6;
        let once = self.warm_up_seconds + self.seconds;
        let window = self.window(topology);
        let seconds = match scenario {
            _ if scenario.is_bulk() && topology.loss_percent() > 0 => {
                window.duration_s + LOSS_DRAIN_SECONDS
            }
            Scenario::BulkIperf2
            | Scenario::BulkWays
            | Scenario::BulkProtocols
            | Scenario::BulkUdp
            | Scenario::BulkPackets
            | Scenario::BulkIperf3 => window.duration_s,
            Scenario::PingPong if connections > 0 => once + self.seconds,
            Scenario::Keystrokes => self.warm_up_seconds + KEYSTROKE_SECONDS + 5,
            Scenario::PingPackets => window.duration_s + self.seconds,
            Scenario::UdpPackets => self.seconds + 1,
            Scenario::PingPong | Scenario::Opens => once,
            Scenario::StalledReader => 3 * once,
            Scenario::Fairness => once + self.warm_up_seconds,
            Scenario::FullDuplex => window.duration_s + window.warm_up_s + self.duplex_seconds,
            Scenario::IdleStreams | Scenario::StalledStreams => HOLD_SECONDS + 2,
            Scenario::CarrierCuts => 60,
            Scenario::CarrierCutsSmall => 15,
            Scenario::FixedStreams => 7,
            Scenario::PathChange | Scenario::CrossTraffic => window.duration_s + 2,
        };
        f64::from(seconds) + START_AND_END
    }
}

/// The result of a scenario: its figures, and the payload for the CPU time per byte.
pub(crate) struct Outcome {
    /// Payload bytes; 0 if the scenario measures no rate.
    pub(crate) bytes: u64,
    pub(crate) figures: Figures,
}

/// The parameters of a run.
pub(crate) struct Run<'a> {
    pub(crate) bench: &'a Bench<'a>,
    pub(crate) running: &'a Running,
    pub(crate) times: Times,
    pub(crate) connections: u32,
}

impl Run<'_> {
    /// Runs the scenario.
    ///
    /// # Errors
    /// If the load fails, or not all of its connections arrive.
    pub(crate) fn ask(&self, scenario: Scenario) -> Result<Outcome> {
        match scenario {
            Scenario::BulkIperf2 | Scenario::BulkWays | Scenario::BulkProtocols => {
                self.bulk_iperf2()
            }
            Scenario::BulkUdp => self.bulk_udp(),
            Scenario::BulkIperf3 => self.bulk_iperf3(),
            Scenario::PingPong => self.ping_pong(),
            Scenario::Keystrokes => self.keystrokes(),
            Scenario::Opens => self.opens(),
            Scenario::StalledReader => self.stalled_reader(),
            Scenario::Fairness => self.fairness(),
            Scenario::FullDuplex => self.full_duplex(),
            Scenario::IdleStreams => self.hold(false),
            Scenario::StalledStreams => self.hold(true),
            Scenario::CarrierCuts => self.carrier_cuts(CUTS),
            Scenario::CarrierCutsSmall => self.carrier_cuts(CUTS_SMALL),
            Scenario::FixedStreams => self.fixed_streams(),
            Scenario::PathChange => self.path_change(),
            Scenario::CrossTraffic => self.cross_traffic(),
            Scenario::BulkPackets => self.bulk_packets(),
            Scenario::PingPackets => self.ping_packets(),
            Scenario::UdpPackets => self.udp_packets(),
        }
    }

    fn window(&self) -> Window {
        self.times.window(self.bench.network.topology)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_flags() {
        for scenario in Scenario::ALL {
            let flag = scenario.to_possible_value().unwrap();
            assert_eq!(flag.get_name(), scenario.name());
        }
    }

    #[test]
    fn a_wan_warms_up_for_longer() {
        let times = Times {
            seconds: 2,
            warm_up_seconds: 1,
            duplex_seconds: 4,
        };
        let veth = times.window(Topology::Veth);
        assert_eq!((veth.warm_up_s, veth.duration_s), (1, 3));
        let wan = times.window(Topology::Wan);
        assert_eq!((wan.warm_up_s, wan.duration_s), (4, 6));
    }

    #[test]
    fn a_wan_that_loses_frames_is_looked_at_for_longer() {
        let times = Times {
            seconds: 2,
            warm_up_seconds: 1,
            duplex_seconds: 4,
        };
        let window = times.window(Topology::WanLoss1);
        assert_eq!(window.duration_s, window.warm_up_s + LOSS_SECONDS_MIN);
        let long = Times {
            seconds: 60,
            ..times
        };
        assert_eq!(long.window(Topology::WanLoss5).duration_s, 64);
    }

    #[test]
    fn little_memory_is_less_than_what_cut_streams_have_on_their_way() {
        let limits = Scenario::CarrierCutsSmall.limits();
        assert!(limits.receive_bytes + limits.retain_bytes < u64::from(CUT_STREAMS) * (64 << 10));
        assert!(limits.streams >= CUT_STREAMS);
    }
}
