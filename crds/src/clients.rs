//! The clients of a port.

use k8s_openapi::api::networking::v1::NetworkPolicyPeer;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rules;

/// The clients that the gateways' NetworkPolicy admits, if the cluster's network enforces
/// NetworkPolicies.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::peers_of_type())]
pub struct Clients {
    /// Namespace: the pods of the object's namespace. Any: all clients, inside and outside the
    /// cluster. Peers: the clients in `peers`.
    #[serde(rename = "type")]
    pub type_: ClientsType,
    /// Type Peers: pods and networks, as in a NetworkPolicy. Behind a load balancer or a node port,
    /// use the source addresses that the gateways see.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "atomic"))]
    pub peers: Vec<NetworkPolicyPeer>,
}

impl Clients {
    /// The clients in a field `from`, as in a NetworkPolicy: `None` admits all. `default` applies without the
    /// field.
    #[must_use]
    pub fn admitted(asked: Option<&Self>, default: ClientsType) -> Option<Vec<NetworkPolicyPeer>> {
        match asked.map_or(default, |asked| asked.type_) {
            ClientsType::Any => None,
            ClientsType::Namespace => Some(vec![NetworkPolicyPeer {
                pod_selector: Some(LabelSelector::default()),
                ..NetworkPolicyPeer::default()
            }]),
            ClientsType::Peers => Some(asked.map_or(Vec::new(), |asked| asked.peers.clone())),
        }
    }
}

/// The clients of a port. Namespace: the pods of the object's namespace. Any: all clients. Peers:
/// the clients that `peers` lists.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientsType {
    /// The pods of the object's namespace.
    Namespace,
    /// All clients, inside and outside the cluster.
    Any,
    /// The clients that `peers` lists.
    Peers,
}
