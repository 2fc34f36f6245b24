//! The Deployment of a gateway. Meets the Pod Security level `restricted`, unless WAN emulation adds its
//! container.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{
    Deployment, DeploymentSpec, DeploymentStrategy, RollingUpdateDeployment,
};
use k8s_openapi::api::core::v1::{
    Capabilities, ConfigMapVolumeSource, Container, ContainerPort, HTTPGetAction,
    PodSecurityContext, PodSpec, PodTemplateSpec, Probe, ResourceRequirements, SeccompProfile,
    SecurityContext, Sysctl, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::core::ObjectMeta;
use muxtunnel_crds::{PodTemplate, Resources};
use muxtunnel_gateway_config::{ADMIN_PORT, CARRIER_PORT, Config};

use super::{BuildError, End, config_map, metadata, wan};
use crate::labels;
use crate::settings::Settings;
use crate::tunnel_controller::validate::{ValidatedGateway, ValidatedTunnel};

/// Name of the gateway's container.
pub(super) const CONTAINER: &str = "gateway";
/// User and group of the images; no account on any node.
const UID: i64 = 65532;
/// The gateway drains for 25 s of these.
const GRACE_SECONDS: i64 = 30;
const CONFIG_FOLDER: &str = "/etc/muxgate";
const CONFIG_VOLUME: &str = "config";
/// Annotation of pods: a change of it is a roll-out. Forwards are not part of it.
const STATIC_HASH: &str = "muxtunnel.dev/static-config-hash";

pub(super) fn build(
    tunnel: &ValidatedTunnel,
    end: End,
    gateway: &ValidatedGateway,
    config: &Config,
    settings: &Settings,
) -> Result<Deployment, BuildError> {
    let own_labels = labels::child(&tunnel.name, end.component());
    let template = &gateway.template;
    let mut annotations = template.annotations.clone();
    annotations.insert(
        STATIC_HASH.to_owned(),
        config_map::static_hash(config, end)?,
    );
    let mut pod_labels = template.labels.clone();
    pod_labels.extend(own_labels.clone());
    Ok(Deployment {
        metadata: metadata(tunnel, end),
        spec: Some(DeploymentSpec {
            replicas: Some(gateway.replicas),
            selector: LabelSelector {
                match_labels: Some(own_labels),
                match_expressions: None,
            },
            // The old pods serve until new ones do.
            strategy: Some(DeploymentStrategy {
                type_: Some("RollingUpdate".to_owned()),
                rolling_update: Some(RollingUpdateDeployment {
                    max_surge: Some(IntOrString::Int(1)),
                    max_unavailable: Some(IntOrString::Int(0)),
                }),
            }),
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta {
                    labels: Some(pod_labels),
                    annotations: Some(annotations),
                    ..ObjectMeta::default()
                }),
                spec: Some(pod(tunnel, end, template, settings)),
            },
            ..DeploymentSpec::default()
        }),
        status: None,
    })
}

fn pod(tunnel: &ValidatedTunnel, end: End, template: &PodTemplate, settings: &Settings) -> PodSpec {
    let mut volumes = vec![Volume {
        name: CONFIG_VOLUME.to_owned(),
        config_map: Some(ConfigMapVolumeSource {
            name: end.child_name(tunnel),
            ..ConfigMapVolumeSource::default()
        }),
        ..Volume::default()
    }];
    volumes.extend(tunnel.wan.as_ref().map(|_| wan::volume()));
    PodSpec {
        service_account_name: Some(end.child_name(tunnel)),
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        termination_grace_period_seconds: Some(GRACE_SECONDS),
        security_context: Some(pod_security(tunnel.sysctls())),
        init_containers: tunnel
            .wan
            .as_ref()
            .map(|asked| vec![wan::container(asked, settings)]),
        containers: vec![container(end, template, settings)],
        volumes: Some(volumes),
        node_selector: (!template.node_selector.is_empty()).then(|| template.node_selector.clone()),
        tolerations: some(&template.tolerations),
        affinity: template.affinity.clone(),
        topology_spread_constraints: some(&template.topology_spread_constraints),
        priority_class_name: template.priority_class_name.clone(),
        image_pull_secrets: some(&template.image_pull_secrets),
        ..PodSpec::default()
    }
}

