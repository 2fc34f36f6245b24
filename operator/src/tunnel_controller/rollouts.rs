//! What becomes of an end whose pods a node refuses, because a kubelet or a kernel does not take a sysctl of theirs.
//!
//! In: live pods, by end. Out: a [`Rollout`] for each end, which [`super::build`] follows. Where a pod of the tunnel
//! runs with the same sysctls, or a Job has run with them, the node is at fault: the end's pods avoid it, and an
//! annotation of the Deployment keeps its name. Otherwise the spec may be at fault: a ReplicaSet would make failed pods
//! without end (kubernetes#72593), so the end goes back to what its ready pods run, or has no pods where there are none,
//! and the spec is tried again later, each time after a longer pause. Nothing is deleted for a refusal.
//!
//! Bounds: an entry an end that was refused, at most [`REFUSED_MAX`]; one more drops any, which costs a try.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, PodTemplateSpec};
use kube::ResourceExt;
use muxtunnel_codes::Code;
use parking_lot::{Mutex, MutexGuard};

use super::build::probe;
use super::config_file::{FILE, STATIC_HASH, config_in, hash_of_kept, kept_key, static_hash};
use super::end::End;
use super::observe::{Seen, SeenPod};
use super::pods::{end_of, is_of, is_ready, own_pods};
use super::problem::Problem;
use super::validate::ValidatedTunnel;
use crate::apply::is_owned;
use crate::caches::{Cluster, NotKnown};

/// Annotation of a Deployment: what its pods ask of a node, hashed, and the names of the nodes that they avoid, which
/// refused it.
pub const AVOIDED_NODES: &str = "muxtunnel.dev/avoided-nodes";
/// Annotation of a Deployment without pods: they were refused, and there were no others.
pub const STOPPED: &str = "muxtunnel.dev/stopped";

/// Nodes that an end avoids at most. One more is a matter of the cluster, and is only reported.
const NODES_AVOIDED_MAX: usize = 8;
/// Configurations that a ConfigMap keeps at most beside its own: the roll-outs that are under way at once.
const KEPT_MAX: usize = 4;
/// Ends that are refused at once.
const REFUSED_MAX: usize = 10_000;
/// The first pause before a refused spec is tried again, and up to as much more by chance.
const FIRST: Duration = Duration::from_secs(20);
/// The longest, and up to as much more by chance: ten minutes.
const LONGEST: Duration = Duration::from_mins(5);
/// Label that the Deployment controller adds to a ReplicaSet's template.
const TEMPLATE_HASH: &str = "pod-template-hash";
/// Annotation of a ReplicaSet that counts up.
const REVISION: &str = "deployment.kubernetes.io/revision";

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

impl ValidatedTunnel {
    /// How `end` is rolled out, where there is more to say than that it is.
    #[must_use]
    pub fn rollout(&self, end: End) -> Option<&Rollout> {
        self.rollouts.get(&end)
    }
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

/// What nodes have refused of all tunnels. Bounded: see the module.
#[derive(Default)]
pub struct Rollouts(Mutex<BTreeMap<(String, End), Refused>>);

impl Rollouts {
    /// How each end of `tunnel` is rolled out at `now`, in seconds since 1970.
    ///
    /// # Errors
    /// [`NotKnown`].
    pub fn plan(
        &self,
        cluster: &Cluster,
        tunnel: &ValidatedTunnel,
        now: i64,
    ) -> Result<BTreeMap<End, Rollout>, NotKnown> {
        // Whatever pods there are, children that do not depend on them are applied.
        let pods = own_pods(cluster, (&tunnel.namespace, &tunnel.name), &tunnel.owner).ok();
        let mut rollouts = BTreeMap::new();
        for end in End::ALL {
            let Some(gateway) = end.gateway(tunnel) else {
                continue;
            };
            let name = end.child_name(tunnel);
            let live = cluster
                .caches
                .deployments
                .get(&tunnel.namespace, &name)?
                .filter(|live| is_owned(live.as_ref(), &tunnel.owner));
            let asked = probe::hash(tunnel, &gateway.template);
            let mut rollout = Rollout {
                avoided: live
                    .as_ref()
                    .map(|live| avoided(live, &asked))
                    .unwrap_or_default(),
                is_stopped: live
                    .as_ref()
                    .is_some_and(|live| live.annotations().contains_key(STOPPED)),
                kept: kept(cluster, tunnel, end, pods.as_deref())?,
                asked,
                held: None,
            };
            if let Some((nodes, problem)) = self.refused(tunnel, end, &rollout.asked, now) {
                rollout.avoided.extend(nodes);
                if let Some(problem) = problem {
                    let fallback = match &live {
                        Some(live) => fallback(cluster, tunnel, end, live)?,
                        None => Fallback::Nothing,
                    };
                    rollout.held = Some(Held { problem, fallback });
                }
            }
            rollouts.insert(end, rollout);
        }
        Ok(rollouts)
    }

