//! `muxbench run`: the Job of a benchmark. The Job outlives all environments, so one log contains
//! the whole matrix.
//!
//! The operator sends environments over HTTP. The runner writes the log and the results. [`board`]
//! has the state and decides which environment is next, `environment.rs` surveys an environment,
//! `group.rs` measures the cells, and `log.rs` writes the log. The runner does not use the
//! Kubernetes API, and does not measure a cell whose delay is wrong.

mod api;
pub mod board;
mod datagrams;
mod environment;
mod group;
mod log;
mod transfer;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use muxtunnel_bench_api::result::{Cell, Record, Status, Summary};
use muxtunnel_bench_api::runner::{Environment, Offer, Unavailable};
use muxtunnel_bench_api::{CellKey, EnvironmentKey, Matrix};
use muxtunnel_codes::Code;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::http_client::Client;
use crate::progress::{Pace, cell_head, readable};
use crate::token::{Admission, Token};
use board::Board;
pub use log::Log;

/// The runner of a benchmark.
pub struct Runner {
    /// The checked matrix.
    pub matrix: Matrix,
    /// Listener for the operator's requests.
    pub http: TcpListener,
    /// The check of the operator's requests.
    pub operator: Admission,
    /// The token for requests to agents.
    pub token: Token,
    /// Longest wait for an environment.
    pub environment_deadline: Duration,
    /// Longest wait for the operator to fetch the results, after the last cell.
    pub linger: Duration,
    /// File for the summary, which `kubectl describe` shows. The summary has less than 4 KiB.
    pub termination_log: Option<PathBuf>,
    /// The log.
    pub log: Log,
}

/// The state that the parts of a benchmark share.
struct Work {
    matrix: Matrix,
    board: watch::Sender<Board>,
    client: Client,
    log: Log,
    pace: Pace,
    begun: Instant,
}

impl Runner {
    /// Measures all environments. Returns the summary when the operator has fetched it, or `linger`
    /// after the last cell.
    ///
    /// # Errors
    /// If the HTTP server fails, or the log cannot be written.
    pub async fn run(self) -> anyhow::Result<Summary> {
        let address = self.http.local_addr()?;
        let (board, _) = watch::channel(Board::new(self.matrix.clone()));
        let server = axum::serve(self.http, api::routes(board.clone(), self.operator));
        let mut work = Work {
            pace: Pace::new(&self.matrix),
            matrix: self.matrix,
            client: Client::new(&self.token),
            board,
            log: self.log,
            begun: Instant::now(),
        };
        let measure = async {
            work.log
                .line(&format!("HTTP API for the operator: {address}"))?;
            work.measure_all(self.environment_deadline).await?;
            let summary = work.conclude(self.termination_log.as_deref())?;
            let mut board = work.board.subscribe();
            let fetched = board.wait_for(Board::is_finished);
            if tokio::time::timeout(self.linger, fetched).await.is_err() {
                let waited = readable(self.linger.as_secs_f64());
                work.log.line(&format!(
                    "the operator did not fetch the results within {waited}; this log contains all results"
                ))?;
            }
            Ok(summary)
        };
        tokio::select! {
            summary = measure => summary,
            broken = async { server.await } => {
                broken?;
                anyhow::bail!("the HTTP server ended")
            }
        }
    }
}

impl Work {
    async fn measure_all(&mut self, deadline: Duration) -> anyhow::Result<()> {
        let (cells, environments) = (self.matrix.cells(), self.matrix.environments());
        self.log.line(&format!(
            "muxbench {}: {} cells, {} environments, {} rounds of {} s (warm-up {} s); {}",
            env!("CARGO_PKG_VERSION"),
            cells.len(),
            environments.len(),
            self.matrix.rounds,
            self.matrix.duration_s,
            self.matrix.warm_up_s,
            self.pace.left(),
        ))?;
        for key in &environments {
            let asked = Instant::now();
            let title = format!("environment {}/{}", key.index + 1, environments.len());
            self.say(&format!(
                "{title}, one-way delay {} ms, profile {}: waiting for its pods; {}",
                key.one_way_delay_ms,
                key.profile,
                self.pace.left()
            ))?;
            let cells: Vec<_> = cells
                .iter()
                .filter(|cell| cell.environment == key.index)
                .cloned()
                .collect();
            match self.wait_for_offer(key, deadline).await {
                Offer::Ready(environment) => {
                    self.measure_environment(key, &environment, &cells, &title, asked)
                        .await?;
                }
                Offer::Unavailable(why) => {
                    self.pace.environment_ready(asked.elapsed());
                    self.give_up(key, &cells, &why)?;
                }
            }
            self.board
                .send_modify(|board| board.end_environment(key.index));
        }
        Ok(())
    }

