//! Measures the cells that differ only in their route. In each round every route has one run, and
//! the order of the routes rotates from round to round. So if the machine is slow for a minute,
//! this affects all routes.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::Context;
use muxtunnel_bench_api::agent::ClientRun;
use muxtunnel_bench_api::result::{Cell, REASON_BYTES_MAX, Status};
use muxtunnel_bench_api::{CellKey, EnvironmentKey, Matrix, Route};
use muxtunnel_codes::Code;

use super::Work;
use super::environment::{Survey, carriers, gateway_statuses};
use super::transfer::{complaints, transfer};
use crate::http_client::Client;
use crate::progress::{cell_head, round_line};
use crate::statistics::{Window, rate_mbit_s, rounded, spread};
use crate::table::figure;

/// A cell while it is measured.
struct Measured<'a> {
    key: &'a CellKey,
    survey: &'a Survey,
    cell: Cell,
    rates: Vec<f64>,
    bytes: u64,
    cpu_seconds: Option<f64>,
}

/// The figures of one run.
struct Run {
    mbit_s: f64,
    bytes: u64,
    cpu_seconds: Option<f64>,
    carriers: Option<u32>,
}

/// The reports of a route's gateways.
struct Gateways {
    /// CPU time of all gateways since their start.
    cpu_seconds: f64,
    carriers: Option<u32>,
}

/// Measures a group of cells, and records the end of each cell.
pub(super) async fn measure(
    work: &mut Work,
    key: &EnvironmentKey,
    surveys: &[Survey],
    group: &[CellKey],
) -> anyhow::Result<()> {
    let total = work.matrix.cells().len();
    let mut cells: Vec<Measured<'_>> = Vec::new();
    for cell in group {
        let Some(survey) = surveys.iter().find(|survey| survey.route == cell.route) else {
            continue;
        };
        cells.push(Measured::new(&work.matrix, key, cell, survey));
        work.say(&format!(
            "{} begins; {}",
            cell_head(total, cell, key),
            work.pace.left()
        ))?;
    }
    for round in 0..work.matrix.rounds {
        let mut figures = Vec::new();
        for turn in 0..cells.len() {
            let cell = (turn + round as usize) % cells.len();
            figures.push((
                &cells[cell].key.route,
                measure_run(work, &mut cells[cell]).await,
            ));
        }
        // Sorts by the order of the cells, not by the order of the runs.
        figures.sort_by_key(|(route, _)| group.iter().position(|cell| cell.route == **route));
        let line = round_line(total, round + 1, work.matrix.rounds, &figures);
        work.say(&format!("{line}; {}", work.pace.left()))?;
    }
    let direct = cells.iter().find(|cell| cell.key.route == Route::Direct);
    let direct = direct
        .and_then(|cell| spread(&cell.rates))
        .map(|spread| spread.median);
    let keys: Vec<_> = cells.iter().map(|cell| cell.key).collect();
    let ended = cells
        .into_iter()
        .map(|cell| cell.end(work.matrix.rounds, direct));
    let mut results: Vec<Cell> = ended.collect();
    let mut known = work.board.borrow().cells().to_vec();
    known.extend_from_slice(&results);
    for (cell, result) in keys.into_iter().zip(&mut results) {
        let ratio = result.over_untuned_direct(&known);
        result.ratio_to_untuned_direct = ratio.map(|ratio| rounded(ratio, 4));
        work.end_cell(key, cell, result.clone())?;
    }
    Ok(())
}

/// Runs one cell once. Returns the figure for the log. A cell that has failed is not run again.
async fn measure_run(work: &mut Work, cell: &mut Measured<'_>) -> String {
    if cell.cell.status != Status::Ok {
        work.pace.skip_runs(1);
        return "-".into();
    }
    let begun = Instant::now();
    let run = run_once(
        &work.client,
        &work.matrix,
        cell.survey,
        cell.key.connections,
    )
    .await;
    work.pace.run_ended(begun.elapsed());
    match run {
        Ok(run) => {
            cell.rates.push(run.mbit_s);
            cell.bytes = cell.bytes.saturating_add(run.bytes);
            cell.cell.carriers = cell.cell.carriers.max(run.carriers);
            cell.cpu_seconds = match (cell.cpu_seconds, run.cpu_seconds) {
                (Some(sum), Some(more)) => Some(sum + more),
                _ => None,
            };
            figure(run.mbit_s)
        }
        Err(error) => {
            let code = Code::BenchmarkToolFailed.to_string();
            mark(&mut cell.cell, Status::Failed, &code, &format!("{error:#}"));
            "failed".into()
        }
    }
}

