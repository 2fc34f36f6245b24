//! The Deployment of a gateway. The pod meets the Pod Security level `restricted`, unless WAN
//! emulation or a network adds a container. If a MuxBenchmark measures a network, the pod also has
//! an agent.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::apps::v1::{
    Deployment, DeploymentSpec, DeploymentStrategy, RollingUpdateDeployment,
};
use k8s_openapi::api::core::v1::{
    Affinity, Container, ContainerPort, NodeSelectorRequirement, NodeSelectorTerm, PodAffinityTerm,
    PodAntiAffinity, PodSecurityContext, PodSpec, PodTemplateSpec, ResourceRequirements, Sysctl,
    TopologySpreadConstraint, VolumeMount, WeightedPodAffinityTerm,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::core::ObjectMeta;
use muxtunnel_contract::sysctls::WAN;
use muxtunnel_crds::{ContainerName, Template};
use muxtunnel_gateway_config::{ADMIN_PORT, CARRIER_PORT, Config, ConfigError};

use super::service::carrier_port_names;
use super::volumes::{CONFIG_FOLDER, mounted};
use super::{End, metadata, network, selector, wan};
use crate::labels::having;
use crate::muxbench;
use crate::pods::{self, UID, some};
use crate::tunnel_controller::config_file::{self, FILE};
use crate::tunnel_controller::rollouts::{self, Auto, Fallback, Rollout};
use crate::tunnel_controller::validate::{
    SSH, ValidatedGateway, ValidatedObject, ValidatedUpgrade, resources_of,
};
use crate::upgrades;

/// Number of old ReplicaSets without pods that are kept. The operator itself returns only to
/// ReplicaSets with pods. The operator's cache contains all ReplicaSets.
const REVISIONS: i32 = 2;
/// Name of the gateway's container.
pub(super) const CONTAINER: &str = "gateway";
/// Program of the gateways' image.
pub(super) const COMMAND: &str = "/usr/local/bin/muxgate";
/// Seconds by which a pod's grace period exceeds its gateway's drain time. In this time, the
/// gateway sends the final frames on its carriers.
const LAST_WORDS_SECONDS: i64 = 5;
/// The topology keys that spread the pods of an end, with their weights. The scheduler ignores a
/// key that a node lacks.
const APART_BY: [(&str, i32); 2] = [(HOST, 100), ("topology.kubernetes.io/zone", 50)];
const HOST: &str = "kubernetes.io/hostname";

/// The Deployment of `end`. `None` if nodes refuse the end's pods, and the end had no Deployment
/// before.
pub(super) fn build(
    object: &ValidatedObject,
    end: End,
    gateway: &ValidatedGateway,
    config: &Config,
) -> Result<Option<Deployment>, ConfigError> {
    let key = config_file::key(&object.class.part.images.gateway, config)?;
    let mut annotations = own_annotations(object, end);
    let mut replicas = replicas(object, end, gateway);
    let asked = gateway.template.metadata.clone().unwrap_or_default();
    let labels = super::pod_labels(object, end.component());
    let mut template = pods::template(asked, labels, pod(object, end, gateway, key));
    if let Some(kept) = object.upgrade.kept.get(&end) {
        // The pods stay as they are, unless a node or the namespace refuses them.
        template = kept.template.clone();
        if is_untuned(object, end) {
            remove_auto(&mut template, &object.pods.sysctls(end));
        }
        annotations.insert(upgrades::REVISION.to_owned(), kept.revision.clone());
    }
    let rollout = object.rollout(end);
    let held = rollout.and_then(|rollout| rollout.held.as_ref());
    match held.map(|held| &held.fallback) {
        None => {}
        Some(Fallback::Template(earlier)) => template = earlier.as_ref().clone(),
        Some(Fallback::Stopped) => {
            replicas = Some(0);
            annotations.insert(rollouts::STOPPED.to_owned(), "true".to_owned());
        }
        Some(Fallback::Nothing) => return Ok(None),
    }
    Ok(Some(Deployment {
        metadata: ObjectMeta {
            annotations: Some(annotations),
            ..metadata(object, end)
        },
        spec: Some(DeploymentSpec {
            replicas,
            revision_history_limit: Some(REVISIONS),
            selector: having(selector(object, end)),
            // The old pods serve until new pods are ready.
            strategy: Some(DeploymentStrategy {
                type_: Some("RollingUpdate".to_owned()),
                rolling_update: Some(RollingUpdateDeployment {
                    max_surge: Some(IntOrString::Int(1)),
                    max_unavailable: Some(IntOrString::Int(0)),
                }),
            }),
            template,
            ..DeploymentSpec::default()
        }),
        status: None,
    }))
}

fn is_untuned(object: &ValidatedObject, end: End) -> bool {
    let rollout = object.rollout(end);
    rollout.is_some_and(|rollout| matches!(rollout.auto, Auto::Untuned(_)))
}

/// Replaces the sysctls of a template that has those of profile `Auto`.
fn remove_auto(template: &mut PodTemplateSpec, sysctls: &BTreeMap<String, String>) {
    let pods = template.spec.as_mut();
    let own = pods.and_then(|pods| pods.security_context.as_mut()?.sysctls.as_mut());
    let is_auto = |sysctl: &Sysctl| {
        let pair = (&*sysctl.name, &*sysctl.value);
        WAN.contains(&pair) && !sysctls.contains_key(&sysctl.name)
    };
    own.into_iter()
        .for_each(|own| own.retain(|sysctl| !is_auto(sysctl)));
}

/// The state of the end's roll-out, which outlasts this process.
fn own_annotations(object: &ValidatedObject, end: End) -> BTreeMap<String, String> {
    let ValidatedUpgrade { revision, turn, .. } = &object.upgrade;
    let avoided = avoided(object, end).map(rollouts::avoided_text);
    let kept = object.upgrade.kept.get(&end);
    let untuned = match object.rollout(end).map(|rollout| &rollout.auto) {
        Some(Auto::Untuned(untuned)) => Some(untuned.text()),
        _ => kept.and_then(|kept| kept.untuned.clone()),
    };
    let annotations = [
        (upgrades::REVISION, Some(revision.clone())),
        (upgrades::TURN, turn.map(|turn| turn.as_str().to_owned())),
        (rollouts::AVOIDED_NODES, avoided),
        (rollouts::UNTUNED, untuned),
    ];
    let annotations = annotations.into_iter();
    let annotations = annotations.filter_map(|(key, text)| Some((key.to_owned(), text?)));
    annotations.collect()
}

/// Returns `None` if other clients set the number. A Deployment that was stopped gets the least
/// number, because an autoscaler does not scale a Deployment without pods.
fn replicas(object: &ValidatedObject, end: End, gateway: &ValidatedGateway) -> Option<i32> {
    let rollout = object.rollout(end);
    let is_stopped = rollout.is_some_and(|rollout| rollout.is_stopped);
    let least = is_stopped.then(|| gateway.replicas.least());
    gateway.replicas.fixed().or(least)
}

/// The roll-out of the end, if the end avoids nodes.
fn avoided(object: &ValidatedObject, end: End) -> Option<&Rollout> {
    let rollout = object.rollout(end);
    rollout.filter(|rollout| !rollout.avoided.is_empty())
}

/// The user's affinity, with an exclusion of the nodes that refused the pods.
fn away_from(nodes: &BTreeSet<String>, own: Option<Affinity>) -> Affinity {
    let mut affinity = own.unwrap_or_default();
    let of_nodes = affinity.node_affinity.get_or_insert_default();
    let required = &mut of_nodes.required_during_scheduling_ignored_during_execution;
    let terms = &mut required.get_or_insert_default().node_selector_terms;
    if terms.is_empty() {
        terms.push(NodeSelectorTerm::default());
    }
    // A requirement on a field accepts only one value, so each node needs its own requirement.
    let others = nodes.iter().map(|node| NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "NotIn".to_owned(),
        values: Some(vec![node.clone()]),
    });
    let others: Vec<_> = others.collect();
    for term in terms {
        let fields = term.match_fields.get_or_insert_default();
        fields.extend(others.iter().cloned());
    }
    affinity
}

