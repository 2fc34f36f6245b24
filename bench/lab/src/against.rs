//! `muxlab --against OTHER`: checks whether this build of muxgate is slower than another build.
//!
//! The files and flags of another commit's gateways may differ. So the lab of that commit, which is
//! next to its muxgate, writes the configuration files of its own gateways ([`Other`]). This lab
//! starts the gateways of both builds, and runs the same load through both.
//!
//! The order of the runs: each environment has rounds, each round has every cell, and each cell
//! runs both builds one after the other, as a pair. [`paired`] judges the pairs, and
//! [`plan::paired`] lists the measurements. If a row has no figures in a round, the row misses its
//! target.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Instant,
};

use anyhow::{Context, Result, anyhow, ensure};
use muxbench::statistics::{rounded, spread};
use serde::Serialize;

use crate::{
    bench::{Bench, Measured},
    cli::{MET, MISSED, RunArgs},
    metric::Metric,
    paired::{self, Build, Interval, RATIO_MIN, interval, order},
    plan::{self, Cell, Environment},
    process,
    report::foreign_work,
    run::{conditions, prepare},
    scenario::Times,
    system::{Muxgate, System},
};

/// Decimal places in the JSON lines.
const DIGITS: u32 = 4;
/// The durations in the run of the other lab that only writes files.
const BRIEF: Times = Times {
    seconds: 1,
    warm_up_seconds: 1,
    duplex_seconds: 1,
};
/// Width of the column with the names of rows.
const NAME_WIDTH: usize = 60;

/// Measures both builds, prints a line for each row, and writes the JSON lines.
///
/// # Errors
/// If no measurement is possible at all. The failure of one run is no error: the row of the run
/// then misses its target.
pub(crate) fn run(args: &RunArgs, other: &Path) -> Result<ExitCode> {
    let (output, logs) = prepare(args)?;
    let mut programs = args.programs()?;
    let other = Other::find(other, logs.join("other"))?;
    programs.muxgate = fs::canonicalize(&programs.muxgate)
        .with_context(|| format!("cannot find {}", programs.muxgate.display()))?;
    let environments = plan::paired(&args.selection());
    let systems = environments.iter().flat_map(|e| &e.cells);
    for system in systems.flat_map(|cell| &cell.systems) {
        let name = system.name();
        ensure!(
            system.is_muxgate(),
            "invalid --systems {name}: --against compares builds of muxgate, but {name} does not run muxgate"
        );
    }
    let conditions = conditions(args, &programs)?;
    println!("{}", conditions.heading());
    let (times, rounds) = (conditions.times, conditions.rounds);
    let once = |times| plan::estimate(&environments, times, 1, |_| true);
    let estimate = 2.0 * f64::from(rounds) * once(times) + once(BRIEF);
    println!("about {:.0} minutes", (estimate / 60.0).ceil());
    let start = Instant::now();
    let mut rows: Vec<Row> = environments.iter().flat_map(rows_of).collect();
    let mut foreign_shares = Vec::new();
    for environment in &environments {
        let (topology, control) = (environment.topology, &environment.congestion_control);
        let bench = Bench::build(topology, control, &programs, &logs)?;
        for row in rows.iter_mut().filter(|row| row.is_in(environment)) {
            let files = other.write_files(row);
            row.files_of_other = files.map_err(|error| format!("{error:#}"));
        }
        for round in 1..=rounds {
            for row in rows.iter_mut().filter(|row| row.is_in(environment)) {
                let muxgates = (programs.muxgate.as_path(), other.muxgate.as_path());
                foreign_shares.extend(row.measure(&bench, muxgates, round, times));
            }
            eprintln!(
                "{}, {control}: round {round}/{rounds} done after {} s of about {estimate:.0} s",
                topology.name(),
                start.elapsed().as_secs()
            );
        }
    }
    let lines: Vec<Line<'_>> = rows.iter().flat_map(Row::lines).collect();
    write(&lines, &output)?;
    println!("{}", table(&lines, rounds));
    if let Some(line) = foreign_work(&foreign_shares) {
        println!("{line}");
    }
    println!("JSON lines: {}", output.display());
    Ok(match lines.iter().all(|line| line.is_met) {
        true => ExitCode::from(MET),
        false => ExitCode::from(MISSED),
    })
}

