//! `muxwan`: emulates the delay of one network namespace while it runs, or refuses.
//!
//! This file waits for SIGTERM. The command line and the exit statuses are in
//! [`muxtunnel_netem::cli`]. The final message also goes to the termination log, which Kubernetes
//! shows in the pod's status.

use std::{
    collections::BTreeSet,
    fs::{self, OpenOptions},
    io::Write,
    os::fd::AsFd,
    path::Path,
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, Result};
use clap::Parser;
use muxtunnel_codes::Code;
use muxtunnel_netem::{
    cli::{BackendArg, Cli, Command, ENDED, FAILED, REFUSED, RunArgs, UNUSABLE},
    impairments::Impairments,
    nfqueue::line::Counts,
    plan::{Plan, Scope, default_route_interface},
    report::{self, Backend, Report},
    wan::{self, InForce, Refusal},
};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        signal::{SigSet, Signal},
        signalfd::SignalFd,
    },
};

/// Why a run failed.
enum End {
    Usage(String),
    Refused(Refusal),
    Failed(anyhow::Error),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Run(args) => match run(&args) {
            Ok(()) => ExitCode::from(ENDED),
            Err(end) => end.tell(&args.termination_log),
        },
        Command::Check { report } => match report::check(&report) {
            Ok(_) => ExitCode::from(ENDED),
            Err(error) => {
                eprintln!("muxwan: {error}");
                ExitCode::from(FAILED)
            }
        },
    }
}

impl End {
    fn tell(self, termination_log: &Path) -> ExitCode {
        let (message, status) = match self {
            Self::Usage(message) => {
                let code = Code::ConfigInvalid;
                (format!("{code} {}: {message}", code.reason()), UNUSABLE)
            }
            Self::Refused(refusal) => (refusal.to_string(), REFUSED),
            Self::Failed(error) => (format!("{error:#}"), FAILED),
        };
        eprintln!("muxwan: {message}");
        // Outside Kubernetes the file does not exist, and standard error has the message.
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
    let changed_delay = args.changed_delay().map_err(End::Usage)?;
    // Blocks the signals before any thread exists. Every thread inherits the blocks, so that only
    // the descriptor receives the signals.
    let signals = signals(changed_delay.is_some())
        .context("cannot block SIGTERM")
        .map_err(End::Failed)?;
    let path = args.report.display();
    report::remove(&args.report).with_context(|| format!("cannot remove the old report {path}"))?;
    let in_force = wan::start(&plan, args.backend.into()).map_err(End::Refused)?;
    if let Err(error) = publish(&in_force.report, &args.report) {
        in_force.stop(&plan).context("cannot remove the delay")?;
        return Err(error
            .context(format!("cannot write the report {path}"))
            .into());
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

fn plan(args: &RunArgs) -> Result<Plan, String> {
    let interface = match &args.interface {
        Some(name) => name.clone(),
        None => fs::read_to_string("/proc/net/route")
            .ok()
            .and_then(|routes| default_route_interface(&routes))
            .ok_or("IPv4 default route not found: set --interface")?,
    };
    if !wan::interface_exists(&interface) {
        return Err(format!(
            "interface `{interface}` not found in this network namespace: set --interface"
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

/// Blocks SIGTERM and SIGINT. If `with_changes` is true, also blocks SIGUSR1 and SIGUSR2. Returns a
/// descriptor from which the signals are read.
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

/// Waits until SIGTERM, or until the delay line fails. Meanwhile SIGUSR1 and SIGUSR2 change the
/// delay.
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
            Err(error) => return Err(error).context("cannot wait for SIGTERM"),
            Ok(_) => {}
        }
        if ready.get(1).and_then(PollFd::any).unwrap_or(false) {
            break true;
        }
        let signal = signals.read_signal().context("cannot read a signal")?;
        let signal = signal.and_then(|signal| Signal::try_from(signal.ssi_signo as i32).ok());
        match (signal, changed_delay) {
            (Some(Signal::SIGUSR1), Some(changed)) => in_force.set_one_way_delay(changed),
            (Some(Signal::SIGUSR2), _) => {
                in_force.set_one_way_delay(plan.impairments().one_way_delay);
            }
            _ => break false,
        }
    };
    report::remove(report).context("cannot remove the report")?;
    if broken {
        in_force
            .abandon()
            .context("the delay line failed, so the delayed traffic stops")?;
        anyhow::bail!("the delay line ended, so the delayed traffic stops");
    }
    let by_line = in_force.report.backend == Backend::Nfqueue;
    let Counts {
        passed,
        lost,
        overflowed,
    } = in_force.stop(plan).context("cannot end the emulation")?;
    if by_line {
        eprintln!(
            "muxwan: ended; {passed} packets were delayed, {lost} lost, {overflowed} dropped by a full buffer"
        );
    }
    Ok(())
}
