//! Settings of the installation, which apply to all objects.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Settings of the operator, from its flags.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Whether the operator may patch the annotation [`REFRESH`](crate::labels::REFRESH) of the
    /// gateways' pods.
    pub refresh_volumes: bool,
    /// Whether gateways get NetworkPolicies, and which peers may use their admin port.
    pub network_policy: Option<AdminPeers>,
}

/// The images of pods.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Images {
    /// Image with `/usr/local/bin/muxgate`.
    pub gateway: String,
    /// Image with `/usr/local/bin/muxwan`.
    pub wan: String,
    /// Image with `/usr/local/bin/muxbench`.
    pub bench: String,
}

/// The peers that may use the gateways' admin port, in addition to the kubelet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdminPeers {
    /// The operator's own namespace.
    pub operator_namespace: String,
    /// Labels of the operator's pods.
    pub operator_labels: BTreeMap<String, String>,
    /// Labels of the namespaces whose pods may read metrics. If empty, no pod may read metrics.
    pub metrics_namespace_labels: BTreeMap<String, String>,
}
