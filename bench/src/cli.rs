//! The command line: parses and checks the flags. An invalid flag ends the program with status 2
//! and a message that names the flag.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use muxtunnel_bench_api::{ECHO_PORT, HTTP_PORT, Matrix, Path, UDP_BITS_PER_SECOND};

/// `run`: all cells were measured. Other commands: success.
pub const MEASURED: u8 = 0;
/// `run`: some cells were not measured. All commands: failure.
pub const FAILED: u8 = 1;
/// The flags cannot be used. [`clap::Error::exit`] exits with the same status.
pub const UNUSABLE: u8 = 2;

/// Exit statuses with their meanings, for the manual.
pub const EXIT_STATUSES: &[(u8, &str)] = &[
    (
        MEASURED,
        "`run`: all cells were measured; other commands: success",
    ),
    (
        FAILED,
        "`run`: some cells were not measured; all commands: failure",
    ),
    (UNUSABLE, "the flags cannot be used"),
];

/// Measures a tunnel and compares it with the direct path.
#[derive(Debug, Parser)]
#[command(name = "muxbench", version)]
pub struct Cli {
    /// The role of the program.
    #[command(subcommand)]
    pub command: Command,
}

/// The role of the program.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a benchmark: drive the agents through the matrix and write the log.
    ///
    /// Exit status: 0 if all cells were measured, otherwise 1.
    Run(RunArgs),
    /// Serve one end of a measured path: run iperf at the runner's request.
    Agent(AgentArgs),
    /// Open short connections at a rate, and long streams, to `muxbench target`, and count their
    /// outcomes.
    ///
    /// Prints `steady` when the target answers, and one line of JSON at the end. Failed connections
    /// are counted in that line and do not change the exit status.
    Load(LoadArgs),
    /// Answer the connections of `muxbench load`.
    Target(TargetArgs),
}

/// Flags of `muxbench run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Numbers of parallel connections.
    #[arg(long, value_delimiter = ',', required = true)]
    pub connections: Vec<u32>,
    /// Emulated one-way delays in milliseconds, for example 50,0.
    #[arg(long, value_delimiter = ',', required = true)]
    pub delay_milliseconds: Vec<u32>,
    /// Names of the gateways' sysctl profiles.
    #[arg(long, value_delimiter = ',', default_value = "None")]
    pub profiles: Vec<String>,
    /// Paths to compare: Direct, Tunnel, Network.
    #[arg(long, value_delimiter = ',', default_value = "Direct,Tunnel")]
    pub paths: Vec<Path>,
    /// Mux protocols, each with its own tunnel.
    #[arg(long, value_delimiter = ',', default_value = "Native")]
    pub protocols: Vec<String>,
    /// Duration of a run in seconds, warm-up included.
    #[arg(long, default_value_t = 30)]
    pub duration_seconds: u32,
    /// Duration of the warm-up at the start of a run in seconds. The bytes of the warm-up do not
    /// count.
    #[arg(long, default_value_t = 5)]
    pub warm_up_seconds: u32,
    /// Number of runs of each cell.
    #[arg(long, default_value_t = 3)]
    pub rounds: u32,
    /// With the path Network: payload rate of the UDP datagrams in bits per second, from 100000 to
    /// 10000000000.
    #[arg(long, default_value_t = UDP_BITS_PER_SECOND)]
    pub udp_bits_per_second: u64,
    /// Listen address for the operator's requests.
    #[arg(long, default_value_t = format!("[::]:{HTTP_PORT}"))]
    pub listen: String,
    /// File with the bearer token that runner and agents share.
    #[arg(long)]
    pub token_file: PathBuf,
    /// File with the SHA-256 of the operator's bearer token, in hexadecimal. The runner reads the
    /// file at each request.
    #[arg(long)]
    pub operator_hash_file: PathBuf,
    /// Longest time to wait until the operator has set up an environment.
    #[arg(long, default_value = "30m", value_parser = parse_duration)]
    pub environment_deadline: Duration,
    /// Longest time to wait, after the last run, until the operator has fetched the results.
    #[arg(long, default_value = "10m", value_parser = parse_duration)]
    pub linger: Duration,
    /// File for the summary at the end, for example /dev/termination-log.
    #[arg(long)]
    pub termination_log: Option<PathBuf>,
}

/// Flags of `muxbench agent`.
#[derive(Debug, Args)]
pub struct AgentArgs {
    /// Listen address for the runner's requests.
    #[arg(long, default_value_t = format!("[::]:{HTTP_PORT}"))]
    pub listen: String,
    /// Listen address of the echo for round-trip probes.
    #[arg(long, default_value_t = format!("[::]:{ECHO_PORT}"))]
    pub echo_listen: String,
    /// File with the bearer token that runner and agents share.
    #[arg(long)]
    pub token_file: PathBuf,
    /// The iperf 2 program.
    #[arg(long, default_value = "iperf")]
    pub iperf: PathBuf,
}

/// Flags of `muxbench load`.
#[derive(Debug, Args)]
pub struct LoadArgs {
    /// The target's `host:port`, resolved once.
    #[arg(long)]
    pub connect: String,
    /// Short connections per second.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub opens_per_second: u32,
    /// Number of long streams.
    #[arg(long, value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub streams: u32,
    /// Duration of the load, in whole seconds. SIGTERM ends the load earlier; the report is printed
    /// in both cases.
    #[arg(long, value_parser = parse_duration)]
    pub duration: Duration,
}