/// The other build: its muxgate, and the lab of the same tree.
struct Other {
    muxgate: PathBuf,
    lab: PathBuf,
    /// The folder for the results of the other lab.
    folder: PathBuf,
}

impl Other {
    fn find(muxgate: &Path, folder: PathBuf) -> Result<Self> {
        // Makes the path absolute, because the gateways have their own working directory.
        let muxgate = fs::canonicalize(muxgate).with_context(|| {
            format!(
                "cannot find the other muxgate, the path in --against: {}",
                muxgate.display()
            )
        })?;
        let lab = muxgate.with_file_name("muxlab");
        ensure!(
            lab.is_file(),
            "cannot find the lab of the other muxgate, {}: build it from the same commit (`cargo build --release --package muxtunnel-bench-lab`), because it writes the files of the other gateways",
            lab.display()
        );
        Ok(Self {
            muxgate,
            lab,
            folder,
        })
    }

    /// Runs the other lab for the row, as briefly as possible. Returns the folder in which it has
    /// left the configuration files of its gateways.
    fn write_files(&self, row: &Row) -> Result<PathBuf> {
        let folder = self.folder.join(row.folder());
        fs::create_dir_all(&folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        let log = folder.join("muxlab.log");
        let file =
            File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
        let mut command = process::command(&self.lab, &self.arguments(row, &folder))?;
        let status = command.stdout(file.try_clone()?).stderr(file).status();
        let status = status.with_context(|| format!("cannot start {}", self.lab.display()))?;
        ensure!(
            status.success(),
            "the lab of the other muxgate cannot measure the row: see {}",
            log.display()
        );
        Ok(folder.join("logs").join(row.system.name()))
    }

    fn arguments(&self, row: &Row, folder: &Path) -> Vec<String> {
        let (muxgate, output) = (self.muxgate.display(), folder.join("row.jsonl"));
        let (cell, control) = (&row.cell, &row.congestion_control);
        let mut line = format!(
            "--muxgate={muxgate} --output={} --topologies={} --congestion-control={control} --scenarios={} \
             --systems={} --rounds=1 --seconds={} --warm-up-seconds={} --duplex-seconds={}",
            output.display(),
            row.topology,
            cell.scenario.name(),
            row.system.name(),
            BRIEF.seconds,
            BRIEF.warm_up_seconds,
            BRIEF.duplex_seconds,
        );
        if cell.scenario.is_bulk() {
            line.push_str(&format!(" --connections={}", cell.connections));
        }
        line.split(' ').map(str::to_owned).collect()
    }
}

/// One system in one cell, measured with both builds.
#[derive(Debug)]
struct Row {
    topology: &'static str,
    congestion_control: String,
    cell: Cell,
    system: System,
    /// The folder with the configuration files of the other gateways, or why it has none.
    files_of_other: Result<PathBuf, String>,
    this: Vec<Measured>,
    other: Vec<Measured>,
    /// Why there are no figures from all rounds.
    reason: Option<String>,
}

fn rows_of(environment: &Environment) -> Vec<Row> {
    let row = |cell: &Cell, system| Row {
        topology: environment.topology.name(),
        congestion_control: environment.congestion_control.clone(),
        cell: cell.clone(),
        system,
        files_of_other: Err("the other lab has not run".to_owned()),
        this: Vec::new(),
        other: Vec::new(),
        reason: None,
    };
    let cells = environment.cells.iter();
    cells
        .flat_map(|cell| cell.systems.iter().map(move |system| row(cell, *system)))
        .collect()
}

impl Row {
    /// Measures the builds `this` and `other` once, in the order that [`order`] gives for `round`.
    /// After a failure it measures nothing more. Returns, for each measurement, the share of the
    /// machine that other programs used.
    fn measure(
        &mut self,
        bench: &Bench<'_>,
        (this, other): (&Path, &Path),
        round: u32,
        times: Times,
    ) -> Vec<f64> {
        let mut foreign_shares = Vec::new();
        for build in order(round) {
            if self.reason.is_some() {
                break;
            }
            match self.measure_one(bench, build, (this, other), times) {
                Ok(measured) => {
                    foreign_shares.push(measured.foreign_share);
                    self.add(build, measured);
                }
                Err(error) => self.reason = Some(format!("{build:?} muxgate: {error:#}")),
            }
        }
        foreign_shares
    }

