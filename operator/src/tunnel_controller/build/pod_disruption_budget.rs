//! The PodDisruptionBudget of an end that has, or may get, several pods: of those, one at a time may be evicted, as when nodes are
//! drained.

use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::{End, metadata};
use crate::labels;
use crate::tunnel_controller::validate::{ValidatedGateway, ValidatedTunnel};

/// `None`: with never more than one pod it would do nothing but say that it may go.
pub(super) fn build(
    tunnel: &ValidatedTunnel,
    end: End,
    gateway: &ValidatedGateway,
) -> Option<PodDisruptionBudget> {
    (gateway.replicas.most() > 1).then(|| PodDisruptionBudget {
        metadata: metadata(tunnel, end),
        spec: Some(PodDisruptionBudgetSpec {
            max_unavailable: Some(IntOrString::Int(1)),
            // Pods that do not serve anyway keep no node from being drained.
            unhealthy_pod_eviction_policy: Some("AlwaysAllow".to_owned()),
            selector: Some(LabelSelector {
                match_labels: Some(labels::child(&tunnel.name, end.component())),
                match_expressions: None,
            }),
            ..PodDisruptionBudgetSpec::default()
        }),
        status: None,
    })
}
