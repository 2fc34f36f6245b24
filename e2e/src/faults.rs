//! Faults, and what they cost those who use a tunnel: connections that fail, streams that are lost, seconds.
//!
//! A fault is a function ([`ALL`] lists them): it has a namespace of its own with a tunnel of two entries and two exits
//! under a [`load`](crate::pods::load), does something to the cluster, waits until everything is as it was, and returns
//! an [`Outcome`]. It is over within a bound, and puts back what it took away whether or not it succeeds. The binary
//! `faults` (`make faults`) runs all of them and writes the table; `tests/e2e/faults.rs` runs the short form of some.
//! What is judged here is losses where none has to be: a wrong byte, an end that looks like a good one, a connection
//! that fails once all is whole, and any that fails while gateways are replaced in order. Times are reported and never
//! judged.

pub mod control_plane;
pub mod gateways;
mod site;
mod table;

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use anyhow::Result;
use muxtunnel_bench_api::load::{Failures, Report};
use serde::Serialize;

use crate::cluster::Cluster;

pub use table::table;

/// Where a fault happens, and how long its parts take.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    /// The cluster.
    pub cluster: Cluster,
    /// Seconds of load at least. The load always outlasts the fault.
    pub load_seconds: u32,
    /// Seconds that something is away, where the fault is that it is away.
    pub away_seconds: u32,
}

/// What a fault cost.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// What became of all connections; none where the fault is not about traffic.
    pub load: Option<Report>,
    /// Seconds from the fault to the last connection that failed, or stream that was lost; none where none was.
    pub failing_seconds: Option<f64>,
    /// Seconds from the fault until everything is in its requested state again.
    pub whole_seconds: f64,
    /// What else there is to say.
    pub note: String,
}

/// A fault.
pub struct Fault {
    /// What is done, in a few words.
    pub name: &'static str,
    /// Within this it is over.
    pub within: Duration,
    /// How often it is done: outcomes are added up, times are the longest.
    pub runs: u32,
    /// Its length.
    pub scale: Scale,
    run: Run,
}

type Run = fn(Scale) -> Pin<Box<dyn Future<Output = Result<Outcome>>>>;

/// All faults, in the order of the table.
pub const ALL: &[Fault] = &[
    fault("an entry's process killed (SIGKILL)", 60, 0, |scale| {
        Box::pin(gateways::process_killed("entry", scale))
    }),
    fault("an exit's process killed (SIGKILL)", 60, 0, |scale| {
        Box::pin(gateways::process_killed("exit", scale))
    }),
    fault("an entry pod deleted, grace 0", 60, 0, |scale| {
        Box::pin(gateways::pod_deleted("entry", Some(0), scale))
    }),
    fault("an exit pod deleted, grace 0", 60, 0, |scale| {
        Box::pin(gateways::pod_deleted("exit", Some(0), scale))
    }),
    fault("an entry pod deleted", 60, 0, |scale| {
        Box::pin(gateways::pod_deleted("entry", None, scale))
    }),
    fault("an exit pod deleted", 60, 0, |scale| {
        Box::pin(gateways::pod_deleted("exit", None, scale))
    }),
    fault("entries restarted one by one", 150, 0, |scale| {
        Box::pin(gateways::restarted("entry", scale))
    })
    .five_times(),
    fault("exits restarted one by one", 150, 0, |scale| {
        Box::pin(gateways::restarted("exit", scale))
    })
    .five_times(),
    fault("another sysctl: both sides rolled", 150, 0, |scale| {
        Box::pin(gateways::sysctl_changed(scale))
    }),
    fault("another image: both sides rolled", 150, 0, |scale| {
        Box::pin(gateways::image_changed(scale))
    }),
    fault("own certificates renewed every 10 s", 150, 0, |scale| {
        Box::pin(gateways::certificates_renewed(scale))
    }),
    fault("issued certificates, of 3 minutes", 300, 0, |scale| {
        Box::pin(gateways::certificates_of_three_minutes(scale))
    }),
    fault("a Deployment edited by hand", 90, 0, |scale| {
        Box::pin(control_plane::deployment_edited(scale))
    }),
    fault("the leading operator killed (SIGKILL)", 60, 0, |scale| {
        Box::pin(control_plane::leader_killed(scale))
    }),
    fault("no operator for 2 minutes", 150, 120, |scale| {
        Box::pin(control_plane::operator_away(scale))
    }),
    fault("no API server for 60 s", 150, 60, |scale| {
        Box::pin(control_plane::api_server_away(scale))
    }),
    fault("the node's kubelet restarted", 60, 0, |scale| {
        Box::pin(control_plane::kubelet_restarted(scale))
    }),
    fault("bad objects of every kind", 60, 0, |scale| {
        Box::pin(control_plane::bad_objects(scale))
    }),
    fault("200 tunnels at once", 0, 0, |_| {
        Box::pin(control_plane::many_tunnels(200))
    }),
];

