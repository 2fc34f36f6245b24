//! The NetworkPolicy of an end's gateways: which clients may connect to them.
//!
//! The policy restricts only ingress. Policies are additive, so egress rules would permit
//! connections that the namespace's own policies refuse. An exit's targets are names, which a
//! NetworkPolicy cannot contain, so the exit checks the resolved address. The kubelet's probes need
//! no rule, because a pod's own node may always connect.

use std::collections::BTreeMap;

use k8s_openapi::api::networking::v1::{
    IPBlock, NetworkPolicy, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicyPort,
    NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use muxtunnel_bench_api::HTTP_PORT;
use muxtunnel_gateway_config::{ADMIN_PORT, CARRIER_PORT};

use super::service::{TCP, carrier_port_names};
use super::{End, metadata};
use crate::labels;
use crate::settings::AdminPeers;
use crate::tunnel_controller::validate::{Clients, OwningBenchmark, ValidatedTunnel};

/// A label of every namespace with its name.
const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

pub(super) fn build(tunnel: &ValidatedTunnel, end: End, peers: &AdminPeers) -> NetworkPolicy {
    let carriers = carrier_port_names(tunnel).iter();
    let carriers = carriers
        .filter(|_| end.is_dialled(tunnel))
        .map(|(_, protocol)| rule(carrier_peers(tunnel), [CARRIER_PORT], protocol));
    // Ports with the same clients share a rule. Without ports there is no rule, because a rule
    // without ports would permit all ports.
    let mut listened: BTreeMap<&Clients, Vec<u16>> = BTreeMap::new();
    for port in &tunnel.listen_ports {
        if port.reverse == (end == End::Exit) {
            listened.entry(&port.clients).or_default().push(port.port);
        }
    }
    if let Some(ssh) = end.ssh(tunnel) {
        listened.entry(&ssh.clients).or_default().push(ssh.port);
    }
    let listened = listened
        .into_iter()
        .map(|(clients, ports)| rule(client_peers(clients), ports, TCP));
    let admin = rule(admin_peers(tunnel, peers), [ADMIN_PORT], TCP);
    let agents = tunnel.benchmark.as_ref();
    let agents = agents.filter(|benchmark| benchmark.agents_token.is_some());
    let agents = agents.map(|benchmark| rule(vec![runner(benchmark)], [HTTP_PORT], TCP));
    NetworkPolicy {
        metadata: metadata(tunnel, end),
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(having(labels::child(&tunnel.name, end.component()))),
            policy_types: Some(vec!["Ingress".to_owned()]),
            ingress: Some(
                carriers
                    .chain(listened)
                    .chain([admin])
                    .chain(agents)
                    .collect(),
            ),
            egress: None,
        }),
    }
}

/// The clients of listening ports (empty: any client).
fn client_peers(clients: &Clients) -> Vec<NetworkPolicyPeer> {
    let Clients::Some {
        pods: of,
        ip_blocks,
    } = clients
    else {
        return Vec::new();
    };
    let of = of.iter().map(|(namespaces, labels)| NetworkPolicyPeer {
        namespace_selector: (!namespaces.is_empty()).then(|| named(namespaces)),
        ..pods(None, labels.clone())
    });
    let blocks = ip_blocks.iter().map(|cidr| NetworkPolicyPeer {
        ip_block: Some(IPBlock {
            cidr: cidr.clone(),
            except: None,
        }),
        ..NetworkPolicyPeer::default()
    });
    of.chain(blocks).collect()
}

/// Selects namespaces by their names.
fn named(namespaces: &[String]) -> LabelSelector {
    LabelSelector {
        match_labels: None,
        match_expressions: Some(vec![LabelSelectorRequirement {
            key: NAMESPACE_NAME.to_owned(),
            operator: "In".to_owned(),
            values: Some(namespaces.to_vec()),
        }]),
    }
}

/// The peers that dial carriers. If this tunnel has both sides, the peers are the entry's pods.
/// Otherwise the peers belong to other objects. They may be in another cluster or come through a
/// load balancer, so no selector can match them. The result is then empty, which permits any
/// client. `carrier.security` then identifies the peers.
fn carrier_peers(tunnel: &ValidatedTunnel) -> Vec<NetworkPolicyPeer> {
    let own = tunnel.has_both_sides();
    let entry = || pods(None, labels::child(&tunnel.name, End::Entry.component()));
    own.then(entry).into_iter().collect()
}

fn admin_peers(tunnel: &ValidatedTunnel, peers: &AdminPeers) -> Vec<NetworkPolicyPeer> {
    let name = (NAMESPACE_NAME.to_owned(), peers.operator_namespace.clone());
    let operator = pods(Some([name].into()), peers.operator_labels.clone());
    let metrics = &peers.metrics_namespace_labels;
    let metrics = (!metrics.is_empty()).then(|| NetworkPolicyPeer {
        namespace_selector: Some(having(metrics.clone())),
        ..NetworkPolicyPeer::default()
    });
    let runner = tunnel.benchmark.as_ref().map(runner);
    [operator]
        .into_iter()
        .chain(metrics)
        .chain(runner)
        .collect()
}

/// The runner of the benchmark that created the tunnel as an environment.
fn runner(benchmark: &OwningBenchmark) -> NetworkPolicyPeer {
    pods(None, labels::child(&benchmark.name, labels::RUNNER))
}

/// Pods with `labels`, in the tunnel's namespace or in namespaces with the labels `namespace`.
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

fn having(labels: BTreeMap<String, String>) -> LabelSelector {
    LabelSelector {
        match_labels: (!labels.is_empty()).then_some(labels),
        match_expressions: None,
    }
}

fn rule(
    from: Vec<NetworkPolicyPeer>,
    ports: impl IntoIterator<Item = u16>,
    protocol: &str,
) -> NetworkPolicyIngressRule {
    let port = |number: u16| NetworkPolicyPort {
        port: Some(IntOrString::Int(i32::from(number))),
        protocol: Some(protocol.to_owned()),
        end_port: None,
    };
    NetworkPolicyIngressRule {
        from: (!from.is_empty()).then_some(from),
        ports: Some(ports.into_iter().map(port).collect()),
    }
}
