//! `muxlab`: the data plane measured alone, on loopback and in network namespaces, beside a direct
//! connection, our own relays and the peers that are found on this machine. `make bench` runs it.
//!
//! In come flags ([`cli`]); out come tables for people, verdicts, and JSON lines for machines
//! ([`report`], [`verdict`]). Read [`plan`] for what is measured, [`run`] for the order, [`topology`]
//! for where, [`system`] for what is compared, [`scenario`] for the questions, [`mod@bench`] for one
//! run; `docs/performance.md` says how to read the figures. A system that is not installed or fails has
//! a row that says so; the others are measured.
//!
//! With `--against` it compares two builds of muxgate instead: [`against`], and [`paired`] for the statistics.

mod against;
mod bare_quinn;
mod bench;
mod cli;
mod congestion_control;
mod counters;
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

use crate::cli::{Cli, Part};

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
        Some(Part::Serve(args)) => load::serve::run(args)?,
        Some(Part::Load(args)) => load::run(args)?,
        Some(Part::Child(args)) => process::become_child(args)?,
    }
    Ok(ExitCode::SUCCESS)
}
