//! What our gateways have to show: targets as data, judged on a report.
//!
//! A target is judged when its row was measured; where the system that it is compared with is not
//! installed or failed, a line says so. All of them hold on the usual congestion control.

use muxbench::statistics::rounded;

use crate::{
    metric::Metric,
    plan::USUAL,
    report::{Report, Row},
    scenario::{STALLED_RECEIVE_BYTES, Scenario},
    system::System,
    topology::Topology,
};

/// What is asked of one row.
#[derive(Debug, Clone, Copy)]
struct Target {
    topology: Topology,
    scenario: Scenario,
    connections: Option<u32>,
    system: System,
    measure: Measure,
    bound: Bound,
}

/// How a row's figure is looked at; of the rounds the median counts, but the most of memory and stalls.
#[derive(Debug, Clone, Copy)]
enum Measure {
    Value(Metric),
    Most(Metric),
    Ratio(Metric, System),
    Added(Metric, System),
    /// The value, divided by the lower of a constant and this part of another system's value.
    OfLower(Metric, f64, f64, System),
}

#[derive(Debug, Clone, Copy)]
enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

/// A judged target.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Verdict {
    pub(crate) is_missed: bool,
    /// A line of the log.
    pub(crate) text: String,
}

/// Judges all targets that the report covers.
pub(crate) fn verdicts(report: &Report) -> Vec<Verdict> {
    targets()
        .iter()
        .filter_map(|target| target.judge(report))
        .flatten()
        .collect()
}

fn targets() -> Vec<Target> {
    let mut all = Vec::new();
    for system in [System::MuxgateJmux, System::MuxgateNative] {
        all.extend(bulk(system));
        all.extend(beside_rates(system));
        all.extend(memory(system));
    }
    all
}

/// Rates: of direct and of jetsocat on loopback, over veth and over the WAN.
fn bulk(system: System) -> Vec<Target> {
    use Bound::{AtLeast, AtMost};
    use Measure::Ratio;
    let rate = |topology, connections, to, least| Target {
        topology,
        scenario: Scenario::BulkIperf2,
        connections: Some(connections),
        system,
        measure: Ratio(Metric::MbitS, to),
        bound: AtLeast(least),
    };
    let (loopback, veth) = (Topology::Loopback, Topology::Veth);
    let (direct, jetsocat, relay) = (System::Direct, System::Jetsocat, System::RelayCopy);
    let mut all = vec![
        rate(Topology::Wan, 1, direct, 0.95),
        rate(Topology::WanTuned, 1, direct, 0.90),
    ];
    if system == System::MuxgateJmux {
        all.extend([
            rate(loopback, 1, direct, 0.60),
            rate(loopback, 10, direct, 0.40),
            rate(loopback, 1, jetsocat, 3.0),
            rate(loopback, 10, jetsocat, 2.5),
            rate(veth, 1, jetsocat, 4.0),
            rate(veth, 10, jetsocat, 4.0),
        ]);
        return all;
    }
    let cpu = |connections| Target {
        measure: Ratio(Metric::CpuSPerGb, jetsocat),
        bound: AtMost(0.35),
        ..rate(loopback, connections, jetsocat, 0.0)
    };
    all.extend([
        rate(loopback, 1, direct, 0.65),
        rate(loopback, 10, direct, 0.35),
        rate(loopback, 1, jetsocat, 3.0),
        rate(loopback, 10, jetsocat, 2.0),
        cpu(1),
        cpu(10),
        rate(veth, 1, jetsocat, 4.5),
        rate(veth, 10, jetsocat, 3.0),
        rate(veth, 1, relay, 1.0),
        rate(veth, 10, relay, 0.75),
    ]);
    all
}

/// Latency, opens, and streams beside streams.
fn beside_rates(system: System) -> Vec<Target> {
    use Bound::{AtLeast, AtMost};
    use Measure::{Added, Most, OfLower, Value};
    let on_loopback = |scenario, connections, measure, bound| Target {
        topology: Topology::Loopback,
        scenario,
        connections,
        system,
        measure,
        bound,
    };
    let direct = System::Direct;
    vec![
        on_loopback(
            Scenario::PingPong,
            Some(0),
            Added(Metric::P50Us, direct),
            AtMost(100.0),
        ),
        on_loopback(
            Scenario::PingPong,
            Some(1),
            Value(Metric::P99Us),
            AtMost(8_000.0),
        ),
        on_loopback(
            Scenario::Opens,
            None,
            OfLower(Metric::OpensS, 10_000.0, 0.5, direct),
            AtLeast(1.0),
        ),
        on_loopback(
            Scenario::StalledReader,
            None,
            Value(Metric::OthersPercent),
            AtLeast(95.0),
        ),
        on_loopback(Scenario::Fairness, None, Value(Metric::Jain), AtLeast(0.98)),
        on_loopback(
            Scenario::FullDuplex,
            None,
            Value(Metric::DuplexPercent),
            AtLeast(90.0),
        ),
        on_loopback(
            Scenario::FullDuplex,
            None,
            Most(Metric::StalledSeconds),
            AtMost(0.0),
        ),
    ]
}

/// Peak memory of each of the two gateways.
fn memory(system: System) -> Vec<Target> {
    let stalled_mib = (STALLED_RECEIVE_BYTES >> 20) as f64 + 16.0;
    let bounds = [
        (Scenario::BulkIperf2, Some(10), 32.0),
        (Scenario::IdleStreams, None, 64.0),
        (Scenario::StalledStreams, None, stalled_mib),
    ];
    let each = |(scenario, connections, mib)| {
        [Metric::EntryRssMib, Metric::ExitRssMib].map(|metric| Target {
            topology: Topology::Loopback,
            scenario,
            connections,
            system,
            measure: Measure::Most(metric),
            bound: Bound::AtMost(mib),
        })
    };
    bounds.into_iter().flat_map(each).collect()
}

impl Target {
    /// One verdict a row; `None` when no row was measured.
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
            && key.congestion_control == USUAL
            && key.scenario == self.scenario
            && self
                .connections
                .is_none_or(|count| count == key.connections)
            && key.system == self.system
    }

    fn judge_row(&self, report: &Report, row: &Row) -> Option<Verdict> {
        let key = &row.key;
        let what = format!(
            "{}, {}, {} x {}, {}",
            key.system.name(),
            key.topology.name(),
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
            Self::OfLower(metric, constant, part, of) => {
                let other = report.beside(row, of)?.median(metric)?;
                Some(row.median(metric)? / constant.min(part * other))
            }
        }
    }

    fn compared_with(self) -> Option<System> {
        match self {
            Self::Value(_) | Self::Most(_) => None,
            Self::Ratio(_, to) | Self::Added(_, to) | Self::OfLower(_, _, _, to) => Some(to),
        }
    }

    fn name(self) -> String {
        match self {
            Self::Value(metric) => metric.unit().to_owned(),
            Self::Most(metric) => format!("most {}", metric.unit()),
            Self::Ratio(metric, to) => format!("{} of {}", metric.unit(), to.name()),
            Self::Added(metric, to) => format!("{} added to {}", metric.unit(), to.name()),
            Self::OfLower(metric, constant, part, of) => format!(
                "{} of the lower of {constant} and {:.0} % of {}",
                metric.unit(),
                100.0 * part,
                of.name()
            ),
        }
    }
}
