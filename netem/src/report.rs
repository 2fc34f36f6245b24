//! The report: the emulated delay, its backend, and the probe's measurements.
//!
//! The module has the JSON file that `muxwan run` writes after a successful probe. `muxwan check`,
//! the container's startup probe, reads the file. A report exists only while its delay is in force.
//! With `--backend netem`, the delay and the report stay after `muxwan run` has ended. Every start
//! removes the old report first.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::{
    duration::milliseconds,
    plan::{Plan, Scope},
    probe::{self, Measured},
};

/// The backend of the delay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// `tc qdisc ... netem`: delays packets that leave the interface.
    Netem,
    /// The delay line behind an NFQUEUE rule: delays packets that arrive on the interface.
    Nfqueue,
    /// No backend, because the requested path has no impairments.
    None,
}

/// The emulation and its measurements. Times are in milliseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The backend of the delay.
    pub backend: Backend,
    /// The interface on which packets are delayed.
    pub interface: String,
    /// The ports that are delayed. Present only if no other traffic is delayed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ports: Option<Vec<u16>>,
    /// The ports that are not delayed. Present only if all other traffic is delayed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub except_ports: Option<Vec<u16>>,
    /// Whether IPv6 is delayed as well. If not, the interface has no IPv6 address.
    pub ipv6: bool,
    /// The requested one-way delay.
    pub asked_milliseconds: f64,
    /// The median one-way delay of the probes on `lo`.
    pub measured_milliseconds: f64,
    /// Greatest permitted difference between requested and measured delay.
    pub tolerance_milliseconds: f64,
    /// The requested jitter, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter_milliseconds: Option<f64>,
    /// The requested loss.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_loss_percent: Option<f64>,
    /// The loss of the probe's packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured_loss_percent: Option<f64>,
    /// The requested rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_mbit_s: Option<f64>,
    /// The rate of the probe's burst.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured_mbit_s: Option<f64>,
    /// Number of probe packets on `lo`; 0 if the requested path has no impairments.
    pub probes: usize,
    /// Number of measurements until a result was within the tolerance.
    pub measurements: usize,
    /// The backends that failed before `backend` worked, with their errors.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<String>,
}

/// There is no valid report.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The file is missing or unreadable.
    #[error("no report yet: {}: {source}", path.display())]
    Missing {
        /// The expected path of the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file is not a report.
    #[error("{} is not a report: {source}", path.display())]
    Unreadable {
        /// The path of the file.
        path: PathBuf,
        /// The parser's error.
        source: serde_json::Error,
    },
    /// The measured delay differs from the requested delay.
    #[error("the measured delay is {measured} ms, not {asked} ms")]
    Off {
        /// Requested delay in milliseconds.
        asked: f64,
        /// Measured delay in milliseconds.
        measured: f64,
    },
}

impl Report {
    /// The report of a plan that `backend` emulates. `measured`: `None` for a path without
    /// impairments.
    #[must_use]
    pub fn new(plan: &Plan, backend: Backend, measured: Option<Measured>, ipv6: bool) -> Self {
        let (ports, except_ports) = match plan.scope() {
            Scope::Ports(ports) => (Some(ports.iter().copied().collect()), None),
            Scope::AllExcept(ports) => (None, Some(ports.iter().copied().collect())),
        };
        let path = plan.impairments();
        Self {
            backend,
            interface: plan.interface().to_owned(),
            ports,
            except_ports,
            ipv6,
            asked_milliseconds: milliseconds(plan.one_way_delay()),
            measured_milliseconds: measured.map_or(0.0, |m| milliseconds(m.one_way_delay)),
            tolerance_milliseconds: milliseconds(probe::tolerance(path)),
            jitter_milliseconds: (!path.jitter.is_zero()).then(|| milliseconds(path.jitter)),
            asked_loss_percent: (!path.loss.is_zero()).then(|| path.loss.percent()),
            measured_loss_percent: measured.and_then(|m| m.loss).map(probe::Loss::percent),
            asked_mbit_s: path.rate.map(|rate| rate.bits_per_second() as f64 / 1e6),
            measured_mbit_s: measured
                .and_then(|m| m.rate)
                .map(|rate| (rate / 1e3).round() / 1e3),
            probes: measured.map_or(0, |_| probe::PROBES),
            measurements: measured.map_or(0, |m| m.measurements),
            refused: Vec::new(),
        }
    }

    /// Writes the report atomically: a reader sees either the whole file or no file.
    ///
    /// # Errors
    /// If the folder cannot be created or written.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let unfinished = path.with_extension("unfinished");
        fs::write(&unfinished, serde_json::to_string(self)? + "\n")?;
        fs::rename(&unfinished, path)
    }
}

/// Removes a report, if it exists.
///
/// # Errors
/// If the report exists and cannot be removed.
pub fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Reads the report and compares its measured delay with the requested delay.
///
/// # Errors
/// See [`CheckError`].
pub fn check(path: &Path) -> Result<Report, CheckError> {
    let text = fs::read_to_string(path).map_err(|source| CheckError::Missing {
        path: path.to_owned(),
        source,
    })?;
    let report: Report = serde_json::from_str(&text).map_err(|source| CheckError::Unreadable {
        path: path.to_owned(),
        source,
    })?;
    let off = (report.measured_milliseconds - report.asked_milliseconds).abs();
    if off > report.tolerance_milliseconds {
        return Err(CheckError::Off {
            asked: report.asked_milliseconds,
            measured: report.measured_milliseconds,
        });
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::impairments::Impairments;

    fn report(measured: Duration) -> Report {
        let scope = Scope::Ports([64000].into());
        let path = Impairments::delay(Duration::from_millis(50));
        let plan = Plan::new("eth0", path, scope).unwrap();
        let measured = Measured {
            one_way_delay: measured,
            loss: None,
            rate: None,
            measurements: 1,
        };
        Report::new(&plan, Backend::Nfqueue, Some(measured), true)
    }

    #[test]
    fn a_report_says_what_was_asked_and_what_was_measured() {
        let text = serde_json::to_string(&report(Duration::from_nanos(50_123_456))).unwrap();
        assert_eq!(
            text,
            r#"{"backend":"nfqueue","interface":"eth0","ports":[64000],"ipv6":true,"asked_milliseconds":50.0,"measured_milliseconds":50.123,"tolerance_milliseconds":1.5,"probes":20,"measurements":1}"#
        );
    }

    #[test]
    fn the_check_passes_with_a_good_report_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("muxwan/report.json");
        assert!(matches!(check(&path), Err(CheckError::Missing { .. })));
        report(Duration::from_millis(51)).write(&path).unwrap();
        assert_eq!(check(&path).unwrap().backend, Backend::Nfqueue);
        report(Duration::from_millis(5)).write(&path).unwrap();
        assert!(matches!(check(&path), Err(CheckError::Off { .. })));
        std::fs::write(&path, "{").unwrap();
        assert!(matches!(check(&path), Err(CheckError::Unreadable { .. })));
    }

    #[test]
    fn removing_a_report_that_is_not_there_is_no_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.json");
        remove(&path).unwrap();
        report(Duration::ZERO).write(&path).unwrap();
        remove(&path).unwrap();
        assert!(!path.exists());
    }
}
