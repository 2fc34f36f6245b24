//! The NetworkPolicy of an end's gateways: which clients may connect to them.
//!
//! The policy restricts only ingress. Policies are additive, so egress rules would permit
//! connections that the namespace's own policies refuse. An exit's targets are names, which a
//! NetworkPolicy cannot contain, so the exit checks the resolved address. The kubelet's probes need
//! no rule, because a pod's own node may always connect.

use std::collections::BTreeMap;

use k8s_openapi::api::networking::v1::{
    NetworkPolicy, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicyPort,
    NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::Resource;
use muxtunnel_bench_api::HTTP_PORT;
use muxtunnel_crds::{Clients, ClientsType, MuxBenchmark};
use muxtunnel_gateway_config::{ADMIN_PORT, CARRIER_PORT};

use super::service::{TCP, carrier_port_names};
use super::{End, metadata, selector};
use crate::labels::{self, having};
use crate::settings::AdminPeers;
use crate::tunnel_controller::validate::{OwningBenchmark, ValidatedGateway, ValidatedObject};

/// A label of every namespace with its name.
const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

/// The clients of a port. `None`: all clients.
type Admitted = Option<Vec<NetworkPolicyPeer>>;

pub(super) fn build(
    object: &ValidatedObject,
    end: End,
    gateway: &ValidatedGateway,
    peers: &AdminPeers,
) -> NetworkPolicy {
    let carriers = gateway.carrier_port.iter().flat_map(|port| {
        let protocols = carrier_port_names(&object.carrier).iter();
        protocols.filter_map(|(_, protocol)| rule(port.clients.clone(), [CARRIER_PORT], protocol))
    });
    // Ports with the same clients share a rule.
    let listened = object.listen_ports(end);
    let listened = listened.map(|port| (port.from.as_ref(), port.port));
    let ssh = gateway
        .ssh
        .iter()
        .map(|ssh| (ssh.from.as_ref(), ssh.port()));
    let mut shared: Vec<(Admitted, Vec<u16>)> = Vec::new();
    for (from, port) in listened.chain(ssh) {
        let clients = Clients::admitted(from, ClientsType::Namespace);
        match shared.iter_mut().find(|(known, _)| *known == clients) {
            Some((_, ports)) => ports.push(port),
            None => shared.push((clients, vec![port])),
        }
    }
    let listened = shared
        .into_iter()
        .filter_map(|(clients, ports)| rule(clients, ports, TCP));
    let admin = rule(Some(admin_peers(object, peers)), [ADMIN_PORT], TCP);
    let agents = object.benchmark.as_ref();
    let agents = agents.filter(|benchmark| benchmark.agents_token.is_some());
    let agents = agents.and_then(|benchmark| rule(Some(vec![runner(benchmark)]), [HTTP_PORT], TCP));
    let rules = carriers.chain(listened).chain(admin).chain(agents);
    NetworkPolicy {
        metadata: metadata(object, end),
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(having(selector(object, end))),
            policy_types: Some(vec!["Ingress".to_owned()]),
            ingress: Some(rules.collect()),
            egress: None,
        }),
    }
}

fn admin_peers(object: &ValidatedObject, peers: &AdminPeers) -> Vec<NetworkPolicyPeer> {
    let name = (NAMESPACE_NAME.to_owned(), peers.operator_namespace.clone());
    let operator = pods(Some([name].into()), peers.operator_labels.clone());
    let metrics = &peers.metrics_namespace_labels;
    let metrics = (!metrics.is_empty()).then(|| NetworkPolicyPeer {
        namespace_selector: Some(having(metrics.clone())),
        ..NetworkPolicyPeer::default()
    });
    let runner = object.benchmark.as_ref().map(runner);
    [operator]
        .into_iter()
        .chain(metrics)
        .chain(runner)
        .collect()
}

/// The runner of the benchmark that created the object as an environment.
fn runner(benchmark: &OwningBenchmark) -> NetworkPolicyPeer {
    let kind = MuxBenchmark::kind(&());
    pods(
        None,
        labels::selector(&kind, &benchmark.name, labels::RUNNER),
    )
}

/// Pods with `labels`, in the object's namespace or in namespaces with the labels `namespace`.
fn pods(
    namespace: Option<BTreeMap<String, String>>,
    labels: BTreeMap<String, String>,
) -> NetworkPolicyPeer {
    NetworkPolicyPeer {
        namespace_selector: namespace.map(having),
        pod_selector: Some(having(labels)),
        ip_block: None,
    }
}

/// `None` with an empty list of clients and without ports, because a rule with an empty list would permit
/// all clients, and a rule without ports would permit all ports.
fn rule(
    from: Admitted,
    ports: impl IntoIterator<Item = u16>,
    protocol: &str,
) -> Option<NetworkPolicyIngressRule> {
    let port = |number: u16| NetworkPolicyPort {
        port: Some(IntOrString::Int(i32::from(number))),
        protocol: Some(protocol.to_owned()),
        end_port: None,
    };
    let ports: Vec<_> = ports.into_iter().map(port).collect();
    let is_for_nobody = from.as_ref().is_some_and(Vec::is_empty);
    (!is_for_nobody && !ports.is_empty()).then_some(NetworkPolicyIngressRule {
        from,
        ports: Some(ports),
    })
}
