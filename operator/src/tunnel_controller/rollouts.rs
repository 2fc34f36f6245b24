//! What becomes of an end whose pods a node refuses, because a kubelet or a kernel does not take a sysctl of theirs.
//!
//! Where a pod of the tunnel runs with the same sysctls, or a Job has run with them, the node is at fault: the end's pods
//! avoid it, and an annotation of the Deployment keeps its name. Otherwise the spec may be at fault: a ReplicaSet would
//! make failed pods without end (kubernetes#72593), so the end goes back to what its ready pods run, or has no pods where
//! there are none, and the spec is tried again later, each time after a longer pause. Nothing is deleted for a refusal.
//!
//! Here is what the operator remembers of it, and the [`Rollout`] that follows for each end: `dereference` asks what is
//! remembered, `validate` decides, `build` follows that, and `publish` takes in what was seen.
//! Bounds: an entry an end that was refused, at most [`REFUSED_MAX`]; one more drops any, which costs a try.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use muxtunnel_codes::Code;
use parking_lot::{Mutex, MutexGuard};

use super::end::End;
use super::problem::Problem;

/// Annotation of a Deployment: what its pods ask of a node, hashed, and the names of the nodes that they avoid, which
/// refused it.
pub const AVOIDED_NODES: &str = "muxtunnel.dev/avoided-nodes";
/// Annotation of a Deployment without pods: they were refused, and there were no others.
pub const STOPPED: &str = "muxtunnel.dev/stopped";

/// Nodes that an end avoids at most. One more is a matter of the cluster, and is only reported.
pub(super) const NODES_AVOIDED_MAX: usize = 8;
/// Ends that are refused at once.
const REFUSED_MAX: usize = 10_000;
/// The first pause before a refused spec is tried again, and up to as much more by chance.
const FIRST: Duration = Duration::from_secs(20);
/// The longest, and up to as much more by chance: ten minutes.
const LONGEST: Duration = Duration::from_mins(5);

/// How an end is rolled out.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Rollout {
    /// Hash of what its pods ask of a node.
    pub asked: String,
    /// The nodes that its pods avoid.
    pub avoided: BTreeSet<String>,
    /// Configurations that its ready gateways started with, as YAML, by the hash of what they cannot take over.
    pub kept: BTreeMap<String, String>,
    /// Its pods are refused: the spec is not applied to it for now.
    pub held: Option<Held>,
    /// Its Deployment has no pods, because they were refused.
    pub is_stopped: bool,
}

/// Why a spec is not applied to an end, and what it has meanwhile.
#[derive(Debug, Clone, PartialEq)]
pub struct Held {
    /// What was refused.
    pub problem: Problem,
    /// What it has meanwhile.
    pub fallback: Fallback,
}

/// What an end has while its spec is refused.
#[derive(Debug, Clone, PartialEq)]
pub enum Fallback {
    /// The template of its newest ReplicaSet with ready pods.
    Template(Box<PodTemplateSpec>),
    /// A Deployment without pods.
    Stopped,
    /// No Deployment, as before.
    Nothing,
}

/// What is remembered of an end that was refused.
#[derive(Debug, Clone, PartialEq)]
pub struct Refusal {
    /// Hash of what its pods asked of a node.
    pub asked: String,
    /// What was refused.
    pub problem: Problem,
    /// The nodes at fault.
    pub nodes: BTreeSet<String>,
    /// The spec is not tried for now.
    pub rests: bool,
}

/// What an end has shown that is tried.
#[derive(Debug)]
pub(super) struct Shown<'a> {
    /// Its pods that a node refused, less those of nodes that it avoids.
    pub(super) refused: Vec<RefusedPod<'a>>,
    /// A pod of it is ready with its sysctls.
    pub(super) runs: bool,
    /// It is the nodes that are at fault, not the spec.
    pub(super) is_node_at_fault: bool,
}

/// A pod that a node refused.
#[derive(Debug, Clone, Copy)]
pub(super) struct RefusedPod<'a> {
    /// When it was made, in seconds since 1970.
    pub(super) made: Option<i64>,
    /// Its node.
    pub(super) node: Option<&'a String>,
    /// What was refused.
    pub(super) problem: &'a Problem,
}

/// What was refused, and when it is tried again.
struct Refused {
    asked: String,
    problem: Problem,
    /// Those at fault.
    nodes: BTreeSet<String>,
    pauses: ExponentialBackoff,
    /// Until when nothing is tried, in seconds since 1970.
    until: Option<i64>,
    /// Since when it is tried: pods from before say nothing new.
    tried: i64,
}

