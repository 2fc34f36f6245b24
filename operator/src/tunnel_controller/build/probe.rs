//! The Jobs that test sysctls in separate pods before gateways get them, and the results of the
//! Jobs.
//!
//! If a kubelet refuses a sysctl, a ReplicaSet creates failed pods without an end
//! (kubernetes#72593). A Job with a `backoffLimit` of 0 creates only one pod. If the spec names
//! sysctls, a roll-out therefore begins only after the pod of a Job has run with the same sysctls
//! and the same placement. A Job's name contains the hash of sysctls and placement. Sysctls that
//! have passed are not tested again. Changed sysctls get another Job. Ends with the same placement
//! share a Job. Jobs of several placements run one after another.

use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceRequirements};
use kube::ResourceExt;
use kube::core::ObjectMeta;
use muxtunnel_crds::{ContainerName, Template, TemplateMetadata};
use muxtunnel_gateway_config::config_hash;

use super::{deployment, named, pod_labels};
use crate::class::Class;
use crate::pods;
use crate::tunnel_controller::dereference::{RESOURCES_HASH, running};
use crate::tunnel_controller::end::{End, PROBE};
use crate::tunnel_controller::object::Kind;
use crate::tunnel_controller::problem::Problem;
use crate::tunnel_controller::validate::{ValidatedObject, asked};

/// Time limit in seconds for a pod to be scheduled, to pull the image and to run. An autoscaler may
/// have to add a node first.
const DEADLINE_SECONDS: i64 = 600;

/// The required Jobs: one per placement, up to the first Job that has not passed.
pub(super) fn jobs(object: &ValidatedObject) -> Vec<Job> {
    let mut jobs = Vec::new();
    for (name, end, template) in placements(object) {
        jobs.push(job(object, &name, end, template));
        if unproved(object, &name).is_some() {
            break;
        }
    }
    jobs
}

/// Why gateways do not get the sysctls of the spec. `None` if the nodes accept the sysctls, or the
/// spec names none.
pub fn problem(object: &ValidatedObject) -> Option<Problem> {
    let mut placements = placements(object).into_iter();
    placements.find_map(|(name, ..)| unproved(object, &name))
}

/// Why the Job `name` has not passed.
fn unproved(object: &ValidatedObject, name: &str) -> Option<Problem> {
    let mut probes = object.pods.probes.iter();
    match probes.find(|seen| seen.job.name_any() == name) {
        Some(seen) => seen.outcome.problem.clone(),
        None => Some(running(name, None)),
    }
}

/// The name of each placement's Job, with the first end of that placement. Empty if the spec names
/// no sysctls.
fn placements(object: &ValidatedObject) -> Vec<(String, End, &Template)> {
    let mut placements: Vec<(String, End, &Template)> = Vec::new();
    for end in End::ALL.into_iter().filter(|_| object.pods.is_probed) {
        let Some(gateway) = object.gateway(end) else {
            continue;
        };
        let template = &gateway.template;
        let hash = asked(&object.pods.probed(), template, None);
        let name = format!("{}-{}-{hash}", object.holder.name, word(object.kind()));
        if !placements.iter().any(|(known, ..)| *known == name) {
            placements.push((name, end, template));
        }
    }
    placements
}

/// The part of a Job's name that differs between the kinds, because objects of several kinds may
/// have one name. With the longest name of an object, the Job's name has at most 63 characters, the
/// maximum for a label.
const fn word(kind: Kind) -> &'static str {
    match kind {
        Kind::Tunnel => PROBE,
        Kind::Exit | Kind::Rendezvous => "sysctl-exit",
    }
}

fn job(object: &ValidatedObject, name: &str, end: End, template: &Template) -> Job {
    // The container has limits, because a namespace's quota may require them.
    let resources = deployment::helper_resources(
        template,
        ContainerName::Sysctls,
        &[("cpu", "1m"), ("memory", "8Mi")],
        &[("cpu", "100m"), ("memory", "64Mi")],
    );
    let own = named(object, name.to_owned(), PROBE);
    let hash = serde_json::to_string(&resources).map(|text| config_hash(&text));
    let annotations = hash.map(|hash| [(RESOURCES_HASH.to_owned(), hash)].into());
    let labels = pod_labels(object, PROBE);
    let pod = PodSpec {
        restart_policy: Some("Never".to_owned()),
        service_account_name: Some(object.child(end)),
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        security_context: Some(deployment::pod_security(object.pods.probed(), None)),
        containers: vec![container(&object.class, resources)],
        ..deployment::placed(template)
    };
    Job {
        metadata: ObjectMeta {
            annotations: annotations.ok(),
            ..own
        },
        spec: Some(JobSpec {
            backoff_limit: Some(0),
            active_deadline_seconds: Some(DEADLINE_SECONDS),
            template: pods::template(TemplateMetadata::default(), labels, pod),
            ..JobSpec::default()
        }),
        status: None,
    }
}

/// The container runs `muxgate`, which prints its version and exits. The node needs the gateway's
/// image anyway.
fn container(class: &Class, resources: ResourceRequirements) -> Container {
    Container {
        name: PROBE.to_owned(),
        image: Some(class.part.images.gateway.clone()),
        image_pull_policy: Some(class.pull_policy()),
        command: Some(vec![deployment::COMMAND.to_owned(), "--version".to_owned()]),
        resources: Some(resources),
        security_context: Some(pods::unprivileged()),
        ..Container::default()
    }
}
