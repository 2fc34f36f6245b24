//! Functions that both controllers use for pods.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{
    Capabilities, ConfigMapVolumeSource, ContainerPort, ContainerStatus, EmptyDirVolumeSource,
    HTTPGetAction, KeyToPath, Pod, PodSecurityContext, PodSpec, PodTemplateSpec, Probe,
    ProjectedVolumeSource, ResourceRequirements, SeccompProfile, SecretProjection,
    SecretVolumeSource, SecurityContext, Sysctl, Volume, VolumeMount, VolumeProjection,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::core::ObjectMeta;
use muxtunnel_crds::{Resources, TemplateMetadata, TemplateSpec};

/// The resources of which every container of a pod takes a part. A device, for example, is only for
/// the main container.
const SHARED: [&str; 3] = ["cpu", "ephemeral-storage", "memory"];

/// Default amounts of resources, by name.
pub type Amounts<'a> = &'a [(&'a str, &'a str)];

/// Whether the condition `type_` of the pod is true.
pub fn is_true(pod: &Pod, type_: &str) -> bool {
    let conditions = pod.status.iter().flat_map(|status| &status.conditions);
    let mut conditions = conditions.flatten();
    conditions.any(|condition| condition.type_ == type_ && condition.status == "True")
}

/// Whether the pod's readiness probe succeeds.
pub fn is_ready(pod: &Pod) -> bool {
    is_true(pod, "Ready")
}

/// The sysctls that pods with `spec` request.
pub fn sysctls(spec: &PodSpec) -> impl Iterator<Item = &Sysctl> {
    let context = spec.security_context.iter();
    context.flat_map(|context| context.sysctls.iter().flatten())
}

/// Whether pods with `spec` request these sysctls and no others.
pub fn has_sysctls(spec: &PodSpec, wanted: &BTreeMap<String, String>) -> bool {
    let own = sysctls(spec).map(|sysctl| (&sysctl.name, &sysctl.value));
    own.collect::<BTreeMap<_, _>>() == wanted.iter().collect()
}

/// The statuses of all containers of the pod, the init containers first.
pub fn containers(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.iter();
    let all =
        status.flat_map(|status| [&status.init_container_statuses, &status.container_statuses]);
    all.flat_map(|statuses| statuses.iter().flatten())
}

/// Whether the node has created the pod's sandbox, and so accepts the pod's sysctls. The pod need
/// not be ready: an entry is not ready while it has no carrier.
pub fn is_started(pod: &Pod) -> bool {
    let mut states = containers(pod).flat_map(|one| [&one.state, &one.last_state]);
    states.any(|state| {
        let state = state.as_ref();
        state.is_some_and(|state| state.running.is_some() || state.terminated.is_some())
    })
}

/// The pod's address.
pub fn host(pod: &Pod) -> Option<String> {
    let host = pod.status.as_ref()?.pod_ip.clone();
    host.filter(|host| !host.is_empty())
}

/// The host in the form for a URL. IPv6 addresses get brackets.
pub fn in_url(host: &str) -> String {
    match host.contains(':') {
        true => format!("[{host}]"),
        false => host.to_owned(),
    }
}

/// Why the ReplicaSet cannot create pods, for example because of a quota, a LimitRange or Pod
/// Security.
pub fn replica_failure(deployment: &Deployment) -> Option<String> {
    let mut conditions = deployment.status.as_ref()?.conditions.iter().flatten();
    let failure = conditions.find(|one| one.type_ == "ReplicaFailure" && one.status == "True");
    failure?.message.clone()
}

/// The resources of a container. A default applies only to a resource that `asked` does not name:
/// if only a limit is set, Kubernetes requests the same amount, and a smaller default request would
/// override this request.
pub fn resources(
    asked: Option<&Resources>,
    requests: Amounts<'_>,
    limits: Amounts<'_>,
) -> ResourceRequirements {
    let asked = asked.cloned().unwrap_or_default();
    let is_asked =
        |name: &str| asked.requests.contains_key(name) || asked.limits.contains_key(name);
    let with = |own: &BTreeMap<String, Quantity>, defaults: Amounts<'_>| {
        let defaults = defaults.iter().filter(|(name, _)| !is_asked(name));
        let defaults = defaults.map(|(name, amount)| (*name, *amount));
        let mut all: BTreeMap<_, _> = defaults
            .map(|(name, amount)| (name.to_owned(), Quantity(amount.to_owned())))
            .collect();
        all.extend(own.clone());
        all
    };
    let limits = with(&asked.limits, limits);
    ResourceRequirements {
        requests: Some(with(&asked.requests, requests)),
        limits: (!limits.is_empty()).then_some(limits),
        claims: None,
    }
}

/// The resources of a container beside the main container. Like the main container, it has the
/// resources in `asked`, because quotas and LimitRanges apply to each container.
pub fn helper_resources(
    asked: Option<&Resources>,
    requests: Amounts<'_>,
    limits: Amounts<'_>,
) -> ResourceRequirements {
    let mut shared = asked.cloned().unwrap_or_default();
    for amounts in [&mut shared.requests, &mut shared.limits] {
        amounts.retain(|name, _| SHARED.contains(&name.as_str()));
    }
    resources(Some(&shared), requests, limits)
}

/// The pod with the labels and annotations of `asked`. Its own `labels` take precedence.
pub fn template(
    asked: TemplateMetadata,
    labels: BTreeMap<String, String>,
    pod: PodSpec,
) -> PodTemplateSpec {
    let (mut all, annotations) = (asked.labels, asked.annotations);
    all.extend(labels);
    PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: Some(all),
            annotations: (!annotations.is_empty()).then_some(annotations),
            ..ObjectMeta::default()
        }),
        spec: Some(pod),
    }
}