    async fn wait_for_offer(&self, key: &EnvironmentKey, deadline: Duration) -> Offer {
        let mut board = self.board.subscribe();
        let offered =
            board.wait_for(|board| board.offer_of(key.index).is_some() || board.is_finished());
        let code = Code::BenchmarkEnvironmentFailed.to_string();
        let unavailable = |reason: String| {
            Offer::Unavailable(Unavailable {
                status: Status::Failed,
                code,
                reason,
            })
        };
        match tokio::time::timeout(deadline, offered).await {
            Ok(Ok(board)) => match board.offer_of(key.index) {
                Some(offer) => offer.clone(),
                None => unavailable("the benchmark ended before this environment".into()),
            },
            _ => unavailable(format!(
                "the operator did not set up this environment within {}; check that the operator runs",
                readable(deadline.as_secs_f64())
            )),
        }
    }

    async fn measure_environment(
        &mut self,
        key: &EnvironmentKey,
        environment: &Environment,
        cells: &[CellKey],
        title: &str,
        asked: Instant,
    ) -> anyhow::Result<()> {
        let mut surveys = environment::survey(&self.client, &self.matrix, key, environment).await;
        for survey in &mut surveys {
            if self.matrix.measures_datagrams(&survey.route) && survey.trouble.is_none() {
                self.say(&format!("{title}, {}: ping-pong, then UDP", survey.route))?;
                datagrams::measure(&self.client, &self.matrix, survey).await;
            }
        }
        self.pace.environment_ready(asked.elapsed());
        for line in environment::describe(&surveys) {
            self.say(&format!("{title}, {line}"))?;
        }
        for group in cells.chunk_by(|a, b| a.connections == b.connections) {
            group::measure(self, key, &surveys, group).await?;
        }
        Ok(())
    }

    /// Ends the cells of an environment that is not available.
    fn give_up(
        &mut self,
        key: &EnvironmentKey,
        cells: &[CellKey],
        why: &Unavailable,
    ) -> anyhow::Result<()> {
        for cell in cells {
            self.pace.skip_runs(self.matrix.rounds);
            let mut result = group::blank(&self.matrix, key, cell);
            group::mark(&mut result, why.status, &why.code, &why.reason);
            self.end_cell(key, cell, result)?;
        }
        Ok(())
    }

    /// Logs the end of a cell as text and as JSON, and keeps it for the operator.
    fn end_cell(
        &mut self,
        key: &EnvironmentKey,
        cell: &CellKey,
        result: Cell,
    ) -> anyhow::Result<()> {
        let head = cell_head(self.matrix.cells().len(), cell, key);
        let end = crate::progress::cell_end(&result);
        self.say(&format!("{head} {end}"))?;
        self.log.record(&Record::Cell(result.clone()))?;
        self.board.send_modify(|board| board.add_cell(result));
        Ok(())
    }

    /// Writes a line to the log, and to the state that the operator reads.
    fn say(&mut self, line: &str) -> anyhow::Result<()> {
        self.log.line(line)?;
        self.board.send_modify(|board| board.set_progress(line));
        Ok(())
    }

    fn conclude(&mut self, termination_log: Option<&std::path::Path>) -> anyhow::Result<Summary> {
        let cells = self.board.borrow().cells().to_vec();
        let summary = Summary::of(&cells, self.begun.elapsed().as_secs());
        self.log
            .line(&format!("\n{}\n", crate::table::render(&cells)))?;
        self.say(&format!(
            "{} of {} cells measured, {} failed, {} refused, in {}",
            summary.ok,
            summary.cells,
            summary.failed,
            summary.refused,
            readable(summary.elapsed_s as f64)
        ))?;
        let record = Record::Summary(summary.clone());
        self.log.record(&record)?;
        if let Some(path) = termination_log {
            // The log contains the summary too, so a container without this file loses nothing.
            if let Err(error) = std::fs::write(path, serde_json::to_vec(&record)?) {
                self.log.line(&format!(
                    "cannot write the summary to {}: {error}",
                    path.display()
                ))?;
            }
        }
        self.board
            .send_modify(|board| board.set_summary(summary.clone()));
        Ok(summary)
    }
}
