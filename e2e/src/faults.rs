//! Faults, and their cost for users of a tunnel: failed connections, lost streams, and the time to
//! recover.
//!
//! A fault is a function. [`ALL`] lists all faults. A fault has its own namespace. Most faults have
//! a tunnel of two entries and two exits under a [`load`](crate::pods::load) there, or a tunnel of
//! IP packets under ping. The function changes the cluster, waits until the cluster has recovered,
//! and returns an [`Outcome`]. A fault has a time-out, and always restores removed components. The
//! binary `faults` (`make faults`) runs all faults and writes the table. `tests/e2e/faults.rs` runs
//! short forms of some faults.
//!
//! A fault fails on losses that must not happen:
//! - a wrong byte
//! - a lost stream that ends like a complete stream
//! - a failed connection after recovery
//! - any failed connection while gateways are replaced in order
//!
//! Times have no limit. The outcome only reports them.

pub mod control_plane;
pub mod edits;
pub mod gateways;
pub mod packets;
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

/// The cluster of a fault, and the durations of the fault's parts.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    /// The cluster.
    pub cluster: Cluster,
    /// Minimum duration of the load in seconds. The load always outlasts the fault.
    pub load_seconds: u32,
    /// Duration in seconds of a fault that removes a component.
    pub away_seconds: u32,
}

/// The cost of a fault.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// The outcome of all connections. `None` for a fault without traffic.
    pub load: Option<Report>,
    /// Seconds from the fault to the last failed connection or lost stream. `None` if no connection
    /// failed and no stream was lost. If the load is ping, the value is the longest time without an
    /// answer.
    pub failing_seconds: Option<f64>,
    /// Seconds from the fault until all components are in their requested state again.
    pub whole_seconds: f64,
    /// Remarks, which are printed below the table.
    pub note: String,
}

/// A fault.
pub struct Fault {
    /// A short description.
    pub name: &'static str,
    /// Time-out of the fault.
    pub within: Duration,
    /// Number of runs. The outcome has the sum of the counts and the longest times.
    pub runs: u32,
    /// The cluster and the durations.
    pub scale: Scale,
    run: Run,
}

type Run = fn(Scale) -> Pin<Box<dyn Future<Output = Result<Outcome>>>>;

/// All faults, in the order of the table. Two rows measure edits, which are no faults.
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
    fault("packets: an entry killed, Native", 15, 0, |scale| {
        Box::pin(packets::process_killed("entry", "Native", scale))
    })
    .five_times(),
    fault("packets: an exit killed, Native", 15, 0, |scale| {
        Box::pin(packets::process_killed("exit", "Native", scale))
    })
    .five_times(),
    fault("packets: an entry killed, QUIC", 30, 0, |scale| {
        Box::pin(packets::process_killed("entry", "QUIC", scale))
    })
    .five_times(),
    fault("packets: an exit killed, QUIC", 30, 0, |scale| {
        Box::pin(packets::process_killed("exit", "QUIC", scale))
    })
    .five_times(),
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
    fault("20 forwards added, one by one", 1800, 0, |scale| {
        Box::pin(edits::forward_added(scale))
    }),
    fault("20 MuxPeers deleted, one by one", 1800, 0, |scale| {
        Box::pin(edits::peer_deleted(scale))
    }),
    fault("200 tunnels at once", 0, 0, |_| {
        Box::pin(control_plane::many_tunnels(200))
    }),
];

/// A fault with its time-out. The time-out allows 10 minutes in addition to the load.
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

    /// Runs the fault [`Self::runs`] times, and combines the outcomes.
    ///
    /// # Errors
    /// If the fault cannot be caused or does not end in time, or if the cluster does not recover.
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
    /// Combines two runs of one fault.
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
    load.own += more.own;
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