/// What nodes have refused of all tunnels, by UID and end. Bounded: see the module.
#[derive(Default)]
pub struct Rollouts(Mutex<BTreeMap<(String, End), Refused>>);

impl Rollouts {
    /// What is remembered of the ends of the tunnel with that UID. A pause that is over at `now`, in seconds since 1970,
    /// ends here: from now on the spec is tried.
    pub(super) fn refusals(&self, uid: &str, now: i64) -> BTreeMap<End, Refusal> {
        let mut table = self.table();
        let mut refusals = BTreeMap::new();
        for end in End::ALL {
            let Some(entry) = table.get_mut(&(uid.to_owned(), end)) else {
                continue;
            };
            if entry.until.is_some_and(|until| until <= now) {
                entry.until = None;
                entry.tried = now;
            }
            let refusal = Refusal {
                asked: entry.asked.clone(),
                problem: entry.problem.clone(),
                nodes: entry.nodes.clone(),
                rests: entry.until.is_some(),
            };
            refusals.insert(end, refusal);
        }
        refusals
    }

    /// Takes in what an end has shown at `now`. What was remembered of another spec is forgotten.
    pub(super) fn learn(
        &self,
        (uid, end): (&str, End),
        rollout: &Rollout,
        shown: &Shown<'_>,
        now: i64,
    ) {
        let key = (uid.to_owned(), end);
        let mut table = self.table();
        if table
            .get(&key)
            .is_some_and(|entry| entry.asked != rollout.asked)
        {
            table.remove(&key);
        }
        let tried = table.get(&key).map_or(i64::MIN, |entry| entry.tried);
        let refused: Vec<_> = shown
            .refused
            .iter()
            .filter(|pod| pod.made.is_none_or(|made| made >= tried))
            .collect();
        let Some(first) = refused.first() else {
            if shown.runs {
                // The Deployment's annotation has the nodes by now.
                table.remove(&key);
            }
            return;
        };
        if table.len() >= REFUSED_MAX && !table.contains_key(&key) {
            table.pop_first();
        }
        let entry = table
            .entry(key)
            .or_insert_with(|| Refused::new(&rollout.asked));
        entry.problem = first.problem.clone();
        if shown.is_node_at_fault {
            let room = NODES_AVOIDED_MAX.saturating_sub(rollout.avoided.len());
            let nodes = refused.iter().filter_map(|pod| pod.node.cloned());
            entry.nodes.extend(nodes.take(room));
        } else {
            let pause = entry.pauses.next().unwrap_or(LONGEST).as_secs();
            entry.until = Some(now.saturating_add(i64::try_from(pause).unwrap_or(0)));
        }
    }

    /// In how many seconds from `now` something is to be done for the tunnel with that UID; `None`: nothing waits.
    #[must_use]
    pub fn due(&self, uid: &str, rollouts: &BTreeMap<End, Rollout>, now: i64) -> Option<u64> {
        let table = self.table();
        let own = rollouts.iter().filter_map(|(end, rollout)| {
            let entry = table.get(&(uid.to_owned(), *end))?;
            match entry.until {
                _ if entry.asked != rollout.asked => None,
                // It was learned only now.
                Some(_) if rollout.held.is_none() => Some(0),
                Some(until) => Some(u64::try_from(until - now).unwrap_or(0)),
                None if !entry.nodes.is_subset(&rollout.avoided) => Some(0),
                None => None,
            }
        });
        own.min()
    }

    fn table(&self) -> MutexGuard<'_, BTreeMap<(String, End), Refused>> {
        self.0.lock()
    }
}

impl Refused {
    fn new(asked: &str) -> Self {
        let pauses = ExponentialBuilder::new()
            .with_min_delay(FIRST)
            .with_max_delay(LONGEST)
            .with_factor(2.0)
            .with_jitter()
            .without_max_times();
        Self {
            asked: asked.to_owned(),
            problem: Problem {
                code: Code::SysctlForbidden,
                detail: String::new(),
            },
            nodes: BTreeSet::new(),
            pauses: pauses.build(),
            until: None,
            tried: i64::MIN,
        }
    }
}

/// The value of [`AVOIDED_NODES`].
#[must_use]
pub fn avoided_text(rollout: &Rollout) -> String {
    let nodes = rollout.avoided.iter().map(String::as_str);
    let words: Vec<_> = std::iter::once(rollout.asked.as_str())
        .chain(nodes)
        .collect();
    words.join(" ")
}
