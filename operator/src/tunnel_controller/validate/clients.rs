//! The clients of a port. Pure.

use k8s_openapi::api::networking::v1::NetworkPolicyPeer;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use muxtunnel_crds as crds;
use muxtunnel_crds::ClientsType;

/// The clients that the NetworkPolicy permits.
#[derive(Debug, Clone, PartialEq)]
pub enum Clients {
    /// Any client.
    Any,
    /// Only these clients.
    Some(Vec<NetworkPolicyPeer>),
}

impl Clients {
    /// The clients in a field `from`. `default` applies without the field.
    #[must_use]
    pub fn of(asked: Option<&crds::Clients>, default: ClientsType) -> Self {
        match asked.map_or(default, |asked| asked.type_) {
            ClientsType::Any => Self::Any,
            ClientsType::Namespace => Self::pods(LabelSelector::default()),
            ClientsType::Peers => Self::Some(asked.map_or(Vec::new(), |asked| asked.peers.clone())),
        }
    }

    /// Pods of the object's namespace.
    pub(super) fn pods(selector: LabelSelector) -> Self {
        Self::Some(vec![NetworkPolicyPeer {
            pod_selector: Some(selector),
            ..NetworkPolicyPeer::default()
        }])
    }
}
