//! The command line: the run of the lab, and the parts of it that are processes of their own.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::{Args, Parser, Subcommand};

use crate::{
    bare_quinn::QuinnArgs,
    bench::Programs,
    congestion_control::namespace_with,
    load::{LoadArgs, serve::ServeArgs},
    paired::PAIRS_MIN,
    plan::{Selection, USUAL},
    process::ChildArgs,
    relay::RelayArgs,
    scenario::{Scenario, Times},
    system::System,
    topology::Topology,
};

/// Connections of one run of iperf at most.
const CONNECTIONS_MAX: i64 = 128;
/// Rounds where the command line names no number.
const ROUNDS_DEFAULT: u32 = 5;
/// Rounds at most.
const ROUNDS_MAX: i64 = 100;
/// Seconds of one run at most.
const SECONDS_MAX: i64 = 3600;

/// Measures the data plane alone, beside a direct connection, our own relays and the peers found.
#[derive(Debug, Parser)]
#[command(
    name = "muxlab",
    version,
    about,
    args_conflicts_with_subcommands = true
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) part: Option<Part>,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

/// What the lab starts of itself.
#[derive(Debug, Subcommand)]
pub(crate) enum Part {
    /// Forward connections without a mux: a control.
    Relay(RelayArgs),
    /// Bulk over QUIC alone: a control.
    Quinn(QuinnArgs),
    /// The load's server.
    Serve(ServeArgs),
    /// The load.
    Load(LoadArgs),
    /// Become another program that ends when muxlab does.
    #[command(hide = true)]
    Child(ChildArgs),
}

/// What the lab is told.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Compare with this other muxgate: both builds run in turn in every round. Prints the ratio of each
    /// row, larger being better, with its 95 % interval; ends with status 1 when an interval does not
    /// reach 0.97. Rows, unless chosen: bulk with 1 and 10 connections and ping-pong, on loopback and
    /// veth, of muxgate-native.
    #[arg(long, value_name = "MUXGATE", conflicts_with = "gate")]
    pub(crate) against: Option<PathBuf>,
    /// Rounds; in each, every system is measured once in every cell. 5 where not given; with --against 9,
    /// which is the least there.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=ROUNDS_MAX))]
    rounds: Option<u32>,
    /// Seconds of one run that count; where frames are lost at least 10.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=SECONDS_MAX))]
    seconds: u32,
    /// Seconds before them that do not; over the WAN at least 4.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=SECONDS_MAX))]
    warm_up_seconds: u32,
    /// Seconds of full duplex; with --gate, those of the first round are 60.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=SECONDS_MAX))]
    duplex_seconds: u32,
    /// Topologies; all where not given.
    #[arg(long, value_enum, value_delimiter = ',')]
    topologies: Option<Vec<Topology>>,
    /// Congestion controls of the namespaces; cubic, and bbr where the kernel has it, where not given.
    #[arg(long, value_delimiter = ',')]
    congestion_control: Option<Vec<String>>,
    /// Scenarios; by topology where not given.
    #[arg(long, value_enum, value_delimiter = ',')]
    scenarios: Option<Vec<Scenario>>,
    /// Numbers of connections of the bulk scenarios; by topology where not given.
    #[arg(long, value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..=CONNECTIONS_MAX))]
    connections: Option<Vec<u32>>,
    /// Systems; by scenario where not given.
    #[arg(long, value_enum, value_delimiter = ',')]
    systems: Option<Vec<System>>,
    /// Our gateway; `muxgate` beside this program where not given.
    #[arg(long)]
    muxgate: Option<PathBuf>,
    /// What emulates the WAN; `muxwan` beside this program where not given.
    #[arg(long)]
    muxwan: Option<PathBuf>,
    /// Version 2 of iperf; looked up on PATH.
    #[arg(long, default_value = "iperf")]
    iperf: PathBuf,
    /// Version 3 of iperf; looked up on PATH.
    #[arg(long, default_value = "iperf3")]
    iperf3: PathBuf,
    /// End with status 1 when a target is missed, not only when a run failed.
    #[arg(long)]
    pub(crate) gate: bool,
    /// Where the JSON lines go; logs of the systems go to a folder `logs` beside it.
    /// target/bench/results.jsonl where not given; with --against target/bench/against.jsonl.
    #[arg(long)]
    output: Option<PathBuf>,
}

