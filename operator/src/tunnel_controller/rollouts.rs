//! Handles ends whose pods a node refuses, because a kubelet or a kernel does not accept one of
//! their sysctls.
//!
//! If another pod of the tunnel runs with the same sysctls, or if the pod of a Job ran with them,
//! the node is at fault. The end's pods then avoid the node, and an annotation of the Deployment
//! stores the node's name. Otherwise the spec may be at fault. A ReplicaSet would keep creating
//! failed pods (kubernetes#72593). The end therefore returns to the template of its ready pods. If no
//! pod is ready, the end returns to the template of its running pods, such as entries without a
//! carrier, or gets no pods if none runs. The operator tries the spec again after a pause that grows. A
//! refusal deletes no object.
//!
//! Nobody requested the sysctls of profile `Auto`. So after the first refusal of a node, or of the
//! namespace's admission, the end goes to pods without these sysctls ([`Untuned`]). An annotation of
//! the Deployment stores the refusal until the image or the placement of the pods changes. Other ends
//! of the namespace with the same requests whose pods do not have the sysctls yet do not try them for
//! a day.
//!
//! This module stores the refusals in memory, and derives the [`Rollout`] of each end from them.
//! `dereference` reads the memory, `validate` decides, `build` applies the decision, and `publish`
//! records new observations. Bounds: one entry per refused end, and one per namespace and refused
//! requests, at most [`REFUSED_MAX`] each. A further entry replaces an arbitrary entry, which
//! costs one more attempt.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use kube::ResourceExt;
use parking_lot::Mutex;

use super::end::End;
use super::holder::Holder;
use super::problem::Problem;
use crate::backoff::doubling;

/// Annotation of a Deployment. The value contains the hash of the requests that its pods make to a
/// node, and the names of the nodes that the pods avoid. These nodes refused the requests.
pub const AVOIDED_NODES: &str = "muxtunnel.dev/avoided-nodes";
/// Annotation of a Deployment without pods. Nodes refused its pods, and no earlier pod was running.
pub const STOPPED: &str = "muxtunnel.dev/stopped";

/// Annotation of a Deployment whose pods were refused with the sysctls of profile `Auto`. The value
/// contains the hash of the refused requests, and the refusal as a sentence.
pub const UNTUNED: &str = "muxtunnel.dev/untuned";

/// Maximum number of nodes that an end avoids. The operator only reports further nodes.
pub(super) const NODES_AVOIDED_MAX: usize = 8;
/// Maximum number of refused ends in memory.
const REFUSED_MAX: usize = 10_000;
/// Maximum length of a stored sentence. Admission webhooks write messages of any length.
const DETAIL_CHARS_MAX: usize = 500;
/// The first pause before a refused spec is tried again, without the jitter of up to 100 %.
const FIRST: Duration = Duration::from_secs(20);
/// The longest pause, without the jitter of up to 100 %. With the jitter, the pause is at most ten
/// minutes.
const LONGEST: Duration = Duration::from_mins(5);

/// Seconds for which other ends of a namespace do not try the sysctls of profile `Auto` after a
/// refusal.
const ANSWER_SECONDS: i64 = 24 * 3600;

/// How an end is rolled out.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Rollout {
    /// The requested sysctls of the end's pods, by name.
    pub tuning: BTreeMap<String, String>,
    /// Whether `tuning` has the sysctls of profile `Auto`.
    pub auto: Auto,
    /// Hash of the requests that the end's pods make to a node.
    pub asked: String,
    /// The nodes that the end's pods avoid.
    pub avoided: BTreeSet<String>,
    /// The keys and texts of the configurations that the end's pods mount, or may still mount, as
    /// they were before they were reduced. The most needed configuration is first.
    pub kept: Vec<(String, String)>,
    /// The refusal, if the spec is not applied to the end for now.
    pub held: Option<Held>,
    /// Whether the end's Deployment has no pods, because nodes refused them.
    pub is_stopped: bool,
}

/// Whether the pods of an end have the sysctls of profile `Auto`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Auto {
    /// The profile is another one.
    #[default]
    NotRequested,
    /// The pods have the sysctls with these names, which the spec does not name.
    Tuned(BTreeSet<String>),
    /// The pods do not have the sysctls.
    Untuned(Untuned),
}

/// The refusal of pods with the sysctls of profile `Auto`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Untuned {
    /// Hash of the requests that the end's pods would make to a node, and of their image.
    pub asked: String,
    /// The refusal as a sentence.
    pub detail: String,
}

impl Untuned {
    /// The refusal of the requests `asked`, as the API server or the kubelet describes it.
    pub(super) fn new(asked: &str, detail: &str) -> Self {
        Self {
            asked: asked.to_owned(),
            detail: detail.chars().take(DETAIL_CHARS_MAX).collect(),
        }
    }