fn pod(object: &ValidatedObject, end: End, gateway: &ValidatedGateway, key: String) -> PodSpec {
    let own_labels = selector(object, end);
    let mounted = mounted(object, end, gateway, key);
    let (mut volumes, mounts): (Vec<_>, Vec<_>) = mounted.into_iter().unzip();
    volumes.extend(object.pods.wan.as_ref().map(|_| wan::volume()));
    let mut containers = vec![container(object, gateway, mounts)];
    let token = object.benchmark.as_ref();
    if let Some(token) = token.and_then(|benchmark| benchmark.agents_token.clone()) {
        let resources = resources_of(&gateway.template, ContainerName::Gateway);
        containers.push(muxbench::agent(&object.class, resources));
        volumes.push(muxbench::token_volume(token));
    }
    let template = gateway.template.spec.clone().unwrap_or_default();
    let mut placed = pods::of_template(template);
    if let Some(rollout) = avoided(object, end) {
        placed.affinity = Some(away_from(&rollout.avoided, placed.affinity));
    }
    let spread = placed.topology_spread_constraints;
    let spread = spread.or_else(|| Some(vec![evenly(own_labels.clone())]));
    let user = object.network.as_ref().map(|_| UID);
    let grace = i64::from(gateway.drain_seconds) + LAST_WORDS_SECONDS;
    PodSpec {
        service_account_name: Some(object.child(end)),
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        termination_grace_period_seconds: Some(grace),
        security_context: Some(pod_security(object.pods.sysctls(end), user)),
        init_containers: some(init_containers(object, end, gateway)),
        containers,
        volumes: Some(volumes),
        affinity: Some(apart(placed.affinity, &own_labels)),
        topology_spread_constraints: spread,
        ..placed
    }
}

