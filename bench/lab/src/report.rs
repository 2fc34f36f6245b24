//! The results: rows of figures. This module finds and compares rows, [`table`] and [`json`] print
//! them, and [`crate::verdict`] judges them. Pure.

pub(crate) mod json;
pub(crate) mod table;

use muxbench::statistics::spread;
use muxtunnel_bench_api::result::Spread;

use crate::{
    bench::{Basis, Measured},
    metric::{Figures, Metric},
    process::NOT_FOUND,
    scenario::{Scenario, Times},
    system::System,
    topology::Topology,
};

/// Greatest share of the processors that other programs may use. With a greater share, the figures
/// are not reliable.
const FOREIGN_SHARE_MAX: f64 = 0.06;

/// The key of a row.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Key {
    pub(crate) topology: Topology,
    pub(crate) congestion_control: String,
    pub(crate) scenario: Scenario,
    pub(crate) connections: u32,
    pub(crate) system: System,
}

/// One system in one cell.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) key: Key,
    figures: Vec<Figures>,
    foreign_share: Vec<f64>,
    basis: Basis,
    /// Why figures are missing, in all rounds or in some rounds.
    pub(crate) reason: Option<String>,
}

/// The conditions of all measurements.
#[derive(Debug, Clone)]
pub(crate) struct Conditions {
    pub(crate) iperf2: String,
    pub(crate) kernel: String,
    pub(crate) cpus: usize,
    pub(crate) times: Times,
    pub(crate) rounds: u32,
}

/// All results, in the order of their measurement.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) conditions: Conditions,
    pub(crate) rows: Vec<Row>,
}

impl Row {
    pub(crate) fn new(key: Key) -> Self {
        Self {
            key,
            figures: Vec::new(),
            foreign_share: Vec::new(),
            basis: Basis::default(),
            reason: None,
        }
    }

    pub(crate) fn add(&mut self, measured: Measured) {
        self.figures.push(measured.figures);
        self.foreign_share.push(measured.foreign_share);
        self.basis = measured.basis;
    }

    /// Median and range of a figure; `None` unless the row was measured in every round.
    pub(crate) fn spread(&self, metric: Metric) -> Option<Spread> {
        if self.reason.is_some() {
            return None;
        }
        let values: Vec<f64> = self
            .figures
            .iter()
            .filter_map(|figures| figures.get(&metric).copied())
            .collect();
        spread(&values)
    }

    /// The median of a figure.
    pub(crate) fn median(&self, metric: Metric) -> Option<f64> {
        Some(self.spread(metric)?.median)
    }

    /// The round-trip time of the idle direct path in milliseconds.
    pub(crate) fn rtt_ms(&self) -> f64 {
        self.basis.rtt_ms
    }

    /// The number of rounds with figures.
    fn rounds(&self) -> usize {
        self.figures.len()
    }

    /// The metrics of the row's figures.
    fn metrics(&self) -> Vec<Metric> {
        let first = self.figures.first();
        first.map_or_else(Vec::new, |figures| figures.keys().copied().collect())
    }
}

impl Conditions {
    /// The paragraph above the tables.
    pub(crate) fn heading(&self) -> String {
        format!(
            "Linux {}, {} CPUs, iperf {}\n\
             {} interleaved rounds of {} s after {} s of warm-up; receivers' figures",
            self.kernel,
            self.cpus,
            self.iperf2,
            self.rounds,
            self.times.seconds,
            self.times.warm_up_seconds
        )
    }
}

impl Report {
    /// The row of `key`. If the row is missing, the function creates it.
    pub(crate) fn row_mut(&mut self, key: Key) -> &mut Row {
        let index = self.rows.iter().position(|row| row.key == key);
        let index = index.unwrap_or_else(|| {
            self.rows.push(Row::new(key));
            self.rows.len() - 1
        });
        &mut self.rows[index]
    }

    /// The row of `system` in the cell of `row`.
    pub(crate) fn beside(&self, row: &Row, system: System) -> Option<&Row> {
        let key = Key {
            system,
            ..row.key.clone()
        };
        self.rows.iter().find(|other| other.key == key)
    }

    /// The figure of a row divided by the figure of another system in the same cell and round: the
    /// median over the rounds.
    pub(crate) fn ratio(&self, row: &Row, metric: Metric, to: System) -> Option<f64> {
        self.paired(row, metric, to, |own, other| own / other)
    }

    /// The figure of a row minus the figure of another system in the same cell and round: the median
    /// over the rounds.
    pub(crate) fn added(&self, row: &Row, metric: Metric, to: System) -> Option<f64> {
        self.paired(row, metric, to, |own, other| own - other)
    }

    fn paired(
        &self,
        row: &Row,
        metric: Metric,
        to: System,
        of: impl Fn(f64, f64) -> f64,
    ) -> Option<f64> {
        let other = self.beside(row, to)?;
        let rounds = row.figures.iter().zip(&other.figures);
        let rounds = rounds.filter(|_| row.reason.is_none() && other.reason.is_none());
        let each: Vec<f64> = rounds
            .filter_map(|(own, other)| Some(of(*own.get(&metric)?, *other.get(&metric)?)))
            .collect();
        Some(spread(&each)?.median)
    }

    /// Whether all rows have figures. Rows of peers that are not installed do not count.
    pub(crate) fn is_complete(&self) -> bool {
        self.rows.iter().all(|row| {
            let excused = |reason: &String| row.key.system.is_peer() && reason == NOT_FOUND;
            row.reason.as_ref().is_none_or(excused)
        })
    }

    /// A line about the load by other programs during the runs. `None` without measurements.
    pub(crate) fn foreign_work(&self) -> Option<String> {
        let shares = self.rows.iter().flat_map(|row| row.foreign_share.iter());
        foreign_work(&shares.copied().collect::<Vec<f64>>())
    }
}

/// A line about the load by other programs. `shares`: their share of the processors in each run, 0
/// to 1. `None` without runs.
pub(crate) fn foreign_work(shares: &[f64]) -> Option<String> {
    let shares = spread(shares)?;
    let warning = if shares.median > FOREIGN_SHARE_MAX {
        ": too much for reliable ratios, repeat on a quiet machine"
    } else {
        ""
    };
    Some(format!(
        "other programs used {:.0} % of the processors (median of the runs; at most {:.0} %){warning}",
        100.0 * shares.median,
        100.0 * shares.max
    ))
}

#[cfg(test)]
pub(crate) mod tests;
