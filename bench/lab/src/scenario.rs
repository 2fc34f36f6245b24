//! What is asked of a system: one [`Scenario`] a question, one [`Run`] that asks it once.
//!
//! How the rates come about is in [`iperf2`], [`iperf3`] and [`crate::load`]; [`crate::bench`] starts the
//! system before and looks at its cost after.

pub(crate) mod iperf2;
pub(crate) mod iperf3;
pub(crate) mod load;
mod packets;
mod paths;
mod udp;

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

/// Idle streams of that scenario: below what one process may have open.
const IDLE_STREAMS: u32 = 10_000;
/// Streams that nobody reads.
const STALLED_STREAMS: u32 = 1_000;
/// `memory.receive` while nobody reads.
pub(crate) const STALLED_RECEIVE_BYTES: u64 = 64 << 20;
/// Streams whose carriers are cut.
const CUT_STREAMS: u32 = 1_000;
/// Carriers that are cut in one run, one after the other.
const CUTS: u32 = 100;
/// The same with little memory, where it is the peak that is asked for.
const CUTS_SMALL: u32 = 30;
/// `memory.receive` where little memory is given: what 1,000 streams have on their way is twice that.
pub(crate) const SMALL_RECEIVE_BYTES: u64 = 32 << 20;
/// `memory.retain` where little memory is given, or nobody reads.
pub(crate) const SMALL_RETAIN_BYTES: u64 = 16 << 20;
/// Streams of a fixed size.
const FIXED_STREAMS: u32 = 20;
/// Bytes of each of them: some 50 frames there and as many back.
const FIXED_BYTES: u64 = 64 << 10;
/// Seconds that they may take.
const FIXED_PATIENCE_SECONDS: u32 = 120;
/// Seconds that idle and stalled streams are held.
const HOLD_SECONDS: u32 = 2;
/// Streams that are read in the scenario of the stalled reader.
const READERS: u32 = 4;
/// Streams of the scenario of fairness.
const FAIR_STREAMS: u32 = 10;
/// Opens at once.
const OPENS_AT_ONCE: u32 = 64;
/// Rates need this many seconds to settle at an RTT of 100 ms: slow start up to large windows.
const WAN_WARM_UP_SECONDS: u32 = 4;
/// Where a path changes or is shared: seconds until the change, and until a gateway that looks at 10 s of
/// the path knows it and its windows have grown.
const CHANGE_WARM_UP_SECONDS: u32 = CHANGE_AFTER_SECONDS + 20;
/// Seconds until the path changes.
const CHANGE_AFTER_SECONDS: u32 = 5;
/// Where frames are lost, so few are on their way that a rate is one only over this many seconds.
const LOSS_SECONDS_MIN: u32 = 10;
/// Seconds that what waits in the sockets of a run takes then, after its end.
const LOSS_DRAIN_SECONDS: u32 = 6;

/// A question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Scenario {
    /// How much goes through, by iperf 2.
    BulkIperf2,
    /// The same where it is encrypted, or comes another way than `ssh -L`'s.
    BulkWays,
    /// The same by the protocols of others, beside our own.
    BulkProtocols,
    /// The same over UDP, beside bare quinn and TLS.
    BulkUdp,
    /// The same by iperf 3.
    BulkIperf3,
    /// How long an exchange of 64 bytes takes, alone and beside bulk.
    PingPong,
    /// How many connections can be opened, used and closed a second.
    Opens,
    /// What a stream that is not read costs the others.
    StalledReader,
    /// Whether ten streams get the same.
    Fairness,
    /// Whether both directions work at once.
    FullDuplex,
    /// What idle streams cost in memory.
    IdleStreams,
    /// What streams that nobody reads cost in memory.
    StalledStreams,
    /// Whether streams outlive cuts of their carriers.
    CarrierCuts,
    /// The same with little memory.
    CarrierCutsSmall,
    /// Whether streams of a fixed size are complete.
    FixedStreams,
    /// How much goes through after the path became longer.
    PathChange,
    /// How much goes through beside somebody else's connection.
    CrossTraffic,
    /// How much TCP goes through where IP packets are carried, and how much of it arrives out of order.
    BulkPackets,
    /// How long an exchange beside bulk takes there.
    PingPackets,
    /// How much UDP is lost there, and how much of it arrives out of order.
    UdpPackets,
}

impl Scenario {
    /// All of them, in the order of the tables.
    #[cfg(test)]
    pub(crate) const ALL: [Self; 20] = [
        Self::BulkIperf2,
        Self::BulkWays,
        Self::BulkProtocols,
        Self::BulkUdp,
        Self::BulkIperf3,
        Self::PingPong,
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

    /// Whether `--connections` chooses how many there are.
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

    /// The numbers of connections it is made with unless others are chosen; of the ping-pong, those
    /// of the bulk beside it.
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

    /// The figure that its table is about.
    pub(crate) fn metric(self) -> Metric {
        match self {
            Self::BulkIperf2 | Self::BulkWays | Self::BulkProtocols | Self::BulkIperf3 => {
                Metric::MbitS
            }
            Self::BulkUdp | Self::PathChange | Self::CrossTraffic => Metric::MbitS,
            Self::BulkPackets => Metric::MbitS,
            Self::PingPackets => Metric::P99Us,
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

    /// The rounds in which it is asked: a figure needs all of them, or three where there are many rows; what is answered by
    /// yes or no is asked a hundred times, or of many streams, in one.
    pub(crate) fn rounds_max(self) -> u32 {
        match self {
            Self::CarrierCuts | Self::CarrierCutsSmall | Self::FixedStreams => 1,
            Self::PathChange | Self::CrossTraffic => 1,
            Self::BulkProtocols => 3,
            Self::BulkPackets | Self::PingPackets | Self::UdpPackets => 3,
            _ => u32::MAX,
        }
    }

    /// What our gateways are allowed in it.
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

/// How long things take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    /// Seconds that count.
    pub(crate) seconds: u32,
    /// Seconds before them.
    pub(crate) warm_up_seconds: u32,
    /// Seconds of full duplex.
    pub(crate) duplex_seconds: u32,
}

impl Times {
    /// The part of a bulk run that counts.
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

    /// About how long one run takes, start and end of the processes included.
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

/// What a scenario gave: its own figures, and the payload that the CPU time is divided by.
pub(crate) struct Outcome {
    /// 0 where there is no rate.
    pub(crate) bytes: u64,
    pub(crate) figures: Figures,
}

/// One run to be made.
pub(crate) struct Run<'a> {
    pub(crate) bench: &'a Bench<'a>,
    pub(crate) running: &'a Running,
    pub(crate) times: Times,
    pub(crate) connections: u32,
}

impl Run<'_> {
    /// Asks it.
    ///
    /// # Errors
    /// When the load fails, or not all of its connections arrive.
    pub(crate) fn ask(&self, scenario: Scenario) -> Result<Outcome> {
        match scenario {
            Scenario::BulkIperf2 | Scenario::BulkWays | Scenario::BulkProtocols => {
                self.bulk_iperf2()
            }
            Scenario::BulkUdp => self.bulk_udp(),
            Scenario::BulkIperf3 => self.bulk_iperf3(),
            Scenario::PingPong => self.ping_pong(),
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
        assert_eq!(times.window(Topology::Veth).duration_s, 3);
        assert_eq!(times.window(Topology::Wan).warm_up_s, WAN_WARM_UP_SECONDS);
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
