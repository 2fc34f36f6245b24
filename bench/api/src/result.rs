//! The results: a [`Cell`] for each cell of the matrix, and a [`Summary`] for the benchmark. As
//! JSON with a `type` ([`Record`]), both are lines after `MUXBENCH ` in the runner's log, and lines
//! of the results ConfigMap.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Path, UNTUNED};

/// The word before a [`Record`] in the log.
pub const LOG_WORD: &str = "MUXBENCH ";
/// Greatest length of a cell's reason in bytes.
pub const REASON_BYTES_MAX: usize = 512;

/// A line of the log for programs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum Record {
    /// A cell that has ended.
    Cell(Cell),
    /// The summary, which is the last line.
    Summary(Summary),
}

/// How a cell ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// The cell was measured in all rounds.
    Ok,
    /// A run failed. The reason describes the failure.
    Failed,
    /// The cell was not measured, because its delay could not be emulated.
    Refused,
}

/// Median and range of a cell's rates over the rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The median. Of an even number of values, it is the mean of the middle two.
    pub median: f64,
    /// The least value.
    pub min: f64,
    /// The greatest value.
    pub max: f64,
}

/// The figures of datagrams at a fixed rate, of one run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Udp {
    /// Requested payload, 10^6 bit/s.
    pub sent_mbit_s: f64,
    /// Payload of a datagram, bytes.
    pub datagram_bytes: u32,
    /// Received payload, 10^6 bit/s.
    pub mbit_s: f64,
    /// Number of sent datagrams.
    pub datagrams: u64,
    /// Datagrams that did not arrive, in percent of the sent datagrams.
    pub lost_percent: f64,
    /// Datagrams that arrived after a datagram that was sent later.
    pub out_of_order: u64,
}

/// Round trips of 64 bytes, one after the other on one TCP connection.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PingPong {
    /// Number of round trips in the figures.
    pub exchanges: u32,
    /// Median round trip in microseconds.
    pub p50_us: f64,
    /// 99th percentile of the round trips in microseconds.
    pub p99_us: f64,
}

/// The result of one cell, with the conditions of its measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// The path of the cell.
    pub path: Path,
    /// Mux protocol, lower case; absent on the direct path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// Requested one-way delay in milliseconds.
    pub one_way_delay_ms: u32,
    /// Measured round trip of the idle path: least of [`crate::PROBES`] probes of 64 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtt_ms: Option<f64>,
    /// Sysctl profile of the gateways (tunnel), of client and server (direct), or of both
    /// (network).
    pub profile: String,
    /// Number of parallel connections.
    pub connections: u32,
    /// Number of requested rounds.
    pub rounds: u32,
    /// Seconds of a round, warm-up included.
    pub duration_s: u32,
    /// Seconds at the start of a round whose bytes are not counted.
    pub warm_up_s: u32,
    /// Received payload, 10^6 bit/s; absent unless `status` is `ok`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mbit_s: Option<Spread>,
    /// Median divided by the direct path's median in the same environment with the same number of
    /// connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio_to_direct: Option<f64>,
    /// Median divided by the median of the untuned direct cell with the same delay and connections.
    /// Absent if that cell has no figure, or if it is measured after this cell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio_to_untuned_direct: Option<f64>,
    /// CPU seconds of both gateways for 10^9 bytes of payload, warm-up included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_s_per_gb: Option<f64>,
    /// Datagrams at a fixed rate on the path of the cell. All cells of the same path and
    /// environment have the same figures. Present on the network and on the direct path, if the
    /// network is measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub udp: Option<Udp>,
    /// Round trips on the idle path of the cell; present if `udp` is present.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ping_pong: Option<PingPong>,
    /// How the cell ended.
    pub status: Status,
    /// The `MT` code of the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Why the status is not `ok`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Version of iperf.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iperf: Option<String>,
    /// Release of the node's kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// Congestion control on the delayed path: of the carriers (tunnel, network) or of the client
    /// (direct).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub congestion_control: Option<String>,
    /// Greatest number of carriers, counted before and after each run, summed over all entry
    /// gateways (tunnel, network).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carriers: Option<u32>,
    /// Effective sysctls at the sending end of the delayed path: of an entry gateway (tunnel,
    /// network) or of the client (direct).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sysctls: BTreeMap<String, String>,
}