/// Flags of `muxbench target`.
#[derive(Debug, Args)]
pub struct TargetArgs {
    /// Listen address for connections.
    #[arg(long)]
    pub listen: String,
}

impl RunArgs {
    /// The matrix that the flags describe.
    ///
    /// # Errors
    /// If the matrix is invalid. The error names the flag.
    pub fn matrix(&self) -> Result<Matrix, String> {
        let matrix = Matrix {
            connections: self.connections.clone(),
            one_way_delays_ms: self.delay_milliseconds.clone(),
            profiles: self.profiles.clone(),
            paths: self.paths.clone(),
            protocols: self.protocols.clone(),
            duration_s: self.duration_seconds,
            warm_up_s: self.warm_up_seconds,
            rounds: self.rounds,
            udp_bits_per_second: self.udp_bits_per_second,
        };
        matrix.check().map_err(|error| error.to_string())?;
        Ok(matrix)
    }
}

/// Parses a duration in the Gateway API's format (GEP-2257): `50ms`, `5s`, `10m`, `1h30m`.
///
/// # Errors
/// If the text is not a duration.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a duration: write for example 50ms, 5s, 10m or 1h30m");
    let mut rest = text;
    let mut millis = 0u64;
    let mut parts = 0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let number: u64 = rest[..digits].parse().map_err(|_| wrong())?;
        rest = &rest[digits..];
        let units = [("ms", 1), ("h", 3_600_000), ("m", 60_000), ("s", 1000)];
        let (unit, factor) = units
            .into_iter()
            .find(|(unit, _)| rest.starts_with(unit))
            .ok_or_else(wrong)?;
        rest = &rest[unit.len()..];
        parts += 1;
        if digits > 5 || parts > 4 {
            return Err(wrong());
        }
        millis += number * factor;
    }
    if parts == 0 {
        return Err(wrong());
    }
    Ok(Duration::from_millis(millis))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manual_has_all_exit_statuses() {
        muxtunnel_testkit::exit_statuses::assert_documented("muxbench", EXIT_STATUSES);
    }

    fn parse(args: &[String]) -> Result<RunArgs, String> {
        let fixed = [
            "muxbench",
            "run",
            "--token-file=t",
            "--operator-hash-file=h",
        ]
        .map(String::from);
        let cli =
            Cli::try_parse_from(fixed.iter().chain(args)).map_err(|error| error.to_string())?;
        match cli.command {
            Command::Run(args) => Ok(args),
            _ => Err("not run".into()),
        }
    }

    fn matrix() -> Matrix {
        Matrix {
            connections: vec![1, 2, 10],
            one_way_delays_ms: vec![50, 0],
            profiles: vec!["None".into(), "WAN".into()],
            paths: vec![Path::Direct, Path::Tunnel, Path::Network],
            protocols: vec!["JMUX".into(), "Native".into()],
            duration_s: 600,
            warm_up_s: 5,
            rounds: 3,
            udp_bits_per_second: 1_500_000,
        }
    }

    #[test]
    fn the_flags_that_the_operator_renders_are_the_matrix_again() {
        assert_eq!(
            parse(&matrix().to_args()).and_then(|args| args.matrix()),
            Ok(matrix())
        );
    }

    #[test]
    fn the_default_rate_of_datagrams_is_that_of_a_benchmark_without_one() {
        let mut args = matrix().to_args();
        args.retain(|arg| !arg.starts_with("--udp-bits-per-second"));
        assert_eq!(
            parse(&args).unwrap().udp_bits_per_second,
            UDP_BITS_PER_SECOND
        );
    }

    #[test]
    fn flags_that_cannot_be_used_are_named() {
        let refused = |flag: &str, value: &str| {
            let mut args = matrix().to_args();
            args.retain(|arg| !arg.starts_with(flag));
            args.push(format!("{flag}={value}"));
            parse(&args).and_then(|args| args.matrix()).unwrap_err()
        };
        assert!(refused("--delay-milliseconds", "50ms").contains("--delay-milliseconds"));
        assert!(refused("--delay-milliseconds", "10001").contains("out of range: use 0 to 10000"));
        assert!(refused("--paths", "Sideways").contains("paths are Direct, Tunnel and Network"));
        assert!(refused("--connections", "0").contains("connections 0 is out of range"));
        assert!(refused("--duration-seconds", "3601").contains("out of range: use 1 to 3600"));
        assert!(refused("--udp-bits-per-second", "99999").contains("use 100000 to 10000000000"));
        assert!(refused("--typo", "1").contains("--typo"));
    }

    #[test]
    fn durations_as_gateway_api_writes_them() {
        for (text, millis) in [
            ("50ms", 50),
            ("0ms", 0),
            ("0s", 0),
            ("10m", 600_000),
            ("1h30m", 5_400_000),
        ] {
            assert_eq!(
                parse_duration(text),
                Ok(Duration::from_millis(millis)),
                "{text}"
            );
        }
        for text in ["", "5", "ms", "-5s", "1.5s", "123456s", "5 s", "1s1s1s1s1s"] {
            assert!(parse_duration(text).is_err(), "{text:?}");
        }
    }
}
