//! The result model: one [`Cell`] a cell of the matrix, one [`Summary`] a benchmark. As JSON with a
//! `type` ([`Record`]) they are the lines that follow `MUXBENCH ` in the runner's log, and the lines
//! of the results ConfigMap.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Path, UNTUNED};

/// What precedes a [`Record`] in the log.
pub const LOG_WORD: &str = "MUXBENCH ";
/// Longest reason of a cell, bytes.
pub const REASON_BYTES_MAX: usize = 512;

/// One line for machines.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum Record {
    /// A cell that has ended.
    Cell(Cell),
    /// The last line.
    Summary(Summary),
}

/// How a cell ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Measured in all rounds.
    Ok,
    /// A run failed; see the reason.
    Failed,
    /// Not measured, because its delay could not be made.
    Refused,
}

/// Median and range over the rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Median; of an even number of values the mean of the middle two.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The most.
    pub max: f64,
}

/// The result of one cell, with the conditions of its measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// The path.
    pub path: Path,
    /// Mux protocol, lower case; absent on the direct path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// Emulated one-way delay asked for.
    pub one_way_delay_ms: u32,
    /// Measured round trip of the idle path: median of [`crate::PROBES`] probes of 64 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtt_ms: Option<f64>,
    /// Sysctl profile of the gateways (tunnel), of client and server (direct), or of both (network).
    pub tuning: String,
    /// Parallel connections.
    pub connections: u32,
    /// Rounds asked for.
    pub rounds: u32,
    /// Seconds of a round, warm-up included.
    pub duration_s: u32,
    /// Seconds left out at the start of a round.
    pub warm_up_s: u32,
    /// Received payload, 10^6 bit/s; absent unless `status` is `ok`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mbit_s: Option<Spread>,
    /// Median divided by the direct path's median in the same environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio_to_direct: Option<f64>,
    /// Median divided by the median of the untuned direct cell with the same delay and connections. Absent
    /// if that cell has no figure, or ends after this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio_to_untuned_direct: Option<f64>,
    /// CPU seconds of both gateways for 10^9 bytes of payload, warm-up included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_s_per_gb: Option<f64>,
    /// How it ended.
    pub status: Status,
    /// The `MT` code of the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Why it is not `ok`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Version of iperf.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iperf: Option<String>,
    /// Release of the node's kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// Congestion control on the delayed leg: of the carriers (tunnel, network) or of the client (direct).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub congestion_control: Option<String>,
    /// Most carriers that were up before or after a run, of all entry gateways (tunnel, network).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carriers: Option<u32>,
    /// Effective sysctls at the delayed leg's ends: of the gateways (tunnel, network), of the client (direct).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sysctls: BTreeMap<String, String>,
}

impl Cell {
    /// Whether this is the direct path with the kernel's defaults, the baseline of every cell with the same
    /// delay and connections.
    #[must_use]
    pub fn is_untuned_direct(&self) -> bool {
        self.path == Path::Direct && self.tuning == UNTUNED
    }

    /// The median divided by the median of the untuned direct cell in `cells` with the same delay and
    /// connections.
    #[must_use]
    pub fn over_untuned_direct(&self, cells: &[Self]) -> Option<f64> {
        let same = |cell: &&Self| {
            cell.is_untuned_direct()
                && cell.one_way_delay_ms == self.one_way_delay_ms
                && cell.connections == self.connections
        };
        let baseline = cells.iter().find(same)?.mbit_s?.median;
        Some(self.mbit_s?.median / baseline)
    }
}

impl Spread {
    /// Share of the median that the range may span before [`Spread::is_wide`].
    pub const WIDE: f64 = 0.25;

    /// Whether the rounds differ by more than [`Spread::WIDE`] of their median, so that another run can give
    /// another result.
    #[must_use]
    pub fn is_wide(&self) -> bool {
        self.max - self.min > Self::WIDE * self.median
    }
}

/// How a benchmark ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Cells of the matrix.
    pub cells: usize,
    /// Cells measured.
    pub ok: usize,
    /// Cells failed.
    pub failed: usize,
    /// Cells refused.
    pub refused: usize,
    /// The tunnel cell with the lowest ratio to direct.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worst: Option<Extreme>,
    /// The tunnel cell with the highest ratio to direct.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<Extreme>,
    /// The first reason why a cell is not `ok`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_reason: Option<String>,
    /// Its `MT` code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_code: Option<String>,
    /// Wall-clock seconds of the whole benchmark.
    pub elapsed_s: u64,
}

/// A tunnel cell worth naming.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Extreme {
    /// Its one-way delay.
    pub one_way_delay_ms: u32,
    /// Its sysctl profile.
    pub tuning: String,
    /// Its mux protocol.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// Its connections.
    pub connections: u32,
    /// Its median, 10^6 bit/s.
    pub mbit_s: f64,
    /// Its median divided by the direct path's.
    pub ratio_to_direct: f64,
}

impl Summary {
    /// Adds up ended cells. `elapsed_s`: wall-clock seconds of the whole benchmark.
    #[must_use]
    pub fn of(cells: &[Cell], elapsed_s: u64) -> Self {
        let count = |status| cells.iter().filter(|cell| cell.status == status).count();
        let by_ratio = |a: &&Extreme, b: &&Extreme| a.ratio_to_direct.total_cmp(&b.ratio_to_direct);
        let tunnels: Vec<_> = cells.iter().filter_map(Extreme::of).collect();
        let bad = cells.iter().find(|cell| cell.status != Status::Ok);
        Self {
            cells: cells.len(),
            ok: count(Status::Ok),
            failed: count(Status::Failed),
            refused: count(Status::Refused),
            worst: tunnels.iter().min_by(by_ratio).cloned(),
            best: tunnels.iter().max_by(by_ratio).cloned(),
            first_reason: bad.and_then(|cell| cell.reason.clone()),
            first_code: bad.and_then(|cell| cell.code.clone()),
            elapsed_s,
        }
    }
}

