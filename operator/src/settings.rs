//! What the installation decides, for all objects alike.

use std::collections::BTreeMap;
use std::time::Duration;

/// Settings of the operator, from its flags.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Image with `/usr/local/bin/muxgate`.
    pub gateway_image: String,
    /// Image with `/usr/local/bin/muxwan`.
    pub netem_image: String,
    /// Image with `/usr/local/bin/muxbench`.
    pub bench_image: String,
    /// `Always`, `IfNotPresent` or `Never`, for all pods that are made.
    pub image_pull_policy: String,
    /// Whether a tunnel may have WAN emulation, whose containers need NET_ADMIN.
    pub wan_emulation: bool,
    /// Whether gateways get NetworkPolicies, and who reaches their admin port by them.
    pub network_policy: Option<AdminPeers>,
    /// The operator's own namespace.
    pub namespace: String,
    /// Its ServiceAccount.
    pub service_account: String,
    /// The Secret of `namespace` with what all authorities are derived from.
    pub ca_secret: String,
    /// The trust domain in the SPIFFE IDs of gateways.
    pub trust_domain: String,
    /// How long a gateway's certificate is good.
    pub certificate_life: Duration,
    /// How long an authority of entries is good, and with it a join bundle.
    pub authority_life: Duration,
}

/// Who beside the kubelet reaches the admin port of gateways.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdminPeers {
    /// The operator's own namespace.
    pub operator_namespace: String,
    /// Labels of the operator's pods.
    pub operator_labels: BTreeMap<String, String>,
    /// Labels of the namespaces whose pods read metrics; empty: nobody does.
    pub metrics_namespace_labels: BTreeMap<String, String>,
}
