//! The JSON lines: one for each row. The fields of figures have the names of [`Metric`].

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context, Result};
use muxbench::statistics::rounded;
use muxtunnel_bench_api::{
    Path as BenchPath,
    result::{Spread, Status},
};
use serde::Serialize;

use super::{Report, Row};
use crate::{metric::Metric, system::System};

/// Decimal places: enough for the smallest figure, CPU seconds per gigabyte.
const DIGITS: u32 = 4;

#[derive(Serialize)]
struct Line<'a> {
    r#type: &'static str,
    system: String,
    scenario: &'static str,
    topology: &'static str,
    congestion_control: &'a str,
    connections: u32,
    path: BenchPath,
    #[serde(skip_serializing_if = "Option::is_none")]
    protocol: Option<&'static str>,
    one_way_delay_ms: u32,
    loss_percent: u32,
    tuning: &'static str,
    rtt_ms: f64,
    sysctls: &'a BTreeMap<String, String>,
    rounds: usize,
    duration_s: u32,
    warm_up_s: u32,
    status: Status,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    /// The main figure of the scenario divided by the figure of the direct connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio_to_direct: Option<f64>,
    #[serde(flatten)]
    figures: BTreeMap<Metric, Spread>,
    kernel: &'a str,
    iperf: &'a str,
}

/// Writes the lines, which replace the lines of an earlier run.
pub(crate) fn write(report: &Report, path: &Path) -> Result<()> {
    let mut text = String::new();
    for row in &report.rows {
        text.push_str(&serde_json::to_string(&line(report, row))?);
        text.push('\n');
    }
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn line<'a>(report: &'a Report, row: &'a Row) -> Line<'a> {
    let (key, conditions) = (&row.key, &report.conditions);
    let window = conditions.times.window(key.topology);
    let figures = row.metrics().into_iter().filter_map(|metric| {
        let spread = row.spread(metric)?;
        let digits = |value| rounded(value, DIGITS);
        let spread = Spread {
            median: digits(spread.median),
            min: digits(spread.min),
            max: digits(spread.max),
        };
        Some((metric, spread))
    });
    let figures: BTreeMap<Metric, Spread> = figures.collect();
    let ratio = report.ratio(row, key.scenario.metric(), System::Direct);
    Line {
        r#type: "cell",
        system: key.system.name(),
        scenario: key.scenario.name(),
        topology: key.topology.name(),
        congestion_control: &key.congestion_control,
        connections: key.connections,
        path: match key.system {
            System::Direct => BenchPath::Direct,
            _ => BenchPath::Tunnel,
        },
        protocol: key.system.protocol(),
        one_way_delay_ms: key.topology.one_way_delay_ms(),
        loss_percent: key.topology.loss_percent(),
        tuning: key.topology.tuning(),
        rtt_ms: rounded(row.basis.rtt_ms, DIGITS),
        sysctls: &row.basis.sysctls,
        rounds: row.rounds(),
        duration_s: window.duration_s,
        warm_up_s: window.warm_up_s,
        status: match figures.is_empty() {
            true => Status::Failed,
            false => Status::Ok,
        },
        reason: row.reason.as_deref(),
        ratio_to_direct: ratio.map(|ratio| rounded(ratio, DIGITS)),
        figures,
        kernel: &conditions.kernel,
        iperf: &conditions.iperf2,
    }
}