/// Runs iperf between two reports of the gateways. The result is computed from the received bytes.
async fn run_once(
    client: &Client,
    matrix: &Matrix,
    survey: &Survey,
    connections: u32,
) -> anyhow::Result<Run> {
    let before = gateways(client, survey).await?;
    let pair = &survey.pair;
    let request = ClientRun {
        host: pair.host.clone(),
        port: pair.iperf_port,
        connections,
        seconds: matrix.duration_s,
        udp: None,
    };
    let (sent, received) = transfer(client, pair, &request).await?;
    let after = gateways(client, survey).await?;
    let window = Window {
        warm_up_s: matrix.warm_up_s,
        duration_s: matrix.duration_s,
    };
    let mbit_s = rate_mbit_s(&received, window, connections).with_context(|| complaints(&sent))?;
    let used = |before: &Gateways, after: &Gateways| after.cpu_seconds - before.cpu_seconds;
    let cpu_seconds = before.as_ref().zip(after.as_ref());
    Ok(Run {
        mbit_s,
        bytes: received.bytes,
        cpu_seconds: cpu_seconds.map(|(before, after)| used(before, after).max(0.0)),
        carriers: after.and_then(|after| after.carriers),
    })
}

/// Reads the reports of a route's gateways. `None` on a route without gateways.
async fn gateways(client: &Client, survey: &Survey) -> anyhow::Result<Option<Gateways>> {
    if survey.gateway_status_urls.is_empty() {
        return Ok(None);
    }
    let statuses = gateway_statuses(client, &survey.gateway_status_urls).await?;
    let cpu_seconds = statuses.iter().map(|status| status.process.cpu_seconds);
    Ok(Some(Gateways {
        cpu_seconds: cpu_seconds.sum(),
        carriers: carriers(&statuses),
    }))
}

impl<'a> Measured<'a> {
    fn new(matrix: &Matrix, key: &EnvironmentKey, cell: &'a CellKey, survey: &'a Survey) -> Self {
        let mut result = blank(matrix, key, cell);
        result.rtt_ms = survey.rtt_ms;
        result.iperf.clone_from(&survey.iperf);
        result.kernel.clone_from(&survey.kernel);
        result
            .congestion_control
            .clone_from(&survey.congestion_control);
        result.carriers = survey.carriers;
        result.udp = survey.udp;
        result.ping_pong = survey.ping_pong;
        result.sysctls.clone_from(&survey.sysctls);
        if let Some(trouble) = &survey.trouble {
            mark(&mut result, trouble.status, &trouble.code, &trouble.reason);
        }
        Self {
            key: cell,
            survey,
            cell: result,
            rates: Vec::new(),
            bytes: 0,
            cpu_seconds: Some(0.0),
        }
    }

    /// Ends the cell. `direct`: median of the direct path in the same group.
    fn end(mut self, rounds: u32, direct: Option<f64>) -> Cell {
        if self.cell.status != Status::Ok {
            return self.cell;
        }
        debug_assert_eq!(self.rates.len(), rounds as usize);
        let Some(mut rate) = spread(&self.rates) else {
            return self.cell;
        };
        self.cell.ratio_to_direct = direct.map(|direct| rounded(rate.median / direct, 4));
        for value in [&mut rate.median, &mut rate.min, &mut rate.max] {
            *value = rounded(*value, 3);
        }
        self.cell.mbit_s = Some(rate);
        if !self.survey.gateway_status_urls.is_empty() && self.bytes > 0 {
            let per_gb = |seconds: f64| rounded(seconds * 1e9 / self.bytes as f64, 4);
            self.cell.cpu_s_per_gb = self.cpu_seconds.map(per_gb);
        }
        self.cell
    }
}

/// A cell without results, at its place in the matrix.
pub(super) fn blank(matrix: &Matrix, key: &EnvironmentKey, cell: &CellKey) -> Cell {
    Cell {
        path: cell.route.path(),
        protocol: cell.route.protocol(),
        one_way_delay_ms: key.one_way_delay_ms,
        rtt_ms: None,
        profile: key.profile.clone(),
        connections: cell.connections,
        rounds: matrix.rounds,
        duration_s: matrix.duration_s,
        warm_up_s: matrix.warm_up_s,
        mbit_s: None,
        ratio_to_direct: None,
        ratio_to_untuned_direct: None,
        cpu_s_per_gb: None,
        udp: None,
        ping_pong: None,
        status: Status::Ok,
        code: None,
        reason: None,
        iperf: None,
        kernel: None,
        congestion_control: None,
        carriers: None,
        sysctls: BTreeMap::new(),
    }
}

/// Ends a cell without a figure, and cuts the reason to [`REASON_BYTES_MAX`].
pub(super) fn mark(cell: &mut Cell, status: Status, code: &str, reason: &str) {
    let mut end = reason.len().min(REASON_BYTES_MAX);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    cell.status = status;
    cell.code = Some(code.to_owned());
    cell.reason = Some(reason[..end].replace('\n', " "));
}
