//! `muxwan`: makes the delay of one network namespace and stays with it, or refuses.
//!
//! Owns the command line, the exit statuses and the wait for SIGTERM. Exit status 0: done, or ended
//! by SIGTERM with the rules removed; 1: the delay line broke, or a report could not be written; 2:
//! the flags cannot be used; 3: the delay cannot be made (MT0404, MT0405). What ends it is also
//! written to the termination log, which Kubernetes shows in the pod's status.

use std::{
    collections::BTreeSet,
    fs::{self, OpenOptions},
    io::Write,
    os::fd::AsFd,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand, ValueEnum};
use muxtunnel_codes::Code;
use muxtunnel_netem::{
    duration,
    impairments::{Impairments, Loss, ONE_WAY_DELAY_MAX, Rate},
    nfqueue::line::Counts,
    plan::{Plan, Scope, default_route_interface},
    report::{self, Backend, Report},
    wan::{self, Choice, InForce, Refusal},
};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        signal::{SigSet, Signal},
        signalfd::SignalFd,
    },
};

/// Emulates a WAN in this network namespace, for tests: delay, jitter, loss and rate, one way.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Set the delay up, prove it on lo, write the report; stay until SIGTERM, except with
    /// `--backend netem`.
    Run(RunArgs),
    /// End with status 0 if a good report exists.
    Check {
        /// The report of `muxwan run`.
        #[arg(long, default_value = "/run/muxwan/report.json")]
        report: PathBuf,
    },
}

#[derive(Debug, Args)]
struct RunArgs {
    /// One-way delay such as 50ms; both ends together make an RTT of twice that.
    #[arg(long = "delay", value_parser = duration::parse)]
    one_way_delay: Duration,
    /// Up to this much more or less of it for each packet, such as 5ms; packets keep their order.
    #[arg(long, value_parser = duration::parse, default_value = "0ms")]
    jitter: Duration,
    /// The share of packets that are lost, such as 0.5%; at most 50%.
    #[arg(long, default_value = "0%")]
    loss: Loss,
    /// What the narrowest link carries a second, such as 500kbit, 100Mbit or 1Gbit.
    #[arg(long)]
    rate: Option<Rate>,
    /// With --rate: how long packets wait in front of the narrowest link before they are dropped, such as
    /// 500ms; at most 10s. Twice the delay where not given, at least 50ms.
    #[arg(long, value_parser = duration::parse, requires = "rate")]
    buffer: Option<Duration>,
    /// The one-way delay from SIGUSR1 on, until SIGUSR2: a path that changes. With `--backend nfqueue`.
    #[arg(long = "changed-delay", value_parser = duration::parse)]
    changed_delay: Option<Duration>,
    /// Delay TCP and UDP from or to this port; repeatable.
    #[arg(long = "port", required_unless_present = "all", conflicts_with = "all")]
    ports: Vec<u16>,
    /// Delay all IP traffic.
    #[arg(long)]
    all: bool,
    /// With --all: spare TCP and UDP from or to this port; repeatable.
    #[arg(long = "except-port", requires = "all", conflicts_with = "ports")]
    except_ports: Vec<u16>,
    /// The interface; that of the IPv4 default route where not given.
    #[arg(long)]
    interface: Option<String>,
    /// How to make the delay.
    #[arg(long, value_enum, default_value_t = BackendArg::Auto)]
    backend: BackendArg,
    /// Where the report goes.
    #[arg(long, default_value = "/run/muxwan/report.json")]
    report: PathBuf,
    /// Where the last message goes as well, if that file exists and can be written.
    #[arg(long, default_value = "/dev/termination-log")]
    termination_log: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum BackendArg {
    /// netem where the kernel has it, else nfqueue.
    Auto,
    /// Kernel netem, on what leaves; sets it up and ends.
    Netem,
    /// A delay line behind an NFQUEUE rule, on what arrives.
    Nfqueue,
}

/// The exit status for flags that cannot be used.
const STATUS_USAGE: u8 = 2;
/// The exit status of a refusal.
const STATUS_REFUSED: u8 = 3;

/// How a run ended short of success.
enum End {
    Usage(String),
    Refused(Refusal),
    Failed(anyhow::Error),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Run(args) => match run(&args) {
            Ok(()) => ExitCode::SUCCESS,
            Err(end) => end.tell(&args.termination_log),
        },
        Command::Check { report } => match report::check(&report) {
            Ok(_) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("muxwan: {error}");
                ExitCode::FAILURE
            }
        },
    }
}

impl End {
    fn tell(self, termination_log: &Path) -> ExitCode {
        let (message, status) = match self {
            Self::Usage(message) => {
                let code = Code::ConfigInvalid;
                (format!("{code} {}: {message}", code.reason()), STATUS_USAGE)
            }
            Self::Refused(refusal) => (refusal.to_string(), STATUS_REFUSED),
            Self::Failed(error) => (format!("{error:#}"), 1),
        };
        eprintln!("muxwan: {message}");
        // Outside Kubernetes there is none, and standard error has said it all.
        let log = OpenOptions::new()
            .write(true)
            .truncate(true)
            .open(termination_log);
        let _ = log.and_then(|mut log| log.write_all(message.as_bytes()));
        ExitCode::from(status)
    }
}

impl From<anyhow::Error> for End {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error)
    }
}