impl RunArgs {
    /// What is to be measured.
    pub(crate) fn selection(&self) -> Selection {
        let congestion_controls = self.congestion_control.clone().unwrap_or_else(|| {
            let all: &[&str] = match self.against {
                None => &[USUAL, "bbr"],
                Some(_) => &[USUAL],
            };
            all.iter()
                .filter(|name| **name == USUAL || namespace_with(name).is_ok())
                .map(|name| (*name).to_owned())
                .collect()
        });
        Selection {
            topologies: self.topologies.clone(),
            congestion_controls,
            scenarios: self.scenarios.clone(),
            connections: self.connections.clone(),
            systems: self.systems.clone(),
        }
    }

    /// How often everything is measured.
    ///
    /// # Errors
    /// When there are too few for an interval.
    pub(crate) fn rounds(&self) -> Result<u32> {
        if self.against.is_none() {
            return Ok(self.rounds.unwrap_or(ROUNDS_DEFAULT));
        }
        let rounds = self.rounds.unwrap_or(PAIRS_MIN);
        ensure!(
            rounds >= PAIRS_MIN,
            "invalid --rounds {rounds}: --against needs at least {PAIRS_MIN}, since fewer pairs give no 95 % interval"
        );
        Ok(rounds)
    }

    /// Where the JSON lines go.
    pub(crate) fn output(&self) -> PathBuf {
        let default = match self.against {
            None => "target/bench/results.jsonl",
            Some(_) => "target/bench/against.jsonl",
        };
        self.output.clone().unwrap_or_else(|| default.into())
    }

    /// The times of most rounds.
    pub(crate) fn times(&self) -> Times {
        Times {
            seconds: self.seconds,
            warm_up_seconds: self.warm_up_seconds,
            duplex_seconds: self.duplex_seconds,
        }
    }

    /// The programs to be run.
    ///
    /// # Errors
    /// When muxlab does not find itself.
    pub(crate) fn programs(&self) -> Result<Programs> {
        let own = std::env::current_exe()?;
        let beside = |chosen: &Option<PathBuf>, name| {
            chosen.clone().unwrap_or_else(|| own.with_file_name(name))
        };
        Ok(Programs {
            muxgate: beside(&self.muxgate, "muxgate"),
            muxwan: beside(&self.muxwan, "muxwan"),
            iperf2: self.iperf.clone(),
            iperf3: self.iperf3.clone(),
        })
    }
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
    fn any_part_of_the_run_can_be_chosen() {
        let line = "muxlab --topologies veth,wan --systems direct,muxgate-jmux \
                    --scenarios bulk-iperf2,ping-pong --congestion-control bbr --connections 1,4";
        let cli = Cli::try_parse_from(line.split_whitespace()).unwrap();
        let selection = cli.run.selection();
        assert_eq!(
            selection.topologies.unwrap(),
            [Topology::Veth, Topology::Wan]
        );
        assert_eq!(
            selection.systems.unwrap(),
            [System::Direct, System::MuxgateJmux]
        );
        assert_eq!(selection.congestion_controls, ["bbr"]);
        assert_eq!(selection.connections.unwrap(), [1, 4]);
    }

    fn run_args(line: &str) -> Result<RunArgs, clap::Error> {
        Ok(Cli::try_parse_from(line.split(' '))?.run)
    }

    #[test]
    fn a_comparison_of_builds_has_at_least_nine_rounds() {
        let rounds = |line| run_args(line).unwrap().rounds();
        assert_eq!(rounds("muxlab").unwrap(), 5);
        assert_eq!(rounds("muxlab --rounds 2").unwrap(), 2);
        assert_eq!(rounds("muxlab --against x").unwrap(), 9);
        assert_eq!(rounds("muxlab --against x --rounds 21").unwrap(), 21);
        assert!(rounds("muxlab --against x --rounds 8").is_err());
        assert!(run_args("muxlab --against x --gate").is_err());
    }

    #[test]
    fn a_comparison_of_builds_does_not_replace_the_results_of_a_run() {
        let output = |line| run_args(line).unwrap().output();
        assert_ne!(output("muxlab"), output("muxlab --against x"));
        assert_eq!(output("muxlab --against x --output y"), PathBuf::from("y"));
    }

    #[test]
    fn a_part_takes_its_own_flags() {
        let line = "muxlab child -- iperf -s -p 5001";
        assert!(Cli::try_parse_from(line.split(' ')).is_ok());
        assert!(Cli::try_parse_from("muxlab --connections 0".split(' ')).is_err());
    }
}
