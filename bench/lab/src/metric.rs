//! The figures of a run of a scenario, by name and unit.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A figure. Its name in JSON ends with the unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Metric {
    /// Received payload, 10^6 bit/s.
    MbitS,
    /// Median time of an exchange, microseconds.
    P50Us,
    /// 99th percentile of the time of an exchange, microseconds.
    P99Us,
    /// Rate of bulk during the exchanges, in per cent of the rate of bulk alone.
    BulkPercent,
    /// Connections opened, used and closed per second.
    OpensS,
    /// Rate of readers next to a stalled reader, in per cent of their rate without a stalled
    /// reader.
    OthersPercent,
    /// Jain's index of fairness.
    Jain,
    /// Rate of both directions together, in per cent of the rate of one direction alone.
    DuplexPercent,
    /// Seconds in which at least one direction made no progress.
    StalledSeconds,
    /// Number of streams that were open at once.
    Streams,
    /// Number of streams that ended early, or did not end.
    LostStreams,
    /// Number of received bytes that differed from the sent bytes.
    WrongBytes,
    /// Longest time after a cut in which a stream received nothing, milliseconds.
    StallMs,
    /// Longest stall after a cut minus the time from the cut until all carriers were up again,
    /// milliseconds.
    BeyondReconnectMs,
    /// Longest time from a cut until all carriers were up again, milliseconds.
    ReconnectMs,
    /// Longest time from a cut until every stream had received bytes again, milliseconds.
    RecoveredMs,
    /// Time until the last stream was complete, milliseconds.
    CompleteMs,
    /// Segments or datagrams that arrived after one that was sent later, per 100,000.
    #[serde(rename = "out_of_order_per_100000")]
    OutOfOrder,
    /// Datagrams that did not arrive, per cent.
    LostPercent,
    /// Datagrams that arrived while the receiver's socket was full, per cent.
    NoRoomPercent,
    /// CPU seconds of both gateways for 10^9 bytes of payload.
    CpuSPerGb,
    /// Time in which threads of the entry were ready and waited for a processor, in per cent of the
    /// run. This part of a latency comes from the scheduler.
    EntryQueuedPercent,
    /// Like [`Self::EntryQueuedPercent`], for the exit.
    ExitQueuedPercent,
    /// Payload that the entry moved from clients to carriers without a copy, in per cent of the
    /// received payload.
    EntrySplicedPercent,
    /// Payload that the exit moved from carriers to targets without a copy, in per cent of the
    /// received payload.
    ExitSplicedPercent,
    /// Payload that the exit copied although the amount was enough for a splice, in per cent of the
    /// received payload.
    ExitFellBackPercent,
    /// Number of times that a gateway copied because a stream got no pipe, for 10^9 bytes of
    /// payload.
    PipesLackingPerGb,
    /// Peak memory of the entry, MiB.
    EntryRssMib,
    /// Peak memory of the exit, MiB.
    ExitRssMib,
}

impl Metric {
    /// The unit in tables. Tables show rates in 10^9 bit/s instead of 10^6 bit/s.
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
            Self::EntryQueuedPercent => "entry wait %",
            Self::ExitQueuedPercent => "exit wait %",
            Self::EntrySplicedPercent => "in spliced %",
            Self::ExitSplicedPercent => "out spliced %",
            Self::ExitFellBackPercent => "fell back %",
            Self::PipesLackingPerGb => "no pipe/GB",
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
            | Self::EntrySplicedPercent
            | Self::ExitSplicedPercent
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
            | Self::EntryQueuedPercent
            | Self::ExitQueuedPercent
            | Self::ExitFellBackPercent
            | Self::PipesLackingPerGb
            | Self::EntryRssMib
            | Self::ExitRssMib => true,
        }
    }
}

/// The figures of one run.
pub(crate) type Figures = BTreeMap<Metric, f64>;
