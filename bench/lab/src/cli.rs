//! The command line: the run of the lab, and the parts of it that are processes of their own.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};

use crate::{
    bench::Programs,
    load::{LoadArgs, serve::ServeArgs},
    namespace::Namespace,
    plan::{Selection, USUAL},
    process::ChildArgs,
    relay::RelayArgs,
    scenario::{Scenario, Times},
    system::System,
    topology::Topology,
};

/// Connections of one run of iperf at most.
const CONNECTIONS_MAX: i64 = 128;
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
    /// Rounds; in each, every system is measured once in every cell.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=ROUNDS_MAX))]
    pub(crate) rounds: u32,
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
    #[arg(long, default_value = "target/bench/results.jsonl")]
    pub(crate) output: PathBuf,
}

impl RunArgs {
    /// What is to be measured.
    pub(crate) fn selection(&self) -> Selection {
        let congestion_controls = self.congestion_control.clone().unwrap_or_else(|| {
            [USUAL, "bbr"]
                .into_iter()
                .filter(|name| *name == USUAL || Namespace::new(name).is_ok())
                .map(str::to_owned)
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

    #[test]
    fn a_part_takes_its_own_flags() {
        let line = "muxlab child -- iperf -s -p 5001";
        assert!(Cli::try_parse_from(line.split(' ')).is_ok());
        assert!(Cli::try_parse_from("muxlab --connections 0".split(' ')).is_err());
    }
}