    /// The nodes at fault, and the problem while the end is held.
    fn refused(
        &self,
        tunnel: &ValidatedTunnel,
        end: End,
        asked: &str,
        now: i64,
    ) -> Option<(BTreeSet<String>, Option<Problem>)> {
        let key = (tunnel.owner.uid.clone(), end);
        let mut table = self.table();
        let entry = table.get_mut(&key)?;
        if entry.asked != asked {
            table.remove(&key);
            return None;
        }
        if entry.until.is_some_and(|until| until <= now) {
            entry.until = None;
            entry.tried = now;
        }
        let problem = entry.until.map(|_| entry.problem.clone());
        Some((entry.nodes.clone(), problem))
    }

    /// Takes in what `seen` shows of pods that are refused.
    pub fn learn(&self, tunnel: &ValidatedTunnel, seen: &Seen, now: i64) {
        // The Job's verdict keeps Deployments as they are.
        if probe::verdict(tunnel) != probe::Verdict::Passed {
            return;
        }
        let runs = seen.pods.iter().any(|pod| pod.ready && pod.has_sysctls);
        let is_node_at_fault = runs || tunnel.is_probed;
        for (end, rollout) in &tunnel.rollouts {
            if rollout.held.is_some() {
                continue;
            }
            let key = (tunnel.owner.uid.clone(), *end);
            let mut table = self.table();
            let tried = table.get(&key).map_or(i64::MIN, |entry| entry.tried);
            let refused: Vec<_> = refused_pods(seen, *end, rollout)
                .filter(|pod| pod.made.is_none_or(|made| made >= tried))
                .collect();
            let Some(first) = refused.first().and_then(|pod| pod.problem.clone()) else {
                let mut own = seen.pods.iter().filter(|pod| pod.end == *end);
                if own.any(|pod| pod.ready && pod.has_sysctls) {
                    // The Deployment's annotation has the nodes by now.
                    table.remove(&key);
                }
                continue;
            };
            if table.len() >= REFUSED_MAX && !table.contains_key(&key) {
                table.pop_first();
            }
            let entry = table
                .entry(key)
                .or_insert_with(|| Refused::new(&rollout.asked));
            entry.problem = first;
            if is_node_at_fault {
                let room = NODES_AVOIDED_MAX.saturating_sub(rollout.avoided.len());
                let nodes = refused.iter().filter_map(|pod| pod.node.clone());
                entry.nodes.extend(nodes.take(room));
            } else {
                let pause = entry.pauses.next().unwrap_or(LONGEST).as_secs();
                entry.until = Some(now.saturating_add(i64::try_from(pause).unwrap_or(0)));
            }
        }
    }