/// The container that creates the interface for IP packets, and the container that emulates a WAN.
fn init_containers(
    object: &ValidatedObject,
    end: End,
    gateway: &ValidatedGateway,
) -> Vec<Container> {
    let with_resources = |(name, container)| Container {
        resources: Some(helper_resources(
            &gateway.template,
            name,
            &[("cpu", "10m"), ("memory", "16Mi")],
            &[],
        )),
        ..container
    };
    let network = object.network.as_ref();
    let network = network.map(|asked| network::container(asked, end, &object.class));
    let network = network.map(|container| (ContainerName::Network, container));
    let wan = object.pods.wan.as_ref();
    let wan = wan.map(|asked| (ContainerName::Wan, wan::container(asked, object, end)));
    let containers = network.into_iter().chain(wan);
    containers.map(with_resources).collect()
}

/// The resources of the container `name` beside the gateway's container. Without resources of its
/// own, it has those of the gateway's container, because quotas and LimitRanges apply to each
/// container.
pub(super) fn helper_resources(
    template: &Template,
    name: ContainerName,
    requests: pods::Amounts<'_>,
    limits: pods::Amounts<'_>,
) -> ResourceRequirements {
    match resources_of(template, name) {
        Some(own) => pods::resources(Some(own), requests, limits),
        None => {
            let gateway = resources_of(template, ContainerName::Gateway);
            pods::helper_resources(gateway, requests, limits)
        }
    }
}

/// The fields of `template` that determine the pod's node, and the fields without which the pod
/// could not start on this node.
pub(super) fn placed(template: &Template) -> PodSpec {
    PodSpec {
        topology_spread_constraints: None,
        dns_policy: None,
        dns_config: None,
        host_aliases: None,
        ..pods::of_template(template.spec.clone().unwrap_or_default())
    }
}

