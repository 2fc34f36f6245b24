//! The tables: one for each topology, congestion control and scenario. A table is at most 100
//! columns wide.

use std::fmt::Write as _;

use super::{Report, Row};
use crate::{metric::Metric, scenario::Scenario, system::System};

/// A column of a table.
#[derive(Debug, Clone, Copy)]
enum Column {
    /// Median, minimum and maximum of a figure.
    Range(Metric),
    /// Median of a figure.
    Median(Metric),
    /// Maximum of a figure.
    Most(Metric),
    /// The median divided by the median of the direct connection.
    OfDirect(Metric),
    /// The median divided by the median of muxgate without encryption and without splicing.
    OfCopy(Metric),
    /// The median minus the median of the direct connection.
    Added(Metric),
}

/// Width of a column with a range. Other columns are narrower.
const RANGE_WIDTH: usize = 26;
const WIDTH: usize = 13;
/// Least width of the column with the systems' names. Longer names make the column wider.
const NAME_WIDTH_MIN: usize = 14;
/// Greatest length of a reason in characters. The row's connections and system take the other
/// columns.
const REASON_CHARACTERS: usize = 67;

/// All tables, in the order of the rows.
pub(crate) fn tables(report: &Report) -> String {
    let mut text = String::new();
    let mut done: Vec<(usize, usize)> = Vec::new();
    let heads = |row: &Row| {
        let key = &row.key;
        (key.topology, key.congestion_control.clone(), key.scenario)
    };
    for (index, first) in report.rows.iter().enumerate() {
        let known = |other: &(usize, usize)| heads(&report.rows[other.0]) == heads(first);
        if done.iter().any(known) {
            continue;
        }
        let mut rows: Vec<&Row> = report
            .rows
            .iter()
            .filter(|row| heads(row) == heads(first))
            .collect();
        rows.sort_by_key(|row| (row.key.connections, row.key.system));
        done.push((index, rows.len()));
        let (scenario, name) = (first.key.scenario, first.key.scenario.name());
        push_table(&mut text, report, &rows, (name, columns(scenario)));
        rows.retain(|row| row.median(Metric::EntrySplicedPercent).is_some());
        push_table(&mut text, report, &rows, ("splicing", SPLICING));
    }
    text
}

/// The columns of the table for rows with splicing gateways.
const SPLICING: &[Column] = &[
    Column::Median(Metric::EntrySplicedPercent),
    Column::Median(Metric::ExitSplicedPercent),
    Column::Median(Metric::ExitFellBackPercent),
    Column::Median(Metric::PipesLackingPerGb),
];

