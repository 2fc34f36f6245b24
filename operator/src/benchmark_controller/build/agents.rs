//! The agents. An agent is a pod at one end of a path. It runs iperf when the runner requests this.
//!
//! The agents of the tunnel path keep the kernel's default sysctls and have no WAN emulation. The
//! agents of the direct path have the gateways' sysctls and delay: the sidecar for WAN emulation
//! runs in their pods, and delays the ports of iperf and echo. Each agent has the same placement
//! rules as the gateways of its end, unless the template has its own. The agents that measure IP packets run in the gateways' pods
//! of the MuxTunnel that carries the packets. The tunnel's controller builds these pods.

use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec, DeploymentStrategy};
use k8s_openapi::api::core::v1::{PodSpec, Service, ServicePort, ServiceSpec, Volume};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use muxtunnel_bench_api::{ECHO_PORT, IPERF_PORT, Path};
use muxtunnel_crds::{BenchmarkContainerName, IpFamilyPolicy};

use super::{owned, template};
use crate::benchmark_controller::names::{Agent, agent_selector, environment_labels};
use crate::benchmark_controller::validate::{Environment, ValidatedBenchmark};
use crate::labels::having;
use crate::muxbench;
use crate::pods;
use crate::tunnel_controller::pods::WAN_CONTAINER;

/// Grace period of an agent, which has nothing to drain.
const GRACE_SECONDS: i64 = 5;

/// The Deployment of one agent. `gateway`: the pod template of the gateways at the agent's end.
pub fn deployment(
    benchmark: &ValidatedBenchmark,
    environment: &Environment,
    agent: Agent,
    gateway: &PodSpec,
) -> Deployment {
    let index = environment.key.index;
    let labels = environment_labels(&benchmark.name, agent.component(), index);
    // The class is in the template of the gateway.
    let mut asked = benchmark.template.spec.clone().unwrap_or_default();
    if !asked.image_pull_secrets.is_empty() {
        asked.image_pull_secrets = benchmark.class.pull_secrets(asked.image_pull_secrets);
    }
    let resources = benchmark.resources(BenchmarkContainerName::Agent);
    let mut spec = PodSpec {
        containers: vec![muxbench::agent(&benchmark.class, resources)],
        termination_grace_period_seconds: Some(GRACE_SECONDS),
        ..pod(benchmark, placed(pods::of_template(asked), gateway.clone()))
    };
    if agent.path == Path::Direct {
        like_a_gateway(&mut spec, gateway);
    }
    let selector = agent_selector(&benchmark.name, agent.component(), index);
    Deployment {
        metadata: owned(
            benchmark,
            agent.name(&benchmark.name, index),
            labels.clone(),
        ),
        spec: Some(DeploymentSpec {
            replicas: Some(1),
            // Nobody returns to an earlier agent.
            revision_history_limit: Some(0),
            // If an old and a new pod of an agent ran at the same time, the runner could measure
            // the old pod.
            strategy: Some(DeploymentStrategy {
                type_: Some("Recreate".to_owned()),
                rolling_update: None,
            }),
            selector: having(selector),
            template: template(benchmark, labels, spec),
            ..DeploymentSpec::default()
        }),
        status: None,
    }
}

/// The Service of a server agent, which is the target of the tunnel's forwards.
pub fn service(benchmark: &ValidatedBenchmark, environment: &Environment, agent: Agent) -> Service {
    let index = environment.key.index;
    let labels = environment_labels(&benchmark.name, agent.component(), index);
    let port = |name: &str, port: u16| ServicePort {
        name: Some(name.to_owned()),
        port: port.into(),
        target_port: Some(IntOrString::Int(port.into())),
        protocol: Some("TCP".to_owned()),
        ..ServicePort::default()
    };
    Service {
        metadata: owned(
            benchmark,
            agent.name(&benchmark.name, index),
            labels.clone(),
        ),
        spec: Some(ServiceSpec {
            selector: Some(agent_selector(&benchmark.name, agent.component(), index)),
            ports: Some(vec![port("iperf", IPERF_PORT), port("echo", ECHO_PORT)]),
            ip_family_policy: Some(IpFamilyPolicy::PreferDualStack.as_str().to_owned()),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

/// The fields of a template in `own`, or otherwise in the pod of a gateway.
fn placed(own: PodSpec, gateway: PodSpec) -> PodSpec {
    PodSpec {
        node_selector: own.node_selector.or(gateway.node_selector),
        tolerations: own.tolerations.or(gateway.tolerations),
        affinity: own.affinity.or(gateway.affinity),
        priority_class_name: own.priority_class_name.or(gateway.priority_class_name),
        runtime_class_name: own.runtime_class_name.or(gateway.runtime_class_name),
        scheduler_name: own.scheduler_name.or(gateway.scheduler_name),
        image_pull_secrets: own.image_pull_secrets.or(gateway.image_pull_secrets),
        dns_policy: own.dns_policy.or(gateway.dns_policy),
        dns_config: own.dns_config.or(gateway.dns_config),
        host_aliases: own.host_aliases.or(gateway.host_aliases),
        ..own
    }
}

/// The common part of all pods of a benchmark. The pods are unprivileged. They mount the token of
/// the benchmark, and no token of the service account. `placed`: the fields of a template.
pub fn pod(benchmark: &ValidatedBenchmark, placed: PodSpec) -> PodSpec {
    let token = muxbench::token(&benchmark.name, &benchmark.owner.uid);
    PodSpec {
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        security_context: Some(pods::pod_security()),
        volumes: Some(vec![muxbench::token_volume(token)]),
        ..placed
    }
}

/// Gives an agent the gateways' sysctls, and their delay on the agent's ports.
fn like_a_gateway(spec: &mut PodSpec, gateway: &PodSpec) {
    if let (Some(own), Some(theirs)) = (&mut spec.security_context, &gateway.security_context) {
        own.sysctls.clone_from(&theirs.sysctls);
    }
    let mut containers = gateway.init_containers.iter().flatten();
    let Some(wan) = containers.find(|container| container.name == WAN_CONTAINER) else {
        return;
    };
    let mut wan = wan.clone();
    let args = wan.args.unwrap_or_default();
    wan.args = Some(with_ports(&args, &[IPERF_PORT, ECHO_PORT]));
    let mounted = |volume: &&Volume| {
        let mut mounts = wan.volume_mounts.iter().flatten();
        mounts.any(|mount| mount.name == volume.name)
    };
    let volumes = gateway.volumes.iter().flatten().filter(mounted).cloned();
    spec.volumes.get_or_insert_default().extend(volumes);
    spec.init_containers = Some(vec![wan]);
}

/// `args` of muxwan, with `--port` for each of `ports` in place of the carrier's port.
fn with_ports(args: &[String], ports: &[u16]) -> Vec<String> {
    let mut changed = Vec::new();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        if arg == "--port" {
            args.next();
            changed.extend(ports.iter().flat_map(|port| pods::flag("port", port)));
        } else {
            changed.push(arg.clone());
        }
    }
    changed
}