/// Prefers separate nodes for the pods of an end. If the template has its own anti-affinity,
/// nothing is added. An end with one pod also gets the preference, so that a change of the number
/// does not cause a roll-out.
fn apart(own: Option<Affinity>, labels: &BTreeMap<String, String>) -> Affinity {
    let mut affinity = own.unwrap_or_default();
    affinity.pod_anti_affinity.get_or_insert_with(|| {
        let term = |(key, weight): (&str, i32)| WeightedPodAffinityTerm {
            weight,
            pod_affinity_term: PodAffinityTerm {
                topology_key: key.to_owned(),
                label_selector: Some(having(labels.clone())),
                ..PodAffinityTerm::default()
            },
        };
        PodAntiAffinity {
            preferred_during_scheduling_ignored_during_execution: Some(
                APART_BY.into_iter().map(term).collect(),
            ),
            ..PodAntiAffinity::default()
        }
    });
    affinity
}

/// Spreads the pods of each roll-out evenly over nodes. The constraint does not use zones: a
/// scheduler places no pod on a node that lacks one of the labels, and many clusters have no zones.
fn evenly(labels: BTreeMap<String, String>) -> TopologySpreadConstraint {
    TopologySpreadConstraint {
        max_skew: 1,
        topology_key: HOST.to_owned(),
        when_unsatisfiable: "ScheduleAnyway".to_owned(),
        label_selector: Some(having(labels)),
        match_label_keys: Some(vec!["pod-template-hash".to_owned()]),
        ..TopologySpreadConstraint::default()
    }
}

/// `user`: `None` for the user of the image, which the cluster may replace.
pub(super) fn pod_security(
    sysctls: BTreeMap<String, String>,
    user: Option<i64>,
) -> PodSecurityContext {
    PodSecurityContext {
        run_as_user: user,
        sysctls: Some(
            sysctls
                .into_iter()
                .map(|(name, value)| Sysctl { name, value })
                .collect(),
        ),
        ..pods::pod_security()
    }
}

fn container(
    object: &ValidatedObject,
    gateway: &ValidatedGateway,
    mounts: Vec<VolumeMount>,
) -> Container {
    let mut ports = vec![pods::port("admin", ADMIN_PORT)];
    if gateway.carrier_port.is_some() {
        let names = carrier_port_names(&object.carrier).iter();
        ports.extend(names.map(|(name, protocol)| ContainerPort {
            protocol: Some((*protocol).to_owned()),
            ..pods::port(name, CARRIER_PORT)
        }));
    }
    ports.extend(gateway.ssh.as_ref().map(|ssh| pods::port(SSH, ssh.port())));
    Container {
        name: CONTAINER.to_owned(),
        image: Some(object.class.part.images.gateway.clone()),
        image_pull_policy: Some(object.class.pull_policy()),
        command: Some(vec![COMMAND.to_owned()]),
        args: Some(vec![
            "run".to_owned(),
            "--config".to_owned(),
            format!("{CONFIG_FOLDER}/{FILE}"),
        ]),
        ports: Some(ports),
        readiness_probe: Some(pods::probe("/readyz", ADMIN_PORT, (1, 2), Some(3))),
        liveness_probe: Some(pods::probe("/healthz", ADMIN_PORT, (10, 2), Some(6))),
        // The default is small requests and no limits. A CPU limit throttles the data path. A
        // memory limit has to fit the memory of the sessions, which only the user can estimate.
        resources: Some(pods::resources(
            resources_of(&gateway.template, ContainerName::Gateway),
            &[("cpu", "10m"), ("memory", "32Mi")],
            &[],
        )),
        security_context: Some(pods::unprivileged()),
        volume_mounts: Some(mounts),
        ..Container::default()
    }
}
