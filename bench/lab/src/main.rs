//! `muxlab` measures the data plane alone, on loopback and in network namespaces. `muxlab` compares
//! the data plane with a direct connection, plain relays, and peers. Peers are programs of other
//! projects that are installed on this machine. `make bench` runs `muxlab`.
//!
//! `muxlab` reads flags ([`cli`]), and prints tables and verdicts for people and JSON lines for
//! programs ([`report`], [`verdict`]). [`plan`] lists the measurements, [`run`] has their order,
//! [`topology`] the networks, [`system`] the compared systems, [`scenario`] the loads, and
//! [`mod@bench`] one run. `docs/performance.md` explains the figures. If a system is not installed
//! or fails, its row has the reason, and the lab still measures the other systems.
//!
//! With `--against`, `muxlab` compares two builds of muxgate instead ([`against`]). [`paired`] has
//! the statistics.

mod against;
mod bare_quinn;
mod bench;
mod cli;
mod congestion_control;
mod counters;
mod handshakes;
mod load;
mod metric;
mod network;
mod paired;
mod plan;
mod process;
mod relay;
mod report;
mod run;
mod scenario;
mod statistics;
mod system;
mod topology;
mod usage;
mod verdict;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

use crate::cli::{Cli, MET, Part};

fn main() -> Result<ExitCode> {
    let cli = Cli::parse();
    match &cli.part {
        None => {
            return match &cli.run.against {
                None => run::run(&cli.run),
                Some(other) => against::run(&cli.run, other),
            };
        }
        Some(Part::Relay(args)) => relay::run(args)?,
        Some(Part::Quinn(args)) => bare_quinn::run(args)?,
        Some(Part::Handshakes(args)) => handshakes::run(args, &cli.run)?,
        Some(Part::Serve(args)) => load::serve::run(args)?,
        Some(Part::Load(args)) => load::run(args)?,
        Some(Part::Child(args)) => process::become_child(args)?,
    }
    Ok(ExitCode::from(MET))
}