    fn measure_one(
        &self,
        bench: &Bench<'_>,
        build: Build,
        (this, other): (&Path, &Path),
        times: Times,
    ) -> Result<Measured> {
        let files = match build {
            Build::This => None,
            Build::Other => Some(self.files_of_other.as_ref().map_err(|e| anyhow!("{e}"))?),
        };
        let muxgate = Muxgate {
            program: match build {
                Build::This => this,
                Build::Other => other,
            },
            files: files.map(PathBuf::as_path),
        };
        let (scenario, connections) = (self.cell.scenario, self.cell.connections);
        bench.measure(muxgate, scenario, self.system, connections, times)
    }

    /// The name of a folder for the row.
    fn folder(&self) -> String {
        let (topology, control) = (self.topology, &self.congestion_control);
        let (scenario, connections) = (self.cell.scenario.name(), self.cell.connections);
        let system = self.system.name();
        format!("{topology}-{control}-{scenario}-{connections}-{system}")
    }

    fn is_in(&self, environment: &Environment) -> bool {
        self.topology == environment.topology.name()
            && self.congestion_control == environment.congestion_control
    }

    fn add(&mut self, build: Build, measured: Measured) {
        match build {
            Build::This => self.this.push(measured),
            Build::Other => self.other.push(measured),
        }
    }

    /// The lines of the row: the main figure of the scenario and, for bulk, the CPU time per byte.
    fn lines(&self) -> Vec<Line<'_>> {
        let scenario = self.cell.scenario;
        let cost = scenario.is_bulk().then_some(Metric::CpuSPerGb);
        let metrics = [Some(scenario.metric()), cost];
        let metrics = metrics.into_iter().flatten();
        metrics.map(|metric| self.line(metric)).collect()
    }

    fn line(&self, metric: Metric) -> Line<'_> {
        let figures = |measured: &[Measured]| -> Vec<f64> {
            let figures = measured.iter().map(|measured| &measured.figures);
            let of = figures.map(|figures| figures.get(&metric).copied().unwrap_or(f64::NAN));
            of.collect()
        };
        let (this, other) = (figures(&self.this), figures(&self.other));
        let pairs = this.iter().zip(&other);
        let ratios: Vec<f64> = pairs
            .map(|(this, other)| paired::ratio(metric, *this, *other))
            .collect();
        let found = match self.reason {
            None => interval(&ratios),
            Some(_) => None,
        };
        let median = |values: &[f64]| spread(values).map(|spread| rounded(spread.median, DIGITS));
        let rounded = |of: fn(&Interval) -> f64| found.as_ref().map(|i| rounded(of(i), DIGITS));
        Line {
            r#type: "pair",
            system: self.system.name(),
            scenario: self.cell.scenario.name(),
            topology: self.topology,
            congestion_control: &self.congestion_control,
            connections: self.cell.connections,
            metric,
            pairs: ratios.len(),
            this: median(&this),
            other: median(&other),
            ratio: rounded(|interval| interval.median),
            low: rounded(|interval| interval.low),
            high: rounded(|interval| interval.high),
            is_met: found.is_some_and(|interval| interval.is_met()),
            reason: match (found, &self.reason) {
                (Some(_), _) => None,
                (None, Some(reason)) => Some(reason.clone()),
                (None, None) => Some("some rounds have no usable figures".to_owned()),
            },
        }
    }
}

/// One figure of a row.
#[derive(Debug, Serialize)]
struct Line<'a> {
    r#type: &'static str,
    system: String,
    scenario: &'static str,
    topology: &'static str,
    congestion_control: &'a str,
    connections: u32,
    metric: Metric,
    pairs: usize,
    /// The median of this build, in the unit of `metric`.
    this: Option<f64>,
    /// The median of the other build.
    other: Option<f64>,
    /// The median ratio of the pairs. A larger ratio is better.
    ratio: Option<f64>,
    /// The lower end of the ratio's 95 % interval.
    low: Option<f64>,
    /// The upper end of the ratio's 95 % interval.
    high: Option<f64>,
    is_met: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// The table: a line for each figure.