fn run(args: &RunArgs) -> Result<(), End> {
    let plan = plan(args).map_err(End::Usage)?;
    let changed_delay = changed_delay(args).map_err(End::Usage)?;
    // Before any thread exists, so that all of them leave the signals to the descriptor.
    let signals = signals(changed_delay.is_some())
        .context("taking over SIGTERM")
        .map_err(End::Failed)?;
    let path = args.report.display();
    report::remove(&args.report).with_context(|| format!("removing the old report {path}"))?;
    let in_force = wan::start(&plan, args.backend.into()).map_err(End::Refused)?;
    if let Err(error) = publish(&in_force.report, &args.report) {
        in_force.stop(&plan).context("taking the delay back")?;
        return Err(error.context(format!("writing the report {path}")).into());
    }
    if args.backend == BackendArg::Netem {
        return Ok(());
    }
    Ok(stay(
        in_force,
        &plan,
        changed_delay,
        &signals,
        &args.report,
    )?)
}

/// The delay that SIGUSR1 changes to, checked.
fn changed_delay(args: &RunArgs) -> Result<Option<Duration>, String> {
    let Some(changed) = args.changed_delay else {
        return Ok(None);
    };
    if args.backend != BackendArg::Nfqueue {
        return Err("--changed-delay needs --backend nfqueue".to_owned());
    }
    if changed > ONE_WAY_DELAY_MAX || changed < args.jitter {
        return Err(format!(
            "invalid --changed-delay {changed:?}: expected at least the jitter and at most {ONE_WAY_DELAY_MAX:?}"
        ));
    }
    Ok(Some(changed))
}

fn plan(args: &RunArgs) -> Result<Plan, String> {
    let interface = match &args.interface {
        Some(name) => name.clone(),
        None => fs::read_to_string("/proc/net/route")
            .ok()
            .and_then(|routes| default_route_interface(&routes))
            .ok_or("there is no IPv4 default route; name the interface with --interface")?,
    };
    if !wan::interface_exists(&interface) {
        return Err(format!(
            "there is no interface `{interface}` in this network namespace"
        ));
    }
    let ports = |ports: &[u16]| ports.iter().copied().collect::<BTreeSet<u16>>();
    let scope = match args.all {
        true => Scope::AllExcept(ports(&args.except_ports)),
        false => Scope::Ports(ports(&args.ports)),
    };
    let impairments = Impairments {
        one_way_delay: args.one_way_delay,
        jitter: args.jitter,
        loss: args.loss,
        rate: args.rate,
        buffer: args.buffer,
    };
    Plan::new(interface, impairments, scope).map_err(|error| error.to_string())
}

/// `with_changes`: those that change the delay as well.
fn signals(with_changes: bool) -> nix::Result<SignalFd> {
    let mut set = SigSet::empty();
    set.add(Signal::SIGTERM);
    set.add(Signal::SIGINT);
    if with_changes {
        set.add(Signal::SIGUSR1);
        set.add(Signal::SIGUSR2);
    }
    set.thread_block()?;
    SignalFd::new(&set)
}

fn publish(made: &Report, path: &Path) -> Result<()> {
    made.write(path)?;
    let text = serde_json::to_string(made)?;
    writeln!(std::io::stdout(), "{text}")?;
    Ok(())
}

/// Waits until SIGTERM, or until the delay line breaks; changes the delay meanwhile where it is told to.
fn stay(
    in_force: InForce,
    plan: &Plan,
    changed_delay: Option<Duration>,
    signals: &SignalFd,
    report: &Path,
) -> Result<()> {
    let broken = loop {
        let mut ready = vec![PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        ready.extend(
            in_force
                .ended()
                .map(|end| PollFd::new(end.as_fd(), PollFlags::POLLIN)),
        );
        match poll(&mut ready, PollTimeout::NONE) {
            Err(Errno::EINTR) => continue,
            Err(error) => return Err(error).context("waiting for SIGTERM"),
            Ok(_) => {}
        }
        if ready.get(1).and_then(PollFd::any).unwrap_or(false) {
            break true;
        }
        let signal = signals.read_signal().context("reading a signal")?;
        let signal = signal.and_then(|signal| Signal::try_from(signal.ssi_signo as i32).ok());
        match (signal, changed_delay) {
            (Some(Signal::SIGUSR1), Some(changed)) => in_force.set_one_way_delay(changed),
            (Some(Signal::SIGUSR2), _) => {
                in_force.set_one_way_delay(plan.impairments().one_way_delay);
            }
            _ => break false,
        }
    };
    report::remove(report).context("removing the report")?;
    if broken {
        in_force
            .abandon()
            .context("the delay line broke; its traffic stops")?;
        anyhow::bail!("the delay line ended; its traffic stops");
    }
    let by_line = in_force.report.backend == Backend::Nfqueue;
    let Counts {
        passed,
        lost,
        overflowed,
    } = in_force.stop(plan).context("ending the emulation")?;
    if by_line {
        eprintln!(
            "muxwan: ended; {passed} packets were delayed, {lost} lost, {overflowed} dropped by a full buffer"
        );
    }
    Ok(())
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
            changed_delay(&args)
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
            "muxwan run --delay 50ms --jitter 5ms --loss 0.5% --rate 100Mbit --all"
        ));
        assert!(!accepted("muxwan run --delay 50ms --loss 60% --all"));
        assert!(!accepted("muxwan run --delay 50ms --buffer 500ms --all"));
        assert!(accepted(
            "muxwan run --delay 50ms --rate 1Gbit --buffer 500ms --all"
        ));
    }
}
