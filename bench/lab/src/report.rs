//! The results: a table of at most 100 columns for people, JSON lines for machines. Pure but for
//! writing the file.
//!
//! A JSON line is a cell of `muxtunnel-bench-api` with the field `system` added, or of `"type":"latency"`.

use std::{fmt::Write as _, fs, path::Path};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use muxbench::statistics::{Window, rounded, spread};
use muxtunnel_bench_api::{
    Path as BenchPath,
    result::{Cell, Record, Spread, Status},
};
use serde::Serialize;

use crate::{latency::MESSAGE_BYTES, system::System, throughput::Measured};

/// Least part of the direct rate that our gateways carry on one connection.
const RATIO_FLOOR: f64 = 0.35;

/// Most microseconds that our gateways add to the median ping-pong.
const ADDED_P50_US_CEILING: f64 = 300.0;

/// The share of the processors beyond which other programs spoil the figures.
const FOREIGN_SHARE_MAX: f64 = 0.06;

/// Under which conditions everything was measured.
#[derive(Debug, Clone)]
pub(crate) struct Conditions {
    pub(crate) congestion_control: String,
    pub(crate) iperf: String,
    pub(crate) kernel: String,
    pub(crate) cpus: usize,
    pub(crate) window: Window,
    pub(crate) rounds: u32,
}

/// One system with one number of connections.
#[derive(Debug)]
pub(crate) struct ThroughputRow {
    pub(crate) system: System,
    pub(crate) connections: u32,
    mbit_s: Vec<f64>,
    cpu_s_per_gb: Vec<f64>,
    foreign_share: Vec<f64>,
    /// Why there are no figures, or not from all rounds.
    pub(crate) reason: Option<String>,
}

/// The ping-pong of one system, in nanoseconds.
#[derive(Debug)]
pub(crate) struct LatencyRow {
    pub(crate) system: System,
    pub(crate) exchanges: u32,
    pub(crate) histogram: Result<Histogram<u64>, String>,
}

/// All results.
#[derive(Debug)]
pub(crate) struct Report {
    conditions: Conditions,
    pub(crate) throughput: Vec<ThroughputRow>,
    pub(crate) latency: Vec<LatencyRow>,
}

#[derive(Serialize)]
struct SystemLine<'a> {
    system: &'a str,
    #[serde(flatten)]
    line: Line,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Line {
    Throughput(Record),
    Latency(LatencyLine),
}

#[derive(Serialize)]
struct LatencyLine {
    r#type: &'static str,
    message_bytes: usize,
    exchanges: u32,
    congestion_control: String,
    kernel: String,
    status: Status,
    #[serde(skip_serializing_if = "Option::is_none")]
    p50_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    p99_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    added_p50_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl Conditions {
    /// One paragraph above the table.
    pub(crate) fn heading(&self) -> String {
        format!(
            "loopback in a network namespace, {}, Linux {}, {} CPUs, iperf {}\n\
             {} interleaved rounds of {} s after {} s of warm-up; receiver's figures",
            self.congestion_control,
            self.kernel,
            self.cpus,
            self.iperf,
            self.rounds,
            self.window.duration_s,
            self.window.warm_up_s
        )
    }
}

impl ThroughputRow {
    pub(crate) fn new(system: System, connections: u32) -> Self {
        Self {
            system,
            connections,
            mbit_s: Vec::new(),
            cpu_s_per_gb: Vec::new(),
            foreign_share: Vec::new(),
            reason: None,
        }
    }

    pub(crate) fn add(&mut self, measured: Measured) {
        self.mbit_s.push(measured.mbit_s);
        self.cpu_s_per_gb.extend(measured.cpu_s_per_gb);
        self.foreign_share.push(measured.foreign_share);
    }

    pub(crate) fn fail(&mut self, reason: String) {
        self.reason = Some(reason);
    }

    /// The figures of a row that was measured in every round.
    fn mbit_s(&self) -> Option<Spread> {
        self.reason
            .is_none()
            .then(|| spread(&self.mbit_s))
            .flatten()
    }

    fn cpu_s_per_gb(&self) -> Option<f64> {
        Some(spread(&self.cpu_s_per_gb)?.median)
    }
}

impl LatencyRow {
    fn microseconds(&self, quantile: f64) -> Option<f64> {
        let histogram = self.histogram.as_ref().ok()?;
        Some(histogram.value_at_quantile(quantile) as f64 / 1e3)
    }
}

impl Report {
    pub(crate) fn new(conditions: Conditions) -> Self {
        Self {
            conditions,
            throughput: Vec::new(),
            latency: Vec::new(),
        }
    }