fn table(lines: &[Line<'_>], pairs: u32) -> String {
    let mut text = format!(
        "\nratios of this build to the other build, median of {pairs} pairs (95 % interval); above 1, this build is \
         faster or costs less; a target is met if the interval reaches {RATIO_MIN}\n"
    );
    for line in lines {
        let name = format!(
            "{}, {}, {}, {} x {}, {}",
            line.system,
            line.topology,
            line.congestion_control,
            line.scenario,
            line.connections,
            line.metric.unit()
        );
        let verdict = match line.is_met {
            true => "met",
            false => "MISSED",
        };
        let figures = match (line.ratio, line.low, line.high, &line.reason) {
            (Some(ratio), Some(low), Some(high), _) => {
                format!("{ratio:.3} ({low:.3}..{high:.3})")
            }
            (_, _, _, reason) => reason.clone().unwrap_or_default(),
        };
        text.push_str(&format!("{name:<NAME_WIDTH$}  {figures}  {verdict}\n"));
    }
    text
}

/// Writes the lines, which replace the lines of an earlier run.
fn write(lines: &[Line<'_>], path: &Path) -> Result<()> {
    let mut text = String::new();
    for line in lines {
        text.push_str(&serde_json::to_string(line)?);
        text.push('\n');
    }
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        bench::Basis, metric::Figures, plan::Selection, scenario::Scenario, topology::Topology,
    };

    /// A row of bulk with these rates of the builds. Both builds need the same CPU time per byte.
    fn row(this: &[f64], other: &[f64]) -> Row {
        let measured = |mbit_s: &f64| Measured {
            figures: Figures::from([(Metric::MbitS, *mbit_s), (Metric::CpuSPerGb, 0.5)]),
            foreign_share: 0.0,
            basis: Basis::default(),
        };
        let environments = plan::paired(&Selection {
            topologies: Some(vec![Topology::Veth]),
            congestion_controls: vec!["cubic".to_owned()],
            scenarios: Some(vec![Scenario::BulkIperf2]),
            connections: Some(vec![10]),
            ..Selection::default()
        });
        let mut row = rows_of(&environments[0]).remove(0);
        row.this = this.iter().map(measured).collect();
        row.other = other.iter().map(measured).collect();
        row
    }

    #[test]
    fn a_slower_build_is_missed_in_its_rate_and_met_in_its_cost() {
        let slower = row(&[9_000.0; 9], &[10_000.0; 9]);
        let lines = slower.lines();
        assert_eq!(
            table(&lines, 9),
            "\nratios of this build to the other build, median of 9 pairs (95 % interval); above 1, this build is \
             faster or costs less; a target is met if the interval reaches 0.97\n\
             muxgate-native, veth, cubic, bulk-iperf2 x 10, Gbit/s         0.900 (0.900..0.900)  \
             MISSED\n\
             muxgate-native, veth, cubic, bulk-iperf2 x 10, CPU-s/GB       1.000 (1.000..1.000)  \
             met\n"
        );
    }

    #[test]
    fn pairs_cancel_what_slows_both_builds() {
        let rates: Vec<f64> = (1..=9).map(|round| 1_000.0 * f64::from(round)).collect();
        let row = row(&rates, &rates);
        assert_eq!(row.lines()[0].ratio, Some(1.0));
        assert_eq!(row.lines()[0].low, Some(1.0));
    }

    #[test]
    fn a_row_that_failed_or_lacks_a_round_is_missed_with_its_reason() {
        let short = row(&[10.0; 8], &[10.0; 8]);
        assert!(short.lines().iter().all(|line| !line.is_met));
        let mut failed = row(&[10.0; 9], &[10.0; 9]);
        failed.reason = Some("This muxgate: a gateway has ended".to_owned());
        let lines = failed.lines();
        assert!(lines.iter().all(|line| !line.is_met));
        assert!(table(&lines, 9).contains("This muxgate: a gateway has ended  MISSED"));
    }

    #[test]
    fn the_json_line_names_the_figure_and_both_medians() {
        let row = row(&[12_000.0; 9], &[10_000.0; 9]);
        let line = serde_json::to_value(&row.lines()[0]).unwrap();
        assert_eq!(line["metric"], "mbit_s");
        assert_eq!(
            (&line["this"], &line["other"]),
            (&12_000.0.into(), &10_000.0.into())
        );
        assert_eq!(line["ratio"], 1.2);
        assert_eq!(line["is_met"], true);
    }
}