/// A fault and its bound: what comes before and behind the load takes minutes at most.
const fn fault(name: &'static str, load_seconds: u32, away_seconds: u32, run: Run) -> Fault {
    Fault {
        name,
        within: Duration::from_secs(600 + load_seconds as u64),
        runs: 1,
        scale: Scale {
            cluster: Cluster::First,
            load_seconds,
            away_seconds,
        },
        run,
    }
}

impl Fault {
    const fn five_times(mut self) -> Self {
        self.runs = 5;
        self
    }

    /// Does it, as often as is asked for.
    ///
    /// # Errors
    /// If it cannot be done, is not over in time, or something is not as it was afterwards.
    pub async fn run(&self) -> Result<Outcome> {
        let mut all: Option<Outcome> = None;
        for _ in 0..self.runs {
            let outcome = tokio::time::timeout(self.within, (self.run)(self.scale)).await??;
            all = Some(match all {
                Some(all) => all.and(&outcome),
                None => outcome,
            });
        }
        all.ok_or_else(|| anyhow::anyhow!("{} is done 0 times", self.name))
    }
}

impl Outcome {
    /// Two runs of one fault.
    #[must_use]
    pub fn and(mut self, other: &Self) -> Self {
        if let (Some(load), Some(more)) = (&mut self.load, &other.load) {
            add(load, more);
        }
        let seconds = [self.failing_seconds, other.failing_seconds];
        self.failing_seconds = seconds.into_iter().flatten().max_by(f64::total_cmp);
        self.whole_seconds = self.whole_seconds.max(other.whole_seconds);
        self
    }
}

fn add(load: &mut Report, more: &Report) {
    load.begun += more.begun;
    load.last_begun_unix_ms = load.last_begun_unix_ms.max(more.last_begun_unix_ms);
    load.opens += more.opens;
    load.streams += more.streams;
    load.slowest_ms = load.slowest_ms.max(more.slowest_ms);
    for (into, from) in [
        (&mut load.failed, &more.failed),
        (&mut load.lost, &more.lost),
    ] {
        for (how, failures) in from {
            let sum = into.entry(*how).or_insert(Failures {
                count: 0,
                ..*failures
            });
            sum.count += failures.count;
            sum.first_unix_ms = sum.first_unix_ms.min(failures.first_unix_ms);
            sum.last_unix_ms = sum.last_unix_ms.max(failures.last_unix_ms);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muxtunnel_bench_api::load::Failure;

    #[test]
    fn runs_of_one_fault_are_added_up_and_times_are_the_longest() {
        let outcome = |resets: u64, seconds: f64| {
            let mut load = Report {
                opens: 100,
                streams: 10,
                slowest_ms: resets,
                ..Report::default()
            };
            for _ in 0..resets {
                Report::count(&mut load.failed, Failure::Reset, 1);
            }
            Outcome {
                load: Some(load),
                failing_seconds: (resets > 0).then_some(seconds),
                whole_seconds: seconds,
                note: String::new(),
            }
        };
        let both = outcome(0, 7.0).and(&outcome(3, 5.0));
        let load = both.load.unwrap();
        assert_eq!((load.opens, load.streams, load.slowest_ms), (200, 20, 3));
        assert_eq!((load.failed_opens(), load.lost_streams()), (3, 0));
        assert_eq!((both.failing_seconds, both.whole_seconds), (Some(5.0), 7.0));
    }

    #[test]
    fn names_fit_the_table() {
        for fault in ALL {
            assert!(fault.name.len() <= table::NAME_BYTES, "{}", fault.name);
        }
    }
}
