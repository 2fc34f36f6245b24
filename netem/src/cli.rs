//! The command line of `muxwan`, and its exit statuses.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::duration;
use crate::impairments::{Loss, ONE_WAY_DELAY_MAX, Rate};
use crate::wan::Choice;

/// Done, or ended by SIGTERM.
pub const ENDED: u8 = 0;
/// The delay line failed, or a report could not be written.
pub const FAILED: u8 = 1;
/// The flags cannot be used. clap exits with the same status.
pub const UNUSABLE: u8 = 2;
/// The delay is refused.
pub const REFUSED: u8 = 3;

/// Exit statuses with their meanings, for the manual.
pub const EXIT_STATUSES: &[(u8, &str)] = &[
    (ENDED, "done, or ended by SIGTERM"),
    (
        FAILED,
        "the delay line failed, or the report could not be written; `check`: no report shows the requested delay",
    ),
    (
        UNUSABLE,
        "the flags cannot be used (`MT0101` if the flags parse, but a value is not valid)",
    ),
    (
        REFUSED,
        "refused: no backend works (`MT0404`), or the measured delay, loss or rate differs from the requested value (`MT0405`)",
    ),
];

/// Emulates the delay, jitter, loss and rate of a WAN in this network namespace, in one direction,
/// for tests.
#[derive(Debug, Parser)]
#[command(name = "muxwan", version, about)]
pub struct Cli {
    /// The subcommand to run.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Set up the delay, verify it on lo, write the report, and run until SIGTERM. With `--backend
    /// netem`, end after the report.
    Run(RunArgs),
    /// Exit with status 0 if a report exists that shows the requested delay.
    Check {
        /// Report file of `muxwan run`.
        #[arg(long, default_value = "/run/muxwan/report.json")]
        report: PathBuf,
    },
}

/// Arguments of `muxwan run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// One-way delay, such as 50ms. If both ends delay packets, the RTT grows by twice the delay.
    #[arg(long = "delay", value_parser = duration::parse)]
    pub one_way_delay: Duration,
    /// Greatest deviation of a packet's delay from --delay, such as 5ms. Packets keep their order.
    #[arg(long, value_parser = duration::parse, default_value = "0ms")]
    pub jitter: Duration,
    /// Share of lost packets, such as 0.5%; at most 50%.
    #[arg(long, default_value = "0%")]
    pub loss: Loss,
    /// Rate of the narrowest link in bits per second, such as 500k, 100M or 1G.
    #[arg(long)]
    pub rate: Option<Rate>,
    /// With --rate: longest time that packets wait for the narrowest link, such as 500ms; at most
    /// 10s. Packets that would wait longer are dropped [default: twice the delay, but at least
    /// 50ms].
    #[arg(long, value_parser = duration::parse, requires = "rate")]
    pub buffer: Option<Duration>,
    /// A second one-way delay, for tests of a path that changes: SIGUSR1 sets this delay, SIGUSR2
    /// restores --delay. Needs `--backend nfqueue`.
    #[arg(long = "changed-delay", value_parser = duration::parse)]
    pub changed_delay: Option<Duration>,
    /// Delay TCP and UDP from or to this port; repeatable.
    #[arg(long = "port", required_unless_present = "all", conflicts_with = "all")]
    pub ports: Vec<u16>,
    /// Delay all IP traffic.
    #[arg(long)]
    pub all: bool,
    /// With --all: do not delay TCP and UDP from or to this port; repeatable.
    #[arg(long = "except-port", requires = "all", conflicts_with = "ports")]
    pub except_ports: Vec<u16>,
    /// The interface [default: the interface of the IPv4 default route].
    #[arg(long)]
    pub interface: Option<String>,
    /// The mechanism of the emulation.
    #[arg(long, value_enum, default_value_t = BackendArg::Auto)]
    pub backend: BackendArg,
    /// File for the report.
    #[arg(long, default_value = "/run/muxwan/report.json")]
    pub report: PathBuf,
    /// File to which muxwan also writes its last message, if the file exists and is writable.
    #[arg(long, default_value = "/dev/termination-log")]
    pub termination_log: PathBuf,
}

/// The mechanism of the emulation, as a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BackendArg {
    /// netem if the kernel has it, otherwise nfqueue.
    Auto,
    /// Kernel netem delays departing packets. muxwan sets up netem and exits.
    Netem,
    /// A delay line behind an NFQUEUE rule delays arriving packets.
    Nfqueue,
}

impl From<BackendArg> for Choice {
    fn from(backend: BackendArg) -> Self {
        match backend {
            BackendArg::Auto => Self::Auto,
            BackendArg::Netem => Self::Netem,
            BackendArg::Nfqueue => Self::Nfqueue,
        }
    }
}

impl RunArgs {
    /// The delay that SIGUSR1 sets, if any.
    ///
    /// # Errors
    /// If the flags do not fit together. The text names the flag to change.
    pub fn changed_delay(&self) -> Result<Option<Duration>, String> {
        let Some(changed) = self.changed_delay else {
            return Ok(None);
        };
        if self.backend != BackendArg::Nfqueue {
            return Err("--changed-delay needs --backend nfqueue".to_owned());
        }
        if changed > ONE_WAY_DELAY_MAX || changed < self.jitter {
            return Err(format!(
                "invalid --changed-delay {changed:?}: expected at least the jitter of {:?} and at most {ONE_WAY_DELAY_MAX:?}",
                self.jitter
            ));
        }
        Ok(Some(changed))
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
    fn a_delay_that_changes_needs_the_delay_line() {
        let changed = |line: &str| {
            let Ok(Cli {
                command: Command::Run(args),
            }) = Cli::try_parse_from(line.split(' '))
            else {
                panic!("{line}");
            };
            args.changed_delay()
        };
        let ms = Duration::from_millis;
        let with = |end: &str| format!("muxwan run --delay 20ms --all --changed-delay {end}");
        assert_eq!(changed(&with("60ms --backend nfqueue")), Ok(Some(ms(60))));
        assert!(changed(&with("60ms")).is_err());
        assert!(changed(&with("1ms --jitter 2ms --backend nfqueue")).is_err());
        assert!(changed(&with("11s --backend nfqueue")).is_err());
    }

    #[test]
    fn ports_or_all_traffic_have_to_be_chosen() {
        let accepted = |line: &str| Cli::try_parse_from(line.split(' ')).is_ok();
        assert!(accepted("muxwan run --delay 50ms --port 64000 --port 5001"));
        assert!(accepted(
            "muxwan run --delay 50ms --all --except-port 64001"
        ));
        assert!(!accepted("muxwan run --delay 50ms"));
        assert!(!accepted("muxwan run --delay 50ms --port 1 --all"));
        assert!(!accepted(
            "muxwan run --delay 50ms --port 1 --except-port 2"
        ));
        assert!(!accepted("muxwan run --delay 50 --port 1"));
        assert!(accepted(
            "muxwan run --delay 50ms --jitter 5ms --loss 0.5% --rate 100M --all"
        ));
        assert!(!accepted("muxwan run --delay 50ms --loss 60% --all"));
        assert!(!accepted("muxwan run --delay 50ms --buffer 500ms --all"));
        assert!(accepted(
            "muxwan run --delay 50ms --rate 1G --buffer 500ms --all"
        ));
    }

    #[test]
    fn the_manual_has_all_exit_statuses() {
        muxtunnel_testkit::exit_statuses::assert_documented("muxwan", EXIT_STATUSES);
    }
}
