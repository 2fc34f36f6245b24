//! The PodDisruptionBudget of an end that has, or may get, several pods. Only one pod at a time may
//! be evicted, for example by a drain of its node.

use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::{End, metadata, selector};
use crate::labels::having;
use crate::tunnel_controller::validate::{ValidatedGateway, ValidatedObject};

/// Returns `None` for an end with at most one pod, because the budget would restrict nothing.
pub(super) fn build(
    object: &ValidatedObject,
    end: End,
    gateway: &ValidatedGateway,
) -> Option<PodDisruptionBudget> {
    (gateway.replicas.most() > 1).then(|| PodDisruptionBudget {
        metadata: metadata(object, end),
        spec: Some(PodDisruptionBudgetSpec {
            max_unavailable: Some(IntOrString::Int(1)),
            // Pods that are not ready do not block the drain of a node.
            unhealthy_pod_eviction_policy: Some("AlwaysAllow".to_owned()),
            selector: Some(having(selector(object, end))),
            ..PodDisruptionBudgetSpec::default()
        }),
        status: None,
    })
}
