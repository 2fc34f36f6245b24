//! Judges a report by the targets of muxgate, which [`targets`] lists.
//!
//! The module judges a target if its row was measured. If the system for comparison is not
//! installed or failed, a line reports the reason.

mod targets;

use muxbench::statistics::rounded;

use crate::{
    metric::Metric,
    report::{Report, Row},
    scenario::Scenario,
    system::System,
    topology::Topology,
};

/// A target for one row.
#[derive(Debug, Clone, Copy)]
struct Target {
    topology: Topology,
    congestion_control: &'static str,
    scenario: Scenario,
    connections: Option<u32>,
    system: System,
    measure: Measure,
    bound: Bound,
}

/// The value that is judged: the median of the rounds, or the maximum for memory and stalls.
#[derive(Debug, Clone, Copy)]
enum Measure {
    Value(Metric),
    Most(Metric),
    Ratio(Metric, System),
    Added(Metric, System),
    /// The value in microseconds minus the round-trip time of the idle direct path.
    BeyondRtt(Metric),
    /// The value divided by the lower of two values: a constant, and a share of another system's
    /// value.
    OfLower(Metric, f64, f64, System),
}

#[derive(Debug, Clone, Copy)]
enum Bound {
    AtLeast(f64),
    AtMost(f64),
    Below(f64),
}

/// A judged target.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Verdict {
    pub(crate) is_missed: bool,
    /// The line that reports the verdict.
    pub(crate) text: String,
}

/// Judges all targets that the report covers.
pub(crate) fn verdicts(report: &Report) -> Vec<Verdict> {
    targets::all()
        .iter()
        .filter_map(|target| target.judge(report))
        .flatten()
        .collect()
}

impl Target {
    /// One verdict per row; `None` if no row was measured.
    fn judge(&self, report: &Report) -> Option<Vec<Verdict>> {
        let verdicts: Vec<Verdict> = report
            .rows
            .iter()
            .filter(|row| self.is_about(row))
            .filter_map(|row| self.judge_row(report, row))
            .collect();
        (!verdicts.is_empty()).then_some(verdicts)
    }

    fn is_about(&self, row: &Row) -> bool {
        let key = &row.key;
        key.topology == self.topology
            && key.congestion_control == self.congestion_control
            && key.scenario == self.scenario
            && self
                .connections
                .is_none_or(|count| count == key.connections)
            && key.system == self.system
    }

    fn judge_row(&self, report: &Report, row: &Row) -> Option<Verdict> {
        let key = &row.key;
        let what = format!(
            "{}, {}, {}, {} x {}, {}",
            key.system.name(),
            key.topology.name(),
            key.congestion_control,
            key.scenario.name(),
            key.connections,
            self.measure.name()
        );
        let Some(value) = self.measure.of(report, row) else {
            let other = report.beside(row, self.measure.compared_with()?)?;
            let reason = other.reason.as_ref()?;
            return Some(Verdict {
                is_missed: false,
                text: format!("{what}: not judged ({}: {reason})", other.key.system.name()),
            });
        };
        let (is_met, wanted) = match self.bound {
            Bound::AtLeast(least) => (value >= least, format!(">= {least}")),
            Bound::AtMost(most) => (value <= most, format!("<= {most}")),
            Bound::Below(bound) => (value < bound, format!("< {bound}")),
        };
        let verdict = if is_met { "met" } else { "MISSED" };
        let value = rounded(value, 3);
        Some(Verdict {
            is_missed: !is_met,
            text: format!("{what}: {verdict} ({value}, wanted {wanted})"),
        })
    }
}

impl Measure {
    fn of(self, report: &Report, row: &Row) -> Option<f64> {
        match self {
            Self::Value(metric) => row.median(metric),
            Self::Most(metric) => Some(row.spread(metric)?.max),
            Self::Ratio(metric, to) => report.ratio(row, metric, to),
            Self::Added(metric, to) => report.added(row, metric, to),
            Self::BeyondRtt(metric) => Some(row.median(metric)? - 1e3 * row.rtt_ms()),
            Self::OfLower(metric, constant, part, of) => {
                let other = report.beside(row, of)?.median(metric)?;
                Some(row.median(metric)? / constant.min(part * other))
            }
        }
    }

    fn compared_with(self) -> Option<System> {
        match self {
            Self::Value(_) | Self::Most(_) | Self::BeyondRtt(_) => None,
            Self::Ratio(_, to) | Self::Added(_, to) | Self::OfLower(_, _, _, to) => Some(to),
        }
    }

    fn name(self) -> String {
        match self {
            Self::Value(metric) => metric.unit().to_owned(),
            Self::Most(metric) => format!("most {}", metric.unit()),
            Self::Ratio(metric, to) => format!("{} of {}", metric.unit(), to.name()),
            Self::Added(metric, to) => format!("{} added to {}", metric.unit(), to.name()),
            Self::BeyondRtt(metric) => format!("{} beyond the RTT", metric.unit()),
            Self::OfLower(metric, constant, part, of) => format!(
                "{} of the lower of {constant} and {:.0} % of {}",
                metric.unit(),
                100.0 * part,
                of.name()
            ),
        }
    }
}

#[cfg(test)]
mod tests;