    /// The refusal in the annotation [`UNTUNED`] of `deployment`.
    pub(super) fn of(deployment: &Deployment) -> Option<Self> {
        let (asked, detail) = deployment.annotations().get(UNTUNED)?.split_once(' ')?;
        let (asked, detail) = (asked.to_owned(), detail.to_owned());
        Some(Self { asked, detail })
    }

    /// The value of [`UNTUNED`].
    pub fn text(&self) -> String {
        format!("{} {}", self.asked, self.detail)
    }
}

/// Why a spec is not applied to an end, and the state of the end meanwhile.
#[derive(Debug, Clone, PartialEq)]
pub struct Held {
    /// The refusal.
    pub problem: Problem,
    /// The state of the end meanwhile.
    pub fallback: Fallback,
}

/// The state of an end while its spec is refused.
#[derive(Debug, Clone, PartialEq)]
pub enum Fallback {
    /// The template of the end's newest ReplicaSet with ready pods, or otherwise with running pods.
    Template(Box<PodTemplateSpec>),
    /// A Deployment without pods.
    Stopped,
    /// No Deployment, because the end had no Deployment before.
    Nothing,
}

/// The remembered refusal of an end.
#[derive(Debug, Clone, PartialEq)]
pub struct Refusal {
    /// Hash of the requests that the end's pods make to a node.
    pub asked: String,
    /// The problem.
    pub problem: Problem,
    /// The nodes at fault.
    pub nodes: BTreeSet<String>,
    /// Whether the end still waits for the next attempt with the spec.
    pub rests: bool,
}

/// An observation of an end whose spec is being tried.
#[derive(Debug)]
pub(super) struct Shown<'a> {
    /// The end's pods that a node refused, except pods on avoided nodes.
    pub(super) refused: Vec<RefusedPod<'a>>,
    /// Whether at least one of the end's pods runs with the end's sysctls.
    pub(super) runs: bool,
    /// Whether the nodes are at fault, not the spec.
    pub(super) is_node_at_fault: bool,
}

/// A pod that a node refused.
#[derive(Debug, Clone, Copy)]
pub(super) struct RefusedPod<'a> {
    /// When the pod was created, in seconds since 1970.
    pub(super) made: Option<i64>,
    /// The node that refused the pod.
    pub(super) node: Option<&'a String>,
    /// The problem.
    pub(super) problem: &'a Problem,
}

/// A refusal, and when the spec is tried again.
struct Refused {
    refusal: Refusal,
    pauses: ExponentialBackoff,
    /// The end of the pause, in seconds since 1970.
    until: Option<i64>,
    /// Start of the attempt, in seconds since 1970. Pods that were created earlier are ignored.
    tried: i64,
}

/// The refusals of all tunnels. The module's documentation states the bounds.
#[derive(Default)]
pub struct Rollouts(Mutex<Tables>);

#[derive(Default)]
struct Tables {
    /// The refusals of requested sysctls, by UID and end.
    refused: BTreeMap<(String, End), Refused>,
    /// The refusals of the sysctls of profile `Auto`, by UID and end, until the annotation of the
    /// Deployment stores them.
    untuned: BTreeMap<(String, End), Untuned>,
    /// The refusals of the sysctls of profile `Auto`, by namespace and hash of the requests.
    answers: BTreeMap<(String, String), Answer>,
}

/// A refusal in a namespace.
struct Answer {
    /// The refusal as a sentence.
    detail: String,
    /// When the refusal was observed, in seconds since 1970.
    at: i64,
}

impl Answer {
    /// Whether the refusal still counts at `now` (seconds since 1970).
    fn is_kept(&self, now: i64) -> bool {
        now.saturating_sub(self.at) < ANSWER_SECONDS
    }
}

/// Stores `value`. A full table drops an arbitrary entry.
fn store<K: Ord, V>(table: &mut BTreeMap<K, V>, key: K, value: V) {
    if table.len() >= REFUSED_MAX && !table.contains_key(&key) {
        table.pop_first();
    }
    table.insert(key, value);
}

impl Rollouts {
    /// The refusals of the sysctls of profile `Auto` for the ends of the tunnel with this UID that
    /// no annotation stores yet.
    pub(super) fn untuned(&self, uid: &str) -> BTreeMap<End, Untuned> {
        let tables = self.0.lock();
        let own = End::ALL.into_iter().filter_map(|end| {
            let untuned = tables.untuned.get(&(uid.to_owned(), end))?;
            Some((end, untuned.clone()))
        });
        own.collect()
    }

    /// The refusals of the sysctls of profile `Auto` in `namespace` within a day before `now` (seconds
    /// since 1970), by the hash of the requests.
    pub(super) fn answers(&self, namespace: &str, now: i64) -> BTreeMap<String, String> {
        let tables = self.0.lock();
        let first = (namespace.to_owned(), String::new());
        let own = tables.answers.range(first..);
        let own = own.take_while(|((of, _), _)| of == namespace);
        let kept = own.filter(|(_, answer)| answer.is_kept(now));
        kept.map(|((_, asked), answer)| (asked.clone(), answer.detail.clone()))
            .collect()
    }

