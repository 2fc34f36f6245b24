//! The command line: the lab itself, and its parts that run as separate processes.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::{Args, Parser, Subcommand};

use crate::{
    bare_quinn::QuinnArgs,
    bench::Programs,
    congestion_control::namespace_with,
    handshakes::HandshakesArgs,
    load::{LoadArgs, serve::ServeArgs},
    paired::PAIRS_MIN,
    plan::{Selection, USUAL},
    process::ChildArgs,
    relay::RelayArgs,
    scenario::{Scenario, Times},
    system::System,
    topology::Topology,
};

/// Greatest number of connections of an iperf run.
const CONNECTIONS_MAX: i64 = 128;
/// Default number of rounds.
const ROUNDS_DEFAULT: u32 = 5;
/// Greatest number of rounds.
const ROUNDS_MAX: i64 = 100;
/// Greatest duration of a run in seconds.
const SECONDS_MAX: i64 = 3600;

/// Exit status: all systems were measured, except peers that are not installed, and all required
/// verdicts are good.
pub(crate) const MET: u8 = 0;
/// Exit status: a system was not measured, or a required verdict is bad. A failure has the same
/// status.
pub(crate) const MISSED: u8 = 1;

/// Measures the data plane alone, and compares it with a direct connection, plain relays and other
/// installed tunnel programs.
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

/// The parts of the lab that run as separate processes.
#[derive(Debug, Subcommand)]
pub(crate) enum Part {
    /// Forward connections without a mux, as a control.
    Relay(RelayArgs),
    /// Send bulk over QUIC without a gateway, as a control.
    Quinn(QuinnArgs),
    /// Compare handshakes with public keys and with certificates: their rate and their bytes.
    Handshakes(HandshakesArgs),
    /// Run the server of the load.
    Serve(ServeArgs),
    /// Run a load.
    Load(LoadArgs),
    /// Run another program that ends together with muxlab.
    #[command(hide = true)]
    Child(ChildArgs),
}

/// Flags of the lab.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Compare the build of --muxgate with another build of muxgate, at this path. The muxlab of the
    /// same commit must be next to the other muxgate, because it writes the files of these
    /// gateways. In each round, both builds run, one after the other. For each row, muxlab prints a
    /// ratio with its 95 % interval. A ratio above 1 means that the build of --muxgate is faster or
    /// costs less. The exit status is 1 if an interval ends below 0.97. Default rows: bulk with 1
    /// and 10 connections, and ping-pong, of muxgate-native and muxgate-keys on loopback and veth.
    #[arg(long, value_name = "MUXGATE", conflicts_with = "gate")]
    pub(crate) against: Option<PathBuf>,
    /// Number of rounds. Each round measures every system once in every cell. With --against, at
    /// least 9 rounds [default: 5, or 9 with --against].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=ROUNDS_MAX))]
    rounds: Option<u32>,
    /// Measured seconds of a run. On the topologies wan-loss-1, wan-loss-5, wan-changing and
    /// wan-deep, bulk runs measure for at least 10 s.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=SECONDS_MAX))]
    seconds: u32,
    /// Seconds of warm-up before the measured seconds. Bulk runs over an emulated WAN warm up for
    /// at least 4 s, and on the topologies wan-changing and wan-deep for at least 25 s.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=SECONDS_MAX))]
    warm_up_seconds: u32,
    /// Seconds of the scenario full-duplex with streams in both directions. With --gate, at least
    /// 60 s in the first round.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=SECONDS_MAX))]
    duplex_seconds: u32,
    /// Topologies to measure [default: all].
    #[arg(long, value_enum, value_delimiter = ',')]
    topologies: Option<Vec<Topology>>,
    /// Congestion controls of the namespaces [default: cubic, and bbr if the kernel has it].
    #[arg(long, value_delimiter = ',')]
    congestion_control: Option<Vec<String>>,
    /// Scenarios to measure [default: depends on the topology].
    #[arg(long, value_enum, value_delimiter = ',')]
    scenarios: Option<Vec<Scenario>>,
    /// Numbers of connections of the bulk scenarios [default: depends on the topology].
    #[arg(long, value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..=CONNECTIONS_MAX))]
    connections: Option<Vec<u32>>,
    /// Systems to measure [default: depends on the scenario].
    #[arg(long, value_enum, value_delimiter = ',')]
    systems: Option<Vec<System>>,
    /// The muxgate to measure [default: `muxgate` next to this program].
    #[arg(long)]
    muxgate: Option<PathBuf>,
    /// The program that emulates the WAN [default: `muxwan` next to this program].
    #[arg(long)]
    muxwan: Option<PathBuf>,
    /// The iperf 2 program, searched on PATH.
    #[arg(long, default_value = "iperf")]
    iperf: PathBuf,
    /// The iperf 3 program, searched on PATH.
    #[arg(long, default_value = "iperf3")]
    iperf3: PathBuf,
    /// Exit with status 1 if a target is missed. If a run fails, the status is 1 even without this
    /// flag.
    #[arg(long)]
    pub(crate) gate: bool,
    /// File for the JSON lines. The systems' logs go to the folder `logs` next to it [default:
    /// target/bench/results.jsonl, or target/bench/against.jsonl with --against].
    #[arg(long)]
    output: Option<PathBuf>,
}

impl RunArgs {
    /// The selected measurements.
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

    /// The number of rounds.
    ///
    /// # Errors
    /// If the number of rounds is too small for a 95 % interval.
    pub(crate) fn rounds(&self) -> Result<u32> {
        if self.against.is_none() {
            return Ok(self.rounds.unwrap_or(ROUNDS_DEFAULT));
        }
        let rounds = self.rounds.unwrap_or(PAIRS_MIN);
        ensure!(
            rounds >= PAIRS_MIN,
            "invalid --rounds {rounds}: --against needs at least {PAIRS_MIN}, because fewer pairs give no 95 % interval"
        );
        Ok(rounds)
    }

    /// The file for the JSON lines.
    pub(crate) fn output(&self) -> PathBuf {
        let default = match self.against {
            None => "target/bench/results.jsonl",
            Some(_) => "target/bench/against.jsonl",
        };
        self.output.clone().unwrap_or_else(|| default.into())
    }

    /// The durations of a round. With --gate, full duplex in the first round takes longer.
    pub(crate) fn times(&self) -> Times {
        Times {
            seconds: self.seconds,
            warm_up_seconds: self.warm_up_seconds,
            duplex_seconds: self.duplex_seconds,
        }
    }

    /// The programs of the lab.
    ///
    /// # Errors
    /// If muxlab cannot find its own path.
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
    fn the_manual_has_all_exit_statuses() {
        let statuses = [
            (
                MET,
                "all systems were measured; with `--gate` no target was missed, with `--against` no figure is worse",
            ),
            (
                MISSED,
                "a system was not measured, a target was missed, a figure is worse, or muxlab failed; standard output has the verdicts, standard error the cause of a failure",
            ),
            (2, "the flags cannot be used"),
        ];
        muxtunnel_testkit::exit_statuses::assert_documented("muxlab", &statuses);
    }

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