/// The fields of a pod that a template has, apart from the containers.
pub fn of_template<C>(template: TemplateSpec<C>) -> PodSpec {
    PodSpec {
        node_selector: (!template.node_selector.is_empty()).then_some(template.node_selector),
        tolerations: some(template.tolerations),
        affinity: template.affinity,
        topology_spread_constraints: some(template.topology_spread_constraints),
        priority_class_name: template.priority_class_name,
        runtime_class_name: template.runtime_class_name,
        scheduler_name: template.scheduler_name,
        image_pull_secrets: some(template.image_pull_secrets),
        dns_policy: template.dns_policy.map(|policy| policy.as_str().to_owned()),
        dns_config: template.dns_config,
        host_aliases: some(template.host_aliases),
        ..PodSpec::default()
    }
}

/// The security context of a container that needs no privilege.
pub fn unprivileged() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        read_only_root_filesystem: Some(true),
        capabilities: Some(Capabilities {
            drop: Some(vec!["ALL".to_owned()]),
            add: None,
        }),
        ..SecurityContext::default()
    }
}

/// The security context of a container that runs as root with `capabilities` alone.
pub fn privileged(capabilities: &[&str]) -> SecurityContext {
    let names = |names: &[&str]| Some(names.iter().map(|name| (*name).to_owned()).collect());
    SecurityContext {
        run_as_user: Some(0),
        run_as_group: Some(0),
        run_as_non_root: Some(false),
        capabilities: Some(Capabilities {
            drop: names(&["ALL"]),
            add: names(capabilities),
        }),
        seccomp_profile: Some(seccomp()),
        ..unprivileged()
    }
}

/// The default profile of the container runtime.
pub fn seccomp() -> SeccompProfile {
    SeccompProfile {
        type_: "RuntimeDefault".to_owned(),
        localhost_profile: None,
    }
}

/// The user of the gateways that own an interface for IP packets, which is the user of the images.
/// Other pods have no user of their own: a cluster may give each namespace a range of users.
pub const UID: i64 = 65532;

/// The security context of a pod with unprivileged containers.
pub fn pod_security() -> PodSecurityContext {
    PodSecurityContext {
        run_as_non_root: Some(true),
        seccomp_profile: Some(seccomp()),
        ..PodSecurityContext::default()
    }
}

/// A TCP port of a container.
pub fn port(name: &str, number: u16) -> ContainerPort {
    ContainerPort {
        name: Some(name.to_owned()),
        container_port: i32::from(number),
        protocol: Some("TCP".to_owned()),
        ..ContainerPort::default()
    }
}

/// A probe by HTTP, with its period and time limit in seconds, and the number of failures.
pub fn probe(path: &str, port: u16, (period, timeout): (i32, i32), failures: Option<i32>) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.to_owned()),
            port: IntOrString::Int(i32::from(port)),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(period),
        timeout_seconds: Some(timeout),
        failure_threshold: failures,
        ..Probe::default()
    }
}

/// Mounts the volume `name`.
pub fn mount(name: &str, path: &str) -> VolumeMount {
    VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        ..VolumeMount::default()
    }
}

/// Mounts the volume `name` for reading. The whole directory is mounted, because a file that is
/// mounted by subPath never changes in a running pod.
pub fn read_only(name: &str, path: &str) -> VolumeMount {
    VolumeMount {
        read_only: Some(true),
        ..mount(name, path)
    }
}

/// A volume with the Secret `secret`.
pub fn secret_volume(name: &str, secret: String) -> Volume {
    Volume {
        name: name.to_owned(),
        secret: Some(SecretVolumeSource {
            secret_name: Some(secret),
            ..SecretVolumeSource::default()
        }),
        ..Volume::default()
    }
}

/// A volume with the ConfigMap `config_map`, or with its key and file in `item`.
pub fn config_map_volume(name: &str, config_map: String, item: Option<KeyToPath>) -> Volume {
    Volume {
        name: name.to_owned(),
        config_map: Some(ConfigMapVolumeSource {
            name: config_map,
            items: item.map(|item| vec![item]),
            ..ConfigMapVolumeSource::default()
        }),
        ..Volume::default()
    }
}

/// A volume with files of several Secrets.
pub fn secrets_volume<I>(name: &str, files: I) -> Volume
where
    I: IntoIterator<Item = (String, KeyToPath)>,
{
    let source = |(secret, file)| VolumeProjection {
        secret: Some(SecretProjection {
            name: secret,
            items: Some(vec![file]),
            optional: None,
        }),
        ..VolumeProjection::default()
    };
    Volume {
        name: name.to_owned(),
        projected: Some(ProjectedVolumeSource {
            default_mode: None,
            sources: Some(files.into_iter().map(source).collect()),
        }),
        ..Volume::default()
    }
}

/// The key `key` of a Secret or a ConfigMap as the file `path` of a volume. All files have the
/// default mode: every user of the container can read them, because the cluster may choose the
/// user.
pub fn file(key: &str, path: &str) -> KeyToPath {
    KeyToPath {
        key: key.to_owned(),
        path: path.to_owned(),
        mode: None,
    }
}

/// `None` for an empty list.
pub fn some<T>(items: Vec<T>) -> Option<Vec<T>> {
    (!items.is_empty()).then_some(items)
}

/// The argument `--name value`.
pub fn flag(name: &str, value: impl ToString) -> [String; 2] {
    [format!("--{name}"), value.to_string()]
}

/// An empty directory of the pod.
pub fn empty_volume(name: &str) -> Volume {
    Volume {
        name: name.to_owned(),
        empty_dir: Some(EmptyDirVolumeSource::default()),
        ..Volume::default()
    }
}