    /// Records at `now` that pods of an end were refused with the sysctls of profile `Auto`.
    pub(super) fn give_up(&self, (holder, end): (&Holder, End), refused: Untuned, now: i64) {
        let mut tables = self.0.lock();
        tables.answers.retain(|_, answer| answer.is_kept(now));
        let key = (holder.namespace.clone(), refused.asked.clone());
        let detail = refused.detail.clone();
        store(&mut tables.answers, key, Answer { detail, at: now });
        store(
            &mut tables.untuned,
            (holder.owner.uid.clone(), end),
            refused,
        );
    }

    /// Forgets the refusal of an end, because the annotation of the Deployment stores it.
    pub(super) fn forget_untuned(&self, uid: &str, end: End) {
        self.0.lock().untuned.remove(&(uid.to_owned(), end));
    }

    /// Returns the refusals of the ends of the tunnel with this UID. Ends each pause that has
    /// expired at `now` (seconds since 1970), so that the operator tries the spec again.
    pub(super) fn refusals(&self, uid: &str, now: i64) -> BTreeMap<End, Refusal> {
        let mut tables = self.0.lock();
        let mut refusals = BTreeMap::new();
        for end in End::ALL {
            let Some(entry) = tables.refused.get_mut(&(uid.to_owned(), end)) else {
                continue;
            };
            if entry.until.is_some_and(|until| until <= now) {
                entry.until = None;
                entry.tried = now;
            }
            entry.refusal.rests = entry.until.is_some();
            refusals.insert(end, entry.refusal.clone());
        }
        refusals
    }

    /// Records an observation of an end at `now`. Drops refusals of an earlier spec.
    pub(super) fn learn(
        &self,
        (uid, end): (&str, End),
        rollout: &Rollout,
        shown: &Shown<'_>,
        now: i64,
    ) {
        let key = (uid.to_owned(), end);
        let table = &mut self.0.lock().refused;
        let known = table.remove(&key);
        let known = known.filter(|entry| entry.refusal.asked == rollout.asked);
        let tried = known.as_ref().map_or(i64::MIN, |entry| entry.tried);
        let is_of_attempt = |pod: &&RefusedPod<'_>| pod.made.is_none_or(|made| made >= tried);
        let refused: Vec<_> = shown.refused.iter().filter(is_of_attempt).collect();
        let Some(first) = refused.first() else {
            // If a pod runs, the annotation of the Deployment stores the nodes now, so the memory
            // need not keep them.
            let kept = known.filter(|_| !shown.runs);
            table.extend(kept.map(|entry| (key, entry)));
            return;
        };
        let mut entry = known.unwrap_or_else(|| Refused::new(&rollout.asked, first.problem));
        entry.refusal.problem = first.problem.clone();
        if shown.is_node_at_fault {
            let room = NODES_AVOIDED_MAX.saturating_sub(rollout.avoided.len());
            let nodes = refused.iter().filter_map(|pod| pod.node.cloned());
            entry.refusal.nodes.extend(nodes.take(room));
        } else {
            let pause = entry.pauses.next().unwrap_or(LONGEST).as_secs();
            entry.until = Some(now.saturating_add(i64::try_from(pause).unwrap_or(0)));
        }
        store(table, key, entry);
    }

    /// The seconds from `now` until the tunnel with this UID needs a reconciliation. `None` if no
    /// end is waiting.
    pub fn due(&self, uid: &str, rollouts: &BTreeMap<End, Rollout>, now: i64) -> Option<u64> {
        let tables = self.0.lock();
        let own = rollouts.iter().filter_map(|(end, rollout)| {
            let entry = tables.refused.get(&(uid.to_owned(), *end))?;
            match entry.until {
                _ if entry.refusal.asked != rollout.asked => None,
                // The roll-out does not reflect the refusal yet, so the tunnel is reconciled at
                // once.
                Some(_) if rollout.held.is_none() => Some(0),
                Some(until) => Some(u64::try_from(until - now).unwrap_or(0)),
                None if !entry.refusal.nodes.is_subset(&rollout.avoided) => Some(0),
                None => None,
            }
        });
        own.min()
    }
}

impl Refused {
    fn new(asked: &str, problem: &Problem) -> Self {
        Self {
            refusal: Refusal {
                asked: asked.to_owned(),
                problem: problem.clone(),
                nodes: BTreeSet::new(),
                rests: false,
            },
            pauses: doubling(FIRST, LONGEST).build(),
            until: None,
            tried: i64::MIN,
        }
    }
}

/// The value of [`AVOIDED_NODES`].
pub fn avoided_text(rollout: &Rollout) -> String {
    let mut words = vec![rollout.asked.as_str()];
    words.extend(rollout.avoided.iter().map(String::as_str));
    words.join(" ")
}