    /// Whether everything was measured, peers that are not installed aside.
    pub(crate) fn is_complete(&self) -> bool {
        let excused = |system: System, reason: &str| system.is_peer() && reason == "not found";
        self.throughput.iter().all(|row| {
            row.reason
                .as_ref()
                .is_none_or(|reason| excused(row.system, reason))
        }) && self.latency.iter().all(|row| match &row.histogram {
            Ok(_) => true,
            Err(reason) => excused(row.system, reason),
        })
    }

    /// Rows by number of connections, so that what is compared stands together.
    pub(crate) fn table(&self) -> String {
        let mut text = String::from(
            "\nconns  system         Gbit/s median (min..max)   of direct   CPU-s/GB, both gateways\n",
        );
        let mut rows: Vec<&ThroughputRow> = self.throughput.iter().collect();
        rows.sort_by_key(|row| row.connections);
        for row in rows {
            let _ = writeln!(
                text,
                "{:>5}  {:<13}{}",
                row.connections,
                row.system.name(),
                self.figures(row)
            );
        }
        let _ = writeln!(
            text,
            "\n{MESSAGE_BYTES}-byte ping-pong   p50 us   p99 us   p50 added to direct   exchanges"
        );
        for row in &self.latency {
            let _ = writeln!(
                text,
                "{:<15}{}",
                row.system.name(),
                self.latency_figures(row)
            );
        }
        text
    }

    fn figures(&self, row: &ThroughputRow) -> String {
        let Some(mbit_s) = row.mbit_s() else {
            return format!(
                "  {}",
                short(row.reason.as_deref().unwrap_or("not measured"))
            );
        };
        let range = format!("({:.2}..{:.2})", mbit_s.min / 1e3, mbit_s.max / 1e3);
        let ratio = self
            .ratio(row)
            .map_or("-".to_owned(), |ratio| format!("{ratio:.2}"));
        let cpu = row
            .cpu_s_per_gb()
            .map_or("-".to_owned(), |cpu| format!("{cpu:.2}"));
        format!(
            "{:>9.2} {range:<17}{ratio:>12}{cpu:>11}",
            mbit_s.median / 1e3
        )
    }

    fn latency_figures(&self, row: &LatencyRow) -> String {
        let (p50, p99) = match (
            &row.histogram,
            row.microseconds(0.5),
            row.microseconds(0.99),
        ) {
            (Ok(_), Some(p50), Some(p99)) => (p50, p99),
            (Err(reason), ..) => return format!("  {}", short(reason)),
            _ => return "  not measured".to_owned(),
        };
        let added = match row.system {
            System::Direct => "-".to_owned(),
            _ => self
                .added(row)
                .map_or("-".to_owned(), |added| format!("{added:.0}")),
        };
        format!("{p50:>11.0}{p99:>9.0}{added:>22}{:>12}", row.exchanges)
    }

    /// How much other work the machine did during the runs; `None` when nothing was measured.
    pub(crate) fn foreign_work(&self) -> Option<String> {
        let shares: Vec<f64> = self
            .throughput
            .iter()
            .flat_map(|row| row.foreign_share.iter().copied())
            .collect();
        let shares = spread(&shares)?;
        let warning = if shares.median > FOREIGN_SHARE_MAX {
            ": too much to trust the ratios, repeat on a quiet machine"
        } else {
            ""
        };
        Some(format!(
            "other programs took {:.0} % of the processors (median of the runs; at most {:.0} %){warning}",
            100.0 * shares.median,
            100.0 * shares.max
        ))
    }

    /// The targets that our gateways have to meet, each with whether they did.
    pub(crate) fn verdicts(&self) -> Vec<(bool, String)> {
        let ours = System::MuxgateJmux;
        let ratio = self
            .throughput
            .iter()
            .find(|row| row.system == ours && row.connections == 1)
            .and_then(|row| self.ratio(row));
        let added = self
            .latency
            .iter()
            .find(|row| row.system == ours)
            .and_then(|row| self.added(row));
        let name = ours.name();
        let ratio = ratio.map(|ratio| {
            let text = format!(
                "{name}, 1 connection: {ratio:.2} of direct, at least {RATIO_FLOOR} wanted"
            );
            (ratio >= RATIO_FLOOR, text)
        });
        let added = added.map(|added| {
            let text = format!(
                "{name}, ping-pong: {added:.0} us added, below {ADDED_P50_US_CEILING} wanted"
            );
            (added < ADDED_P50_US_CEILING, text)
        });
        ratio.into_iter().chain(added).collect()
    }

