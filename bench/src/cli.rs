//! The command line: what was typed, checked and turned into what runs. A flag that cannot be used
//! ends the program with status 2 and words that name it.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use muxtunnel_bench_api::{ECHO_PORT, HTTP_PORT, Matrix, Path};

/// Measures a tunnel against the direct path.
#[derive(Debug, Parser)]
#[command(name = "muxbench", version)]
pub struct Cli {
    /// What to be.
    #[command(subcommand)]
    pub command: Command,
}

/// What to be.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// The runner: knows the matrix, drives the agents, writes the log.
    ///
    /// Ends with 0 when all cells were measured, with 1 when some were not.
    Run(RunArgs),
    /// One end of a measured path: runs iperf when told to.
    Agent(AgentArgs),
    /// Makes short connections at a rate, and long streams, to `muxbench target`; accounts for each.
    ///
    /// Prints `steady` once its target answers, and in the end one line of JSON. What fails meanwhile
    /// is in that line and is no failure of this program.
    Load(LoadArgs),
    /// Answers what `muxbench load` sends.
    Target(TargetArgs),
}

/// Flags of `muxbench run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Numbers of parallel connections.
    #[arg(long, value_delimiter = ',', required = true)]
    pub connections: Vec<u32>,
    /// Emulated one-way delays, for example 50ms,0ms.
    #[arg(long, value_delimiter = ',', required = true, value_parser = parse_duration)]
    pub delays: Vec<Duration>,
    /// Names of the gateways' sysctl profiles.
    #[arg(long, value_delimiter = ',', default_value = "None")]
    pub tunings: Vec<String>,
    /// Paths to compare: Direct, Tunnel, Network.
    #[arg(long, value_delimiter = ',', default_value = "Direct,Tunnel")]
    pub paths: Vec<Path>,
    /// Mux protocols, each of a tunnel of its own.
    #[arg(long, value_delimiter = ',', default_value = "Native")]
    pub protocols: Vec<String>,
    /// Time of a run, warm-up included; whole seconds.
    #[arg(long, default_value = "30s", value_parser = parse_duration)]
    pub duration: Duration,
    /// Time at the start of a run that is left out of the figures; whole seconds.
    #[arg(long, default_value = "5s", value_parser = parse_duration)]
    pub warm_up: Duration,
    /// Times that each cell is run.
    #[arg(long, default_value_t = 3)]
    pub rounds: u32,
    /// Where the operator's requests arrive.
    #[arg(long, default_value_t = format!("[::]:{HTTP_PORT}"))]
    pub listen: String,
    /// File with the bearer token that runner and agents share.
    #[arg(long)]
    pub token_file: PathBuf,
    /// File with the SHA-256, in hexadecimal, of the operator's bearer token; read at each request.
    #[arg(long)]
    pub operator_hash_file: PathBuf,
    /// Longest wait for each environment.
    #[arg(long, default_value = "30m", value_parser = parse_duration)]
    pub environment_deadline: Duration,
    /// Longest wait for the operator to fetch the results at the end.
    #[arg(long, default_value = "10m", value_parser = parse_duration)]
    pub linger: Duration,
    /// File for the summary at the end, for example /dev/termination-log.
    #[arg(long)]
    pub termination_log: Option<PathBuf>,
}

/// Flags of `muxbench agent`.
#[derive(Debug, Args)]
pub struct AgentArgs {
    /// Where the runner's requests arrive.
    #[arg(long, default_value_t = format!("[::]:{HTTP_PORT}"))]
    pub listen: String,
    /// Where round-trip probes are echoed.
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
    /// Where to connect to: `host:port`, resolved once.
    #[arg(long)]
    pub connect: String,
    /// Short connections a second.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub opens_per_second: u32,
    /// Long streams.
    #[arg(long, value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub streams: u32,
    /// How long, in whole seconds. SIGTERM ends the load earlier; the report is printed either way.
    #[arg(long, value_parser = parse_duration)]
    pub duration: Duration,
}

/// Flags of `muxbench target`.
#[derive(Debug, Args)]
pub struct TargetArgs {
    /// Where the connections arrive.
    #[arg(long)]
    pub listen: String,
}

impl RunArgs {
    /// The matrix that the flags describe.
    ///
    /// # Errors
    /// What cannot be measured, naming the flag.
    pub fn matrix(&self) -> Result<Matrix, String> {
        let one_way_delays_ms = self
            .delays
            .iter()
            .map(|delay| u32::try_from(delay.as_millis()).map_err(|_| "--delays: too long".into()))
            .collect::<Result<_, String>>()?;
        let matrix = Matrix {
            connections: self.connections.clone(),
            one_way_delays_ms,
            tunings: self.tunings.clone(),
            paths: self.paths.clone(),
            protocols: self.protocols.clone(),
            duration_s: whole_seconds("--duration", self.duration)?,
            warm_up_s: whole_seconds("--warm-up", self.warm_up)?,
            rounds: self.rounds,
        };
        matrix.check().map_err(|error| error.to_string())?;
        Ok(matrix)
    }
}

fn whole_seconds(flag: &str, duration: Duration) -> Result<u32, String> {
    if duration.subsec_nanos() != 0 {
        return Err(format!(
            "{flag}: {} ms is not in whole seconds",
            duration.as_millis()
        ));
    }
    u32::try_from(duration.as_secs()).map_err(|_| format!("{flag}: too long"))
}

/// A duration as Gateway API writes it (GEP-2257): `50ms`, `5s`, `10m`, `1h30m`.
///
/// # Errors
/// The text is none.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no duration; write for example 50ms, 5s, 10m or 1h30m");
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
            tunings: vec!["None".into(), "Wan".into()],
            paths: vec![Path::Direct, Path::Tunnel, Path::Network],
            protocols: vec!["Jmux".into(), "Native".into()],
            duration_s: 600,
            warm_up_s: 5,
            rounds: 3,
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
    fn flags_that_cannot_be_used_are_named() {
        let refused = |flag: &str, value: &str| {
            let mut args = matrix().to_args();
            args.retain(|arg| !arg.starts_with(flag));
            args.push(format!("{flag}={value}"));
            parse(&args).and_then(|args| args.matrix()).unwrap_err()
        };
        assert!(refused("--delays", "50").contains("\"50\" is no duration"));
        assert!(refused("--paths", "Sideways").contains("paths are Direct, Tunnel and Network"));
        assert!(refused("--connections", "0").contains("connections is 0"));
        assert!(
            refused("--duration", "1500ms").contains("--duration: 1500 ms is not in whole seconds")
        );
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
