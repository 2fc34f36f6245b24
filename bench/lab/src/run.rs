//! The order of a run: each environment has rounds, each round has every cell, and each cell runs
//! its systems in turn. If the machine is slow for a minute, the slow minute affects all systems of
//! a cell.

use std::{
    fs,
    path::{self, Path, PathBuf},
    process::ExitCode,
    time::Instant,
};

use anyhow::{Context, Result, ensure};
use nix::{
    sys::resource::{Resource, getrlimit, setrlimit},
    unistd::geteuid,
};

use crate::{
    bench::{Bench, Programs},
    cli::{MET, MISSED, RunArgs},
    plan::{self, Environment},
    process::NOT_FOUND,
    report::{Conditions, Key, Report, json, table::tables},
    scenario::{Times, iperf2},
    system::{Muxgate, System},
    verdict::verdicts,
};

/// Seconds of full duplex in the first round with --gate.
const GATE_DUPLEX_SECONDS: u32 = 60;

/// Measures the selection, prints the tables and the verdicts, and writes the JSON lines.
///
/// # Errors
/// If no measurement is possible at all. The failure of one system is no error: the row of the
/// system then has the reason.
pub(crate) fn run(args: &RunArgs) -> Result<ExitCode> {
    let (output, logs) = prepare(args)?;
    let programs = args.programs()?;
    let environments = plan::environments(&args.selection());
    let mut report = Report {
        conditions: conditions(args, &programs)?,
        rows: Vec::new(),
    };
    let rounds = report.conditions.rounds;
    println!("{}", report.conditions.heading());
    let estimate = estimate(args, rounds, &environments);
    println!("about {:.0} minutes", (estimate / 60.0).ceil());
    let mut progress = Progress {
        start: Instant::now(),
        estimate,
        rounds,
    };
    for environment in &environments {
        measure(
            args,
            environment,
            &programs,
            &logs,
            &mut report,
            &mut progress,
        );
        json::write(&report, &output)?;
    }
    println!("{}", tables(&report));
    if let Some(line) = report.foreign_work() {
        println!("{line}");
    }
    let verdicts = verdicts(&report);
    verdicts
        .iter()
        .for_each(|verdict| println!("{}", verdict.text));
    println!("JSON lines: {}", output.display());
    let missed = verdicts.iter().any(|verdict| verdict.is_missed);
    let good = report.is_complete() && !(args.gate && missed);
    Ok(if good {
        ExitCode::from(MET)
    } else {
        ExitCode::from(MISSED)
    })
}

/// Checks that the lab can run on this machine. Returns the file for the JSON lines and the folder
/// for logs.
///
/// # Errors
/// If a requirement is missing. The error names the requirement.
pub(crate) fn prepare(args: &RunArgs) -> Result<(PathBuf, PathBuf)> {
    ensure!(
        geteuid().is_root(),
        "muxlab needs root, because it creates network namespaces"
    );
    let output = args.output();
    let folder = output.parent().context("--output has no folder")?;
    // Makes the path absolute, because some systems change their working directory.
    let folder = path::absolute(folder).context("cannot find the folder of --output")?;
    let logs = folder.join("logs");
    fs::create_dir_all(&logs)
        .with_context(|| format!("cannot create the folder {}", logs.display()))?;
    // Raises the limit of open files. The processes of a run inherit the limit, and gateways with
    // 10,000 streams need it.
    let (_, files) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, files, files)?;
    Ok((output, logs))
}

/// The conditions of all measurements.
///
/// # Errors
/// If iperf is missing, or the number of rounds is too small.
pub(crate) fn conditions(args: &RunArgs, programs: &Programs) -> Result<Conditions> {
    Ok(Conditions {
        iperf2: iperf2::version(&programs.iperf2)?,
        kernel: fs::read_to_string("/proc/sys/kernel/osrelease")?
            .trim()
            .to_owned(),
        cpus: std::thread::available_parallelism().map_or(0, usize::from),
        times: args.times(),
        rounds: args.rounds()?,
    })
}

fn estimate(args: &RunArgs, rounds: u32, environments: &[Environment]) -> f64 {
    (1..=rounds)
        .map(|round| plan::estimate(environments, times(args, round), round, System::is_found))
        .sum()
}

fn times(args: &RunArgs, round: u32) -> Times {
    let times = args.times();
    let duplex_seconds = match args.gate && round == 1 {
        true => GATE_DUPLEX_SECONDS.max(times.duplex_seconds),
        false => times.duplex_seconds,
    };
    Times {
        duplex_seconds,
        ..times
    }
}

/// The state of the progress lines on standard error.
struct Progress {
    start: Instant,
    estimate: f64,
    rounds: u32,
}

impl Progress {
    fn tell(&self, environment: &Environment, round: u32) {
        eprintln!(
            "{}, {}: round {round}/{} done after {} s of about {:.0} s",
            environment.topology.name(),
            environment.congestion_control,
            self.rounds,
            self.start.elapsed().as_secs(),
            self.estimate
        );
    }
}

fn measure(
    args: &RunArgs,
    environment: &Environment,
    programs: &Programs,
    logs: &Path,
    report: &mut Report,
    progress: &mut Progress,
) {
    let (topology, control) = (environment.topology, &environment.congestion_control);
    let bench = Bench::build(topology, control, programs, logs).map_err(|e| format!("{e:#}"));
    for round in 1..=progress.rounds {
        let cells = environment.cells.iter();
        for cell in cells.filter(|cell| round <= cell.scenario.rounds_max()) {
            for &system in &cell.systems {
                let row = report.row_mut(Key {
                    topology,
                    congestion_control: control.clone(),
                    scenario: cell.scenario,
                    connections: cell.connections,
                    system,
                });
                if row.reason.is_some() {
                    continue;
                }
                let measured = bench.as_ref().map_err(Clone::clone).and_then(|bench| {
                    bench
                        .measure(
                            Muxgate {
                                program: &programs.muxgate,
                                files: None,
                            },
                            cell.scenario,
                            system,
                            cell.connections,
                            times(args, round),
                        )
                        .map_err(|error| format!("{error:#}"))
                });
                match measured {
                    Ok(measured) => row.add(measured),
                    Err(reason) => {
                        if reason != NOT_FOUND {
                            let (scenario, name) = (cell.scenario.name(), system.name());
                            eprintln!(
                                "{name}, {scenario}, {} connections: {reason}",
                                cell.connections
                            );
                        }
                        row.reason = Some(reason);
                    }
                }
            }
        }
        progress.tell(environment, round);
    }
}