    /// The median divided by that of the direct connection with as many connections.
    fn ratio(&self, row: &ThroughputRow) -> Option<f64> {
        let direct = self
            .throughput
            .iter()
            .find(|other| other.system == System::Direct && other.connections == row.connections)?;
        Some(row.mbit_s()?.median / direct.mbit_s()?.median)
    }

    /// Microseconds that the median exchange takes longer than on the direct connection.
    fn added(&self, row: &LatencyRow) -> Option<f64> {
        let direct = self
            .latency
            .iter()
            .find(|other| other.system == System::Direct)?;
        Some(row.microseconds(0.5)? - direct.microseconds(0.5)?)
    }

    /// Writes the JSON lines, replacing those of an earlier run.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let mut text = String::new();
        for row in &self.throughput {
            push_line(
                &mut text,
                row.system,
                Line::Throughput(Record::Cell(self.cell(row))),
            )?;
        }
        for row in &self.latency {
            push_line(&mut text, row.system, Line::Latency(self.latency_line(row)))?;
        }
        fs::write(path, text).with_context(|| format!("writing {}", path.display()))
    }

    fn cell(&self, row: &ThroughputRow) -> Cell {
        let direct = row.system == System::Direct;
        let digits = |spread: Spread| Spread {
            median: rounded(spread.median, 1),
            min: rounded(spread.min, 1),
            max: rounded(spread.max, 1),
        };
        Cell {
            path: if direct {
                BenchPath::Direct
            } else {
                BenchPath::Tunnel
            },
            protocol: (!direct).then(|| "jmux".to_owned()),
            one_way_delay_ms: 0,
            rtt_ms: None,
            tuning: "None".to_owned(),
            connections: row.connections,
            rounds: self.conditions.rounds,
            duration_s: self.conditions.window.duration_s,
            warm_up_s: self.conditions.window.warm_up_s,
            mbit_s: row.mbit_s().map(digits),
            ratio_to_direct: self.ratio(row).map(|ratio| rounded(ratio, 3)),
            cpu_s_per_gb: row.cpu_s_per_gb().map(|cpu| rounded(cpu, 3)),
            status: status(row.mbit_s().is_some()),
            code: None,
            reason: row.reason.clone(),
            iperf: Some(self.conditions.iperf.clone()),
            kernel: Some(self.conditions.kernel.clone()),
            congestion_control: Some(self.conditions.congestion_control.clone()),
            carriers: (!direct).then_some(1),
            sysctls: Default::default(),
        }
    }

    fn latency_line(&self, row: &LatencyRow) -> LatencyLine {
        let tenths = |microseconds: Option<f64>| microseconds.map(|us| rounded(us, 1));
        let added = if row.system == System::Direct {
            None
        } else {
            self.added(row)
        };
        LatencyLine {
            r#type: "latency",
            message_bytes: MESSAGE_BYTES,
            exchanges: row.exchanges,
            congestion_control: self.conditions.congestion_control.clone(),
            kernel: self.conditions.kernel.clone(),
            status: status(row.histogram.is_ok()),
            p50_us: tenths(row.microseconds(0.5)),
            p99_us: tenths(row.microseconds(0.99)),
            added_p50_us: tenths(added),
            reason: row.histogram.as_ref().err().cloned(),
        }
    }
}

fn status(measured: bool) -> Status {
    if measured { Status::Ok } else { Status::Failed }
}

fn push_line(text: &mut String, system: System, line: Line) -> Result<()> {
    let line = SystemLine {
        system: system.name(),
        line,
    };
    text.push_str(&serde_json::to_string(&line)?);
    text.push('\n');
    Ok(())
}

