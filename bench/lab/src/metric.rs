//! What is measured: the figures of one run of a scenario, by name and unit.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A figure; its name in JSON has the unit last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Metric {
    /// Payload that the receiver got, 10^6 bit/s.
    MbitS,
    /// Median time of an exchange, microseconds.
    P50Us,
    /// The time that 99 of 100 exchanges stay below, microseconds.
    P99Us,
    /// What bulk beside the exchanges keeps of its rate alone, per cent.
    BulkPercent,
    /// Connections opened, used and closed a second.
    OpensS,
    /// What the readers get beside a stalled one, of what they get without it, per cent.
    OthersPercent,
    /// Jain's index of fairness.
    Jain,
    /// Both directions together, of one alone, per cent.
    DuplexPercent,
    /// Seconds without progress in one of the directions.
    StalledSeconds,
    /// Streams that were open at once.
    Streams,
    /// Streams that ended early, or never.
    LostStreams,
    /// Bytes that were not the ones that were sent.
    WrongBytes,
    /// Longest time after a cut in which one of the streams received nothing, milliseconds.
    StallMs,
    /// The same, less the time until all carriers were there again.
    BeyondReconnectMs,
    /// Longest time from a cut until all carriers were there again, milliseconds.
    ReconnectMs,
    /// Longest time from a cut until every stream had received something after it, milliseconds.
    RecoveredMs,
    /// Time until the last stream was complete, milliseconds.
    CompleteMs,
    /// Segments or datagrams of 100,000 that arrived after one that was sent later.
    #[serde(rename = "out_of_order_per_100000")]
    OutOfOrder,
    /// Datagrams that did not arrive, per cent.
    LostPercent,
    /// Datagrams that arrived and found no room in the socket of their receiver, per cent.
    NoRoomPercent,
    /// CPU seconds of both gateways for 10^9 bytes of payload.
    CpuSPerGb,
    /// Most memory of the entry at once, MiB.
    EntryRssMib,
    /// Most memory of the exit at once, MiB.
    ExitRssMib,
}

impl Metric {
    /// What people read; rates are shown in 10^9 bit/s.
    pub(crate) fn unit(self) -> &'static str {
        match self {
            Self::MbitS => "Gbit/s",
            Self::P50Us => "p50 us",
            Self::P99Us => "p99 us",
            Self::BulkPercent => "bulk %",
            Self::OpensS => "opens/s",
            Self::OthersPercent => "others %",
            Self::Jain => "Jain",
            Self::DuplexPercent => "of one way %",
            Self::StalledSeconds => "stalled s",
            Self::Streams => "streams",
            Self::LostStreams => "lost",
            Self::WrongBytes => "wrong bytes",
            Self::StallMs => "stall ms",
            Self::BeyondReconnectMs => "stall ms beyond the reconnect",
            Self::ReconnectMs => "reconnect ms",
            Self::RecoveredMs => "recovered ms",
            Self::CompleteMs => "complete ms",
            Self::OutOfOrder => "ooo/100,000",
            Self::LostPercent => "lost %",
            Self::NoRoomPercent => "no room %",
            Self::CpuSPerGb => "CPU-s/GB",
            Self::EntryRssMib => "entry MiB",
            Self::ExitRssMib => "exit MiB",
        }
    }

    /// Whether less is better.
    pub(crate) fn is_cost(self) -> bool {
        match self {
            Self::MbitS
            | Self::BulkPercent
            | Self::OpensS
            | Self::OthersPercent
            | Self::Jain
            | Self::DuplexPercent
            | Self::Streams => false,
            Self::P50Us
            | Self::P99Us
            | Self::StalledSeconds
            | Self::LostStreams
            | Self::WrongBytes
            | Self::StallMs
            | Self::BeyondReconnectMs
            | Self::ReconnectMs
            | Self::RecoveredMs
            | Self::CompleteMs
            | Self::OutOfOrder
            | Self::LostPercent
            | Self::NoRoomPercent
            | Self::CpuSPerGb
            | Self::EntryRssMib
            | Self::ExitRssMib => true,
        }
    }
}

/// The figures of one run.
pub(crate) type Figures = BTreeMap<Metric, f64>;