/// Appends a table with a title; nothing without rows.
fn push_table(
    text: &mut String,
    report: &Report,
    rows: &[&Row],
    (title, columns): (&str, &[Column]),
) {
    let Some(key) = rows.first().map(|row| &row.key) else {
        return;
    };
    let _ = writeln!(
        text,
        "\n{title}, {}, {}",
        key.topology.name(),
        key.congestion_control
    );
    let names = rows.iter().map(|row| row.key.system.name().len());
    let name_width = names.max().unwrap_or_default().max(NAME_WIDTH_MIN);
    let mut line = format!("{:>6}  {:<name_width$}", "conns", "system");
    for column in columns {
        let _ = write!(line, "{:>width$}", column.heading(), width = column.width());
    }
    text.push_str(line.trim_end());
    text.push('\n');
    for row in rows {
        let (connections, name) = (row.key.connections, row.key.system.name());
        let mut line = format!("{connections:>6}  {name:<name_width$}");
        match &row.reason {
            Some(reason) => line.push_str(&format!("  {}", short(reason))),
            None => {
                for column in columns {
                    let _ = write!(
                        line,
                        "{:>width$}",
                        column.cell(report, row),
                        width = column.width()
                    );
                }
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
}

fn columns(scenario: Scenario) -> &'static [Column] {
    use Column::{Added, Median, Most, OfCopy, OfDirect, Range};
    match scenario {
        Scenario::BulkWays | Scenario::BulkProtocols => &[
            Range(Metric::MbitS),
            OfCopy(Metric::MbitS),
            Median(Metric::CpuSPerGb),
        ],
        Scenario::BulkIperf2
        | Scenario::BulkUdp
        | Scenario::BulkIperf3
        | Scenario::PathChange
        | Scenario::CrossTraffic => &[
            Range(Metric::MbitS),
            OfDirect(Metric::MbitS),
            Median(Metric::CpuSPerGb),
            Median(Metric::EntryRssMib),
            Median(Metric::ExitRssMib),
        ],
        Scenario::PingPong => &[
            Range(Metric::P50Us),
            Added(Metric::P50Us),
            Median(Metric::P99Us),
            Median(Metric::BulkPercent),
            Median(Metric::CpuSPerGb),
        ],
        Scenario::Keystrokes => &[
            Range(Metric::P99Us),
            Median(Metric::P50Us),
            Median(Metric::BulkPercent),
            Median(Metric::EntryQueuedPercent),
            Median(Metric::ExitQueuedPercent),
        ],
        Scenario::BulkPackets => &[
            Range(Metric::MbitS),
            OfDirect(Metric::MbitS),
            Median(Metric::OutOfOrder),
            Median(Metric::CpuSPerGb),
        ],
        Scenario::PingPackets => &[
            Range(Metric::P99Us),
            Median(Metric::P50Us),
            Median(Metric::MbitS),
            Median(Metric::BulkPercent),
            Median(Metric::CpuSPerGb),
        ],
        Scenario::UdpPackets => &[
            Range(Metric::LostPercent),
            Median(Metric::NoRoomPercent),
            Median(Metric::OutOfOrder),
            Median(Metric::MbitS),
        ],
        Scenario::Opens => &[
            Range(Metric::OpensS),
            OfDirect(Metric::OpensS),
            Median(Metric::EntryRssMib),
            Median(Metric::ExitRssMib),
        ],
        Scenario::StalledReader => &[
            Range(Metric::OthersPercent),
            Median(Metric::MbitS),
            Median(Metric::CpuSPerGb),
            Median(Metric::EntryRssMib),
        ],
        Scenario::Fairness => &[
            Range(Metric::Jain),
            Median(Metric::MbitS),
            Median(Metric::CpuSPerGb),
            Median(Metric::EntryRssMib),
        ],
        Scenario::FullDuplex => &[
            Range(Metric::DuplexPercent),
            Median(Metric::MbitS),
            Median(Metric::StalledSeconds),
            Median(Metric::CpuSPerGb),
        ],
        Scenario::IdleStreams | Scenario::StalledStreams => {
            &[Range(Metric::EntryRssMib), Range(Metric::ExitRssMib)]
        }
        Scenario::CarrierCuts | Scenario::CarrierCutsSmall => &[
            Most(Metric::StallMs),
            Most(Metric::RecoveredMs),
            Most(Metric::LostStreams),
            Most(Metric::WrongBytes),
            Most(Metric::EntryRssMib),
            Most(Metric::ExitRssMib),
        ],
        Scenario::FixedStreams => &[
            Range(Metric::CompleteMs),
            Most(Metric::LostStreams),
            Most(Metric::WrongBytes),
            Median(Metric::MbitS),
        ],
    }
}

/// The systems with which the table of a scenario compares its rows.
#[cfg(test)]
pub(crate) fn controls(scenario: Scenario) -> Vec<System> {
    let columns = columns(scenario).iter();
    columns.filter_map(|column| column.control()).collect()
}

impl Column {
    /// The system with which this column compares a row.
    #[cfg(test)]
    fn control(self) -> Option<System> {
        match self {
            Self::OfDirect(_) | Self::Added(_) => Some(System::Direct),
            Self::OfCopy(_) => Some(System::MuxgateCopy),
            Self::Range(_) | Self::Median(_) | Self::Most(_) => None,
        }
    }

    fn width(self) -> usize {
        match self {
            Self::Range(_) => RANGE_WIDTH,
            _ => WIDTH,
        }
    }

    fn heading(self) -> String {
        match self {
            Self::Range(metric) => format!("{} (min..max)", metric.unit()),
            Self::Median(metric) | Self::Most(metric) => metric.unit().to_owned(),
            Self::OfDirect(_) => "of direct".to_owned(),
            Self::OfCopy(_) => "of copy".to_owned(),
            Self::Added(_) => "us added".to_owned(),
        }
    }

    /// The text of a cell; `-` if the row has no figure.
    fn cell(self, report: &Report, row: &Row) -> String {
        let is_direct = row.key.system == System::Direct;
        let text = match self {
            Self::Range(metric) => row.spread(metric).map(|spread| {
                let [median, min, max] =
                    [spread.median, spread.min, spread.max].map(|value| shown(metric, value));
                format!("{median} ({min}..{max})")
            }),
            Self::Median(metric) => row.median(metric).map(|value| shown(metric, value)),
            Self::Most(metric) => row.spread(metric).map(|spread| shown(metric, spread.max)),
            Self::OfDirect(metric) => part(report.ratio(row, metric, System::Direct)),
            Self::OfCopy(metric) => part(report.ratio(row, metric, System::MuxgateCopy)),
            Self::Added(_) if is_direct => None,
            Self::Added(metric) => report
                .added(row, metric, System::Direct)
                .map(|added| shown(metric, added)),
        };
        text.unwrap_or_else(|| "-".to_owned())
    }
}

fn part(ratio: Option<f64>) -> Option<String> {
    ratio.map(|ratio| format!("{ratio:.2}"))
}

/// Formats a figure with its significant digits.
fn shown(metric: Metric, value: f64) -> String {
    match metric {
        Metric::MbitS if value < 1e3 => format!("{:.3}", value / 1e3),
        Metric::MbitS => format!("{:.2}", value / 1e3),
        Metric::CpuSPerGb => format!("{value:.2}"),
        Metric::Jain | Metric::LostPercent | Metric::NoRoomPercent => format!("{value:.3}"),
        Metric::OutOfOrder => format!("{value:.2}"),
        Metric::EntryRssMib | Metric::ExitRssMib => format!("{value:.1}"),
        Metric::EntrySplicedPercent | Metric::ExitSplicedPercent => format!("{value:.1}"),
        Metric::ExitFellBackPercent | Metric::PipesLackingPerGb => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// The first line of a reason, cut to the width that is left in the row.
fn short(reason: &str) -> String {
    let first = reason.lines().next().unwrap_or_default();
    first.chars().take(REASON_CHARACTERS).collect()
}
