//! The HorizontalPodAutoscaler of an end that scales by CPU time.

use k8s_openapi::api::autoscaling::v2::{
    ContainerResourceMetricSource, CrossVersionObjectReference, HorizontalPodAutoscaler,
    HorizontalPodAutoscalerSpec, MetricSpec, MetricTarget,
};

use super::{End, deployment, metadata};
use crate::tunnel_controller::validate::{Replicas, ValidatedGateway, ValidatedObject};

/// Returns `None` if the number is fixed. The metric covers only the gateway's container, so an
/// added container without requests, such as a mesh's sidecar, does not affect the metric.
pub(super) fn build(
    object: &ValidatedObject,
    end: End,
    gateway: &ValidatedGateway,
) -> Option<HorizontalPodAutoscaler> {
    let Replicas::Autoscaled {
        min,
        max,
        target_cpu_percent,
    } = gateway.replicas
    else {
        return None;
    };
    let cpu = MetricSpec {
        type_: "ContainerResource".to_owned(),
        container_resource: Some(ContainerResourceMetricSource {
            container: deployment::CONTAINER.to_owned(),
            name: "cpu".to_owned(),
            target: MetricTarget {
                type_: "Utilization".to_owned(),
                average_utilization: Some(target_cpu_percent),
                ..MetricTarget::default()
            },
        }),
        ..MetricSpec::default()
    };
    Some(HorizontalPodAutoscaler {
        metadata: metadata(object, end),
        spec: Some(HorizontalPodAutoscalerSpec {
            scale_target_ref: CrossVersionObjectReference {
                api_version: Some("apps/v1".to_owned()),
                kind: "Deployment".to_owned(),
                name: object.child(end),
            },
            min_replicas: Some(min),
            max_replicas: max,
            metrics: Some(vec![cpu]),
            behavior: None,
        }),
        status: None,
    })
}
