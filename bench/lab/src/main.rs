//! `muxlab`: the data plane measured alone, in a network namespace of its own, beside the peers that
//! are found on this machine. `make bench` runs it.
//!
//! Owns the order of the run: the systems are started afresh for each round and measured in turn within it,
//! so that a slow minute of the machine hits all of them alike. In come flags; out come a table for
//! people and JSON lines for machines ([`report`]). A system that is not installed or fails has a row
//! that says so; the others are measured. Read [`system`] for what is compared, `docs/performance.md`
//! for how to read the figures.

mod cpu;
mod latency;
mod namespace;
mod report;
mod system;
mod throughput;

use std::{fs, net::TcpListener, path::PathBuf, process::ExitCode, time::Instant};

use anyhow::{Context, Result};
use clap::Parser;
use hdrhistogram::Histogram;
use muxbench::statistics::Window;

use crate::{
    report::{Conditions, LatencyRow, Report, ThroughputRow},
    system::{ECHO_PORT, Programs, Running, System},
};

/// Connections of one iperf run at most.
const CONNECTIONS_MAX: u32 = 128;
/// Rounds at most.
const ROUNDS_MAX: u32 = 100;
/// Measured seconds of one iperf run at most.
const SECONDS_MAX: u32 = 3600;
/// Ping-pongs a system at most.
const EXCHANGES_MAX: u32 = 1_000_000;

/// Measures the gateways on loopback, beside a direct connection and the peers found on PATH.
#[derive(Debug, Parser)]
#[command(name = "muxlab", version, about)]
struct Cli {
    /// Rounds; every system is measured once in each.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=ROUNDS_MAX as i64))]
    rounds: u32,
    /// Seconds of one iperf run that count.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=SECONDS_MAX as i64))]
    seconds: u32,
    /// Seconds before them that do not.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=SECONDS_MAX as i64))]
    warm_up_seconds: u32,
    /// Numbers of parallel connections.
    #[arg(long, value_delimiter = ',', default_value = "1,2,10",
        value_parser = clap::value_parser!(u32).range(1..=CONNECTIONS_MAX as i64))]
    connections: Vec<u32>,
    /// 64-byte ping-pongs a system, spread over the rounds.
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=EXCHANGES_MAX as i64))]
    exchanges: u32,
    /// Congestion control of the whole namespace.
    #[arg(long, default_value = "cubic")]
    congestion_control: String,
    /// Our gateway; `muxgate` beside this program where not given.
    #[arg(long)]
    muxgate: Option<PathBuf>,
    /// The peer that speaks JMUX; looked up on PATH.
    #[arg(long, default_value = "jetsocat")]
    jetsocat: PathBuf,
    /// Version 2 of iperf; looked up on PATH.
    #[arg(long, default_value = "iperf")]
    iperf: PathBuf,
    /// End with status 1 when a target is missed, not only when a run failed.
    #[arg(long)]
    gate: bool,
    /// Where the JSON lines go; logs of the systems go to a folder `logs` beside it.
    #[arg(long, default_value = "target/bench/results.jsonl")]
    output: PathBuf,
}