fn some<T: Clone>(items: &[T]) -> Option<Vec<T>> {
    (!items.is_empty()).then(|| items.to_vec())
}

fn pod_security(sysctls: BTreeMap<String, String>) -> PodSecurityContext {
    PodSecurityContext {
        run_as_non_root: Some(true),
        run_as_user: Some(UID),
        run_as_group: Some(UID),
        seccomp_profile: Some(seccomp()),
        sysctls: Some(
            sysctls
                .into_iter()
                .map(|(name, value)| Sysctl { name, value })
                .collect(),
        ),
        ..PodSecurityContext::default()
    }
}

fn seccomp() -> SeccompProfile {
    SeccompProfile {
        type_: "RuntimeDefault".to_owned(),
        localhost_profile: None,
    }
}

fn container(end: End, template: &PodTemplate, settings: &Settings) -> Container {
    let mut ports = vec![port("admin", ADMIN_PORT)];
    if end == End::Exit {
        ports.push(port("carrier", CARRIER_PORT));
    }
    Container {
        name: CONTAINER.to_owned(),
        image: Some(settings.gateway_image.clone()),
        image_pull_policy: Some(settings.image_pull_policy.clone()),
        command: Some(vec!["/usr/local/bin/muxgate".to_owned()]),
        args: Some(vec![
            "run".to_owned(),
            "--config".to_owned(),
            format!("{CONFIG_FOLDER}/{}", config_map::FILE),
        ]),
        ports: Some(ports),
        readiness_probe: Some(probe("/readyz", 1, 3)),
        liveness_probe: Some(probe("/healthz", 10, 6)),
        resources: Some(resources(template.resources.as_ref())),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            read_only_root_filesystem: Some(true),
            capabilities: Some(Capabilities {
                drop: Some(vec!["ALL".to_owned()]),
                add: None,
            }),
            ..SecurityContext::default()
        }),
        // The folder, not the file: a file mounted by subPath never changes in a running pod.
        volume_mounts: Some(vec![VolumeMount {
            name: CONFIG_VOLUME.to_owned(),
            mount_path: CONFIG_FOLDER.to_owned(),
            read_only: Some(true),
            ..VolumeMount::default()
        }]),
        ..Container::default()
    }
}

fn port(name: &str, number: u16) -> ContainerPort {
    ContainerPort {
        name: Some(name.to_owned()),
        container_port: i32::from(number),
        protocol: Some("TCP".to_owned()),
        ..ContainerPort::default()
    }
}

fn probe(path: &str, period_seconds: i32, failure_threshold: i32) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.to_owned()),
            port: IntOrString::Int(i32::from(ADMIN_PORT)),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(period_seconds),
        timeout_seconds: Some(2),
        failure_threshold: Some(failure_threshold),
        ..Probe::default()
    }
}

/// Small requests and no limit by default: a limit of CPU throttles the data path, and one of memory
/// must fit the sessions' budgets, which only the user knows.
fn resources(asked: Option<&Resources>) -> ResourceRequirements {
    let mut requests: BTreeMap<String, Quantity> = [("cpu", "10m"), ("memory", "32Mi")]
        .map(|(name, amount)| (name.to_owned(), Quantity(amount.to_owned())))
        .into();
    let Some(asked) = asked else {
        return ResourceRequirements {
            requests: Some(requests),
            ..ResourceRequirements::default()
        };
    };
    // Where only a limit is given, Kubernetes requests as much; ours would be at odds with it.
    requests.retain(|name, _| !asked.limits.contains_key(name));
    requests.extend(asked.requests.clone());
    ResourceRequirements {
        requests: Some(requests),
        limits: (!asked.limits.is_empty()).then(|| asked.limits.clone()),
        claims: None,
    }
}