impl Extreme {
    /// `cell` as a candidate: one of the tunnel, with a ratio.
    fn of(cell: &Cell) -> Option<Self> {
        if cell.path != Path::Tunnel {
            return None;
        }
        Some(Self {
            one_way_delay_ms: cell.one_way_delay_ms,
            tuning: cell.tuning.clone(),
            protocol: cell.protocol.clone(),
            connections: cell.connections,
            mbit_s: cell.mbit_s?.median,
            ratio_to_direct: cell.ratio_to_direct?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(path: Path, ratio: Option<f64>, status: Status) -> Cell {
        Cell {
            path,
            protocol: (path == Path::Tunnel).then(|| "jmux".into()),
            one_way_delay_ms: 50,
            rtt_ms: Some(100.4),
            tuning: "Wan".into(),
            connections: 1,
            rounds: 3,
            duration_s: 5,
            warm_up_s: 2,
            mbit_s: ratio.map(|r| Spread {
                median: 200.0 * r,
                min: 1.0,
                max: 300.0,
            }),
            ratio_to_direct: ratio,
            ratio_to_untuned_direct: ratio,
            cpu_s_per_gb: None,
            status,
            code: (status != Status::Ok).then(|| "MT0507".into()),
            reason: (status != Status::Ok).then(|| "iperf did not start".into()),
            iperf: None,
            kernel: None,
            congestion_control: None,
            carriers: None,
            sysctls: BTreeMap::new(),
        }
    }

    #[test]
    fn a_cell_is_the_documented_json_line() {
        let line = serde_json::to_string(&Record::Cell(cell(Path::Tunnel, Some(0.98), Status::Ok)));
        assert_eq!(
            line.unwrap(),
            r#"{"type":"cell","path":"tunnel","protocol":"jmux","one_way_delay_ms":50,"rtt_ms":100.4,"tuning":"Wan","connections":1,"rounds":3,"duration_s":5,"warm_up_s":2,"mbit_s":{"median":196.0,"min":1.0,"max":300.0},"ratio_to_direct":0.98,"ratio_to_untuned_direct":0.98,"status":"ok"}"#
        );
    }

    #[test]
    fn the_baseline_is_the_untuned_direct_cell_of_the_same_delay_and_connections() {
        let untuned = |path, one_way_delay_ms, connections, ratio| Cell {
            tuning: UNTUNED.into(),
            one_way_delay_ms,
            connections,
            ..cell(path, ratio, Status::Ok)
        };
        let cells = [
            untuned(Path::Direct, 0, 1, Some(40.0)),
            untuned(Path::Direct, 50, 10, Some(10.0)),
            untuned(Path::Tunnel, 50, 1, Some(0.5)),
            cell(Path::Direct, Some(19.0), Status::Ok),
            untuned(Path::Direct, 50, 1, Some(1.0)),
        ];
        let tuned = cell(Path::Tunnel, Some(20.0), Status::Ok);
        assert_eq!(tuned.over_untuned_direct(&cells), Some(20.0));
        assert_eq!(cells[3].over_untuned_direct(&cells), Some(19.0));
        assert_eq!(tuned.over_untuned_direct(&cells[..4]), None);
        let failed = cell(Path::Tunnel, None, Status::Failed);
        assert_eq!(failed.over_untuned_direct(&cells), None);
    }

    #[test]
    fn a_range_of_more_than_a_quarter_of_the_median_is_wide() {
        let spread = |min, max| Spread {
            median: 200.0,
            min,
            max,
        };
        assert!(!spread(180.0, 230.0).is_wide());
        assert!(spread(180.0, 230.1).is_wide());
    }

    #[test]
    fn the_summary_counts_and_names_extremes_and_the_first_reason() {
        let cells = [
            cell(Path::Direct, Some(1.0), Status::Ok),
            cell(Path::Tunnel, Some(0.98), Status::Ok),
            cell(Path::Tunnel, Some(0.5), Status::Ok),
            cell(Path::Network, Some(0.4), Status::Ok),
            cell(Path::Tunnel, None, Status::Failed),
            cell(Path::Tunnel, None, Status::Refused),
        ];
        let summary = Summary::of(&cells, 61);
        assert_eq!(
            (summary.cells, summary.ok, summary.failed, summary.refused),
            (6, 4, 1, 1)
        );
        assert_eq!(summary.worst.map(|cell| cell.ratio_to_direct), Some(0.5));
        assert_eq!(summary.best.map(|cell| cell.ratio_to_direct), Some(0.98));
        assert_eq!(summary.first_reason.as_deref(), Some("iperf did not start"));
        assert_eq!(summary.first_code.as_deref(), Some("MT0507"));
    }

    #[test]
    fn a_summary_line_fits_a_termination_message() {
        let mut bad = cell(Path::Tunnel, None, Status::Failed);
        bad.reason = Some("\"".repeat(REASON_BYTES_MAX));
        let line = serde_json::to_string(&Record::Summary(Summary::of(&[bad], 1))).unwrap();
        assert!(line.len() < 4096, "{} bytes", line.len());
    }
}