/// The first line of a reason, cut to what fits beside the row's name.
fn short(reason: &str) -> String {
    reason
        .lines()
        .next()
        .unwrap_or_default()
        .chars()
        .take(75)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency::histogram;

    fn report() -> Report {
        let mut report = Report::new(Conditions {
            congestion_control: "cubic".to_owned(),
            iperf: "2.1.8".to_owned(),
            kernel: "6.18.0".to_owned(),
            cpus: 2,
            window: Window {
                warm_up_s: 1,
                duration_s: 3,
            },
            rounds: 3,
        });
        for (system, scale) in [(System::Direct, 1.0), (System::MuxgateJmux, 0.5)] {
            let mut row = ThroughputRow::new(system, 1);
            for mbit_s in [20_000.0, 18_000.0, 25_000.0] {
                let foreign_share = mbit_s / 1e6;
                let cpu_s_per_gb = (system != System::Direct).then_some(0.876);
                row.add(Measured {
                    mbit_s: mbit_s * scale,
                    cpu_s_per_gb,
                    foreign_share,
                });
            }
            report.throughput.push(row);
            let mut times = histogram().unwrap();
            times.record_n((100_000.0 / scale) as u64, 10).unwrap();
            report.latency.push(LatencyRow {
                system,
                exchanges: 10,
                histogram: Ok(times),
            });
        }
        let mut missing = ThroughputRow::new(System::Jetsocat, 1);
        missing.fail("not found".to_owned());
        report.throughput.push(missing);
        let histogram = Err("not found".to_owned());
        report.latency.push(LatencyRow {
            system: System::Jetsocat,
            exchanges: 10,
            histogram,
        });
        report
    }

    #[test]
    fn the_table_sets_every_system_against_direct_within_100_columns() {
        let table = report().table();
        assert_eq!(
            table,
            "\n\
             conns  system         Gbit/s median (min..max)   of direct   CPU-s/GB, both gateways\n\
             \x20   1  direct           20.00 (18.00..25.00)           1.00          -\n\
             \x20   1  muxgate-jmux     10.00 (9.00..12.50)            0.50       0.88\n\
             \x20   1  jetsocat       not found\n\
             \n\
             64-byte ping-pong   p50 us   p99 us   p50 added to direct   exchanges\n\
             direct                 100      100                     -          10\n\
             muxgate-jmux           200      200                   100          10\n\
             jetsocat         not found\n"
        );
        assert!(table.lines().all(|line| line.len() <= 100));
    }

    #[test]
    fn other_work_on_the_machine_is_named_and_warned_of() {
        assert_eq!(
            report().foreign_work().unwrap(),
            "other programs took 2 % of the processors (median of the runs; at most 2 %)"
        );
        let mut busy = report();
        busy.throughput[1].foreign_share = vec![0.5; 9];
        assert!(
            busy.foreign_work()
                .unwrap()
                .ends_with("repeat on a quiet machine")
        );
    }

    #[test]
    fn our_gateways_are_judged_by_their_targets() {
        let verdicts = report().verdicts();
        assert_eq!(
            verdicts,
            [
                (
                    true,
                    "muxgate-jmux, 1 connection: 0.50 of direct, at least 0.35 wanted".to_owned()
                ),
                (
                    true,
                    "muxgate-jmux, ping-pong: 100 us added, below 300 wanted".to_owned()
                ),
            ]
        );
    }

    #[test]
    fn every_row_is_a_json_line_with_its_system() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results.jsonl");
        report().write(&path).unwrap();
        let lines: Vec<serde_json::Value> = fs::read_to_string(path)
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(lines.len(), 6);
        let ours = &lines[1];
        assert_eq!(
            (&ours["type"], &ours["system"]),
            (&"cell".into(), &"muxgate-jmux".into())
        );
        assert_eq!(ours["mbit_s"]["median"], 10_000.0);
        assert_eq!(ours["ratio_to_direct"], 0.5);
        assert_eq!(lines[2]["reason"], "not found");
        assert_eq!(
            (&lines[4]["type"], &lines[4]["status"]),
            (&"latency".into(), &"ok".into())
        );
        assert!(
            lines[4]["added_p50_us"]
                .as_f64()
                .is_some_and(|us| (us - 100.0).abs() < 1.0)
        );
    }

    #[test]
    fn a_peer_that_is_not_installed_leaves_the_report_complete_and_a_failure_does_not() {
        let mut report = report();
        assert!(report.is_complete());
        report.throughput[2].fail("the iperf client failed".to_owned());
        assert!(!report.is_complete());
        let mut report = self::report();
        report.throughput[1].fail("not found".to_owned());
        assert!(!report.is_complete());
    }
}