    /// In how many seconds from `now` something is to be done for the tunnel with that UID; `None`: nothing waits.
    #[must_use]
    pub fn due(&self, tunnel: &ValidatedTunnel, now: i64) -> Option<u64> {
        let table = self.table();
        let own = tunnel.rollouts.iter().filter_map(|(end, rollout)| {
            let entry = table.get(&(tunnel.owner.uid.clone(), *end))?;
            match entry.until {
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

/// The pods of `end` that a node refused for a sysctl, less those of nodes that it avoids already.
pub fn refused_pods<'a>(
    seen: &'a Seen,
    end: End,
    rollout: &'a Rollout,
) -> impl Iterator<Item = &'a SeenPod> {
    let is_avoided = |pod: &SeenPod| {
        let node = pod.node.as_ref();
        node.is_some_and(|node| rollout.avoided.contains(node))
    };
    seen.pods.iter().filter(move |pod| {
        let code = pod.problem.as_ref().map(|problem| problem.code);
        pod.end == end
            && pod.has_sysctls
            && matches!(code, Some(Code::SysctlForbidden | Code::SandboxFailed))
            && !is_avoided(pod)
    })
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

/// The nodes that pods which ask the same avoid by now.
fn avoided(live: &Deployment, asked: &str) -> BTreeSet<String> {
    let text = live.annotations().get(AVOIDED_NODES);
    let mut words = text.map_or("", String::as_str).split(' ');
    if words.next() != Some(asked) {
        return BTreeSet::new();
    }
    words
        .take(NODES_AVOIDED_MAX)
        .filter(|node| !node.is_empty())
        .map(str::to_owned)
        .collect()
}

/// What an end has whose spec is refused, and that has the Deployment `live`.
fn fallback(
    cluster: &Cluster,
    tunnel: &ValidatedTunnel,
    end: End,
    live: &Deployment,
) -> Result<Fallback, NotKnown> {
    let sets = cluster.caches.replica_sets.children(
        &tunnel.namespace,
        &tunnel.name,
        &[end.component()],
    )?;
    let own: BTreeSet<_> = live.uid().into_iter().collect();
    let revision = |set: &ReplicaSet| {
        let text = set.annotations().get(REVISION);
        text.and_then(|text| text.parse::<u64>().ok()).unwrap_or(0)
    };
    let has_ready_pods = |set: &ReplicaSet| {
        let status = set.status.as_ref();
        status.and_then(|status| status.ready_replicas).unwrap_or(0) > 0
    };
    let good = sets
        .into_iter()
        .filter(|set| is_of(set.as_ref(), &own))
        .filter(|set| has_ready_pods(set))
        .max_by_key(|set| revision(set))
        .and_then(|set| set.spec.as_ref()?.template.clone());
    Ok(good.map_or(Fallback::Stopped, |mut template| {
        let labels = template.metadata.as_mut();
        if let Some(labels) = labels.and_then(|metadata| metadata.labels.as_mut()) {
            labels.remove(TEMPLATE_HASH);
        }
        Fallback::Template(Box::new(template))
    }))
}

/// What gateways of `end` that are ready started with, as far as its ConfigMap still has it. `pods`: `None` where they
/// are not known, and everything stays.
fn kept(
    cluster: &Cluster,
    tunnel: &ValidatedTunnel,
    end: End,
    pods: Option<&[Arc<Pod>]>,
) -> Result<BTreeMap<String, String>, NotKnown> {
    let name = end.child_name(tunnel);
    let live = cluster.caches.config_maps.get(&tunnel.namespace, &name)?;
    let Some(live) = live.filter(|live| is_owned(live.as_ref(), &tunnel.owner)) else {
        return Ok(BTreeMap::new());
    };
    let used: BTreeSet<_> = match pods {
        Some(pods) => pods
            .iter()
            .filter(|pod| is_ready(pod) && end_of(pod) == Some(end))
            .filter_map(|pod| pod.annotations().get(STATIC_HASH).cloned())
            .collect(),
        None => static_hashes(&live),
    };
    let texts = used.into_iter().take(KEPT_MAX).filter_map(|hash| {
        let text = text_of(&live, &hash)?;
        Some((hash, text))
    });
    Ok(texts.collect())
}

/// The hashes of all static parts that a ConfigMap has.
fn static_hashes(live: &ConfigMap) -> BTreeSet<String> {
    let data = live.data.iter().flatten();
    let kept = data.filter_map(|(key, _)| hash_of_kept(key));
    let current = || static_hash(&config_in(live)?).ok();
    kept.map(str::to_owned).chain(current()).collect()
}

/// The configuration with that static part that a ConfigMap has.
fn text_of(live: &ConfigMap, hash: &str) -> Option<String> {
    let data = live.data.as_ref()?;
    if let Some(text) = data.get(&kept_key(hash)) {
        return Some(text.clone());
    }
    let is_it = static_hash(&config_in(live)?).ok()? == hash;
    is_it.then(|| data.get(FILE).cloned())?
}