impl Cell {
    /// Whether this is the direct path with the kernel's defaults, which is the baseline of every
    /// cell with the same delay and connections.
    #[must_use]
    pub fn is_untuned_direct(&self) -> bool {
        self.path == Path::Direct && self.profile == UNTUNED
    }

    /// The median divided by the median of the untuned direct cell in `cells` with the same delay
    /// and connections.
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
    /// Greatest range, divided by the median, for which [`Spread::is_wide`] is false.
    pub const WIDE: f64 = 0.25;

    /// Whether the rounds differ by more than [`Spread::WIDE`] of their median, so that another run
    /// can give another result.
    #[must_use]
    pub fn is_wide(&self) -> bool {
        self.max - self.min > Self::WIDE * self.median
    }
}

/// How a benchmark ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Number of cells of the matrix.
    pub cells: usize,
    /// Number of measured cells.
    pub ok: usize,
    /// Number of failed cells.
    pub failed: usize,
    /// Number of refused cells.
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
    /// The `MT` code of the first reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_code: Option<String>,
    /// Wall-clock seconds of the whole benchmark.
    pub elapsed_s: u64,
}

/// The best or the worst tunnel cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Extreme {
    /// One-way delay of the cell in milliseconds.
    pub one_way_delay_ms: u32,
    /// Sysctl profile of the cell.
    pub profile: String,
    /// Mux protocol of the cell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// Number of connections of the cell.
    pub connections: u32,
    /// Median rate of the cell, 10^6 bit/s.
    pub mbit_s: f64,
    /// Median rate of the cell divided by the median rate of the direct path.
    pub ratio_to_direct: f64,
}

impl Summary {
    /// Counts the ended cells. `elapsed_s`: wall-clock seconds of the whole benchmark.
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
    /// The cell as the best or worst, if its path is the tunnel and it has a ratio.
    fn of(cell: &Cell) -> Option<Self> {
        if cell.path != Path::Tunnel {
            return None;
        }
        Some(Self {
            one_way_delay_ms: cell.one_way_delay_ms,
            profile: cell.profile.clone(),
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
            profile: "WAN".into(),
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
            udp: None,
            ping_pong: None,
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
            r#"{"type":"cell","path":"tunnel","protocol":"jmux","one_way_delay_ms":50,"rtt_ms":100.4,"profile":"WAN","connections":1,"rounds":3,"duration_s":5,"warm_up_s":2,"mbit_s":{"median":196.0,"min":1.0,"max":300.0},"ratio_to_direct":0.98,"ratio_to_untuned_direct":0.98,"status":"ok"}"#
        );
    }

    #[test]
    fn datagrams_and_ping_pongs_are_documented_fields_of_a_line() {
        let network = Cell {
            udp: Some(Udp {
                sent_mbit_s: 100.0,
                datagram_bytes: 1400,
                mbit_s: 99.5,
                datagrams: 26_790,
                lost_percent: 0.5,
                out_of_order: 2,
            }),
            ping_pong: Some(PingPong {
                exchanges: 1000,
                p50_us: 81.5,
                p99_us: 240.0,
            }),
            ..cell(Path::Network, None, Status::Ok)
        };
        let line = serde_json::to_string(&Record::Cell(network.clone())).unwrap();
        let fields = r#""udp":{"sent_mbit_s":100.0,"datagram_bytes":1400,"mbit_s":99.5,"datagrams":26790,"lost_percent":0.5,"out_of_order":2},"ping_pong":{"exchanges":1000,"p50_us":81.5,"p99_us":240.0},"status":"ok""#;
        assert!(line.contains(fields), "{line}");
        assert_eq!(
            serde_json::from_str::<Record>(&line).unwrap(),
            Record::Cell(network)
        );
    }

    #[test]
    fn the_baseline_is_the_untuned_direct_cell_of_the_same_delay_and_connections() {
        let untuned = |path, one_way_delay_ms, connections, ratio| Cell {
            profile: UNTUNED.into(),
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