fn main() -> Result<ExitCode> {
    let cli = Cli::parse();
    let folder = cli
        .output
        .parent()
        .context("--output has no folder")?
        .to_owned();
    let logs = folder.join("logs");
    fs::create_dir_all(&logs).with_context(|| format!("making the folder {}", logs.display()))?;
    // Before any thread exists: a namespace is entered thread by thread.
    namespace::enter(&cli.congestion_control)?;
    let conditions = conditions(&cli)?;
    println!("{}", conditions.heading());
    let programs = programs(&cli)?;
    let echo = TcpListener::bind(("127.0.0.1", ECHO_PORT)).context("binding the echo port")?;
    std::thread::spawn(move || latency::echo(&echo));
    let mut lanes: Vec<Lane> = System::ALL
        .iter()
        .map(|&system| Lane::start(system, &programs, &logs))
        .collect();
    let started = Instant::now();
    for round in 1..=cli.rounds {
        if round > 1 {
            for lane in &mut lanes {
                lane.restart(&programs, &logs);
            }
        }
        for &connections in &cli.connections {
            for lane in &mut lanes {
                lane.measure_throughput(&cli, connections);
            }
        }
        for lane in &mut lanes {
            lane.measure_latency(exchanges_of_round(cli.exchanges, cli.rounds, round));
        }
        let seconds = started.elapsed().as_secs();
        eprintln!("round {round}/{} done after {seconds} s", cli.rounds);
    }
    let report = assemble(conditions, &cli, lanes);
    println!("{}", report.table());
    report
        .foreign_work()
        .iter()
        .for_each(|line| println!("{line}"));
    let verdicts = report.verdicts();
    for (met, text) in &verdicts {
        println!("{text}: {}", if *met { "met" } else { "MISSED" });
    }
    report.write(&cli.output)?;
    println!("JSON lines: {}", cli.output.display());
    let missed = verdicts.iter().any(|(met, _)| !met);
    let good = report.is_complete() && !(cli.gate && missed);
    Ok(if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Spreads `total` over the rounds, the remainder over the first ones.
fn exchanges_of_round(total: u32, rounds: u32, round: u32) -> u32 {
    total / rounds + u32::from(round <= total % rounds)
}

fn conditions(cli: &Cli) -> Result<Conditions> {
    Ok(Conditions {
        congestion_control: cli.congestion_control.clone(),
        iperf: throughput::version(&cli.iperf)?,
        kernel: fs::read_to_string("/proc/sys/kernel/osrelease")?
            .trim()
            .to_owned(),
        cpus: std::thread::available_parallelism().map_or(0, usize::from),
        window: Window {
            warm_up_s: cli.warm_up_seconds,
            duration_s: cli.seconds,
        },
        rounds: cli.rounds,
    })
}

fn programs(cli: &Cli) -> Result<Programs> {
    let muxgate = match &cli.muxgate {
        Some(path) => path.clone(),
        None => std::env::current_exe()?.with_file_name("muxgate"),
    };
    Ok(Programs {
        muxgate,
        jetsocat: cli.jetsocat.clone(),
    })
}

/// One system and what was measured of it.
struct Lane {
    system: System,
    running: Result<Running, String>,
    throughput: Vec<ThroughputRow>,
    latency: Result<Histogram<u64>, String>,
}

impl Lane {
    fn start(system: System, programs: &Programs, logs: &std::path::Path) -> Self {
        Self {
            system,
            running: start(system, programs, logs),
            throughput: Vec::new(),
            latency: latency::histogram(),
        }
    }

    /// Each round begins with fresh processes, so that what one round left behind in a system does not
    /// count in the next.
    fn restart(&mut self, programs: &Programs, logs: &std::path::Path) {
        if self.running.is_ok() {
            // The old processes hold the ports: they end before the new ones begin.
            self.running = Err("between two rounds".to_owned());
            self.running = start(self.system, programs, logs);
        }
    }

    fn measure_throughput(&mut self, cli: &Cli, connections: u32) {
        let position = self
            .throughput
            .iter()
            .position(|row| row.connections == connections);
        let index = position.unwrap_or_else(|| {
            self.throughput
                .push(ThroughputRow::new(self.system, connections));
            self.throughput.len() - 1
        });
        let row = &mut self.throughput[index];
        let running = match &self.running {
            Ok(running) => running,
            Err(reason) => return row.fail(reason.clone()),
        };
        if row.reason.is_some() {
            return;
        }
        let window = Window {
            warm_up_s: cli.warm_up_seconds,
            duration_s: cli.seconds,
        };
        let run = throughput::Run {
            iperf: &cli.iperf,
            window,
            connections,
        };
        match run.measure(running) {
            Ok(measured) => row.add(measured),
            Err(error) => {
                let reason = format!("{error:#}");
                eprintln!(
                    "{}, {connections} connections: {reason}",
                    self.system.name()
                );
                row.fail(reason);
            }
        }
    }

    fn measure_latency(&mut self, exchanges: u32) {
        if let Err(reason) = &self.running {
            self.latency = Err(reason.clone());
        }
        if let Ok(histogram) = &mut self.latency
            && let Err(error) = latency::measure(self.system.echo_port(), exchanges, histogram)
        {
            let reason = format!("{error:#}");
            eprintln!("{}, ping-pong: {reason}", self.system.name());
            self.latency = Err(reason);
        }
    }
}

fn start(system: System, programs: &Programs, logs: &std::path::Path) -> Result<Running, String> {
    let running = system
        .start(programs, logs)
        .map_err(|error| format!("{error:#}"));
    if let Err(reason) = &running {
        eprintln!("{}: {reason}", system.name());
    }
    running
}

fn assemble(conditions: Conditions, cli: &Cli, lanes: Vec<Lane>) -> Report {
    let mut report = Report::new(conditions);
    for lane in lanes {
        report.latency.push(LatencyRow {
            system: lane.system,
            exchanges: cli.exchanges,
            histogram: lane.latency,
        });
        report.throughput.extend(lane.throughput);
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn exchanges_are_spread_over_the_rounds_without_loss() {
        let spread: Vec<u32> = (1..=3)
            .map(|round| exchanges_of_round(2000, 3, round))
            .collect();
        assert_eq!(spread, [667, 667, 666]);
    }
}
