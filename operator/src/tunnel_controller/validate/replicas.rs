//! The number of gateways of one side. Pure.

use k8s_openapi::api::apps::v1::Deployment;
use kube::ResourceExt;
use muxtunnel_crds::Gateway;

use crate::tunnel_controller::rollouts::STOPPED;

/// Default of the average CPU usage of a gateway, in percent of its CPU request.
const TARGET_CPU_PERCENT_DEFAULT: i32 = 80;

/// The number of gateways of one side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replicas {
    /// A fixed number.
    Fixed(i32),
    /// The spec sets no number: 1 when the Deployment is created, and later the Deployment's current
    /// number, which is the value. Users and their autoscalers own the number.
    Free(i32),
    /// Scaled by CPU usage. The autoscaler owns the number.
    Autoscaled {
        /// Lower bound.
        min: i32,
        /// Upper bound.
        max: i32,
        /// Average CPU usage per gateway, percent of its request.
        target_cpu_percent: i32,
    },
}

impl Replicas {
    /// The number in the spec. Without one, the number of an end with the Deployment `live`. A
    /// Deployment that the operator stopped starts again with one pod.
    pub(super) fn of(asked: &Gateway, live: Option<&Deployment>) -> Self {
        if let Some(asked) = asked.autoscaling {
            return Self::Autoscaled {
                min: asked.min_replicas.unwrap_or(1),
                max: asked.max_replicas,
                target_cpu_percent: asked
                    .target_cpu_utilization_percentage
                    .unwrap_or(TARGET_CPU_PERCENT_DEFAULT),
            };
        }
        let running = live.filter(|live| !live.annotations().contains_key(STOPPED));
        let number = running.and_then(|live| live.spec.as_ref()?.replicas);
        let free = || Self::Free(number.unwrap_or(1));
        asked.replicas.map_or_else(free, Self::Fixed)
    }

    /// The number for the Deployment. `None` if another client owns the number.
    #[must_use]
    pub const fn fixed(self) -> Option<i32> {
        match self {
            Self::Fixed(replicas) => Some(replicas),
            Self::Free(_) | Self::Autoscaled { .. } => None,
        }
    }

    /// The least number of gateways. Only a user who scales to 0 causes the value 0.
    #[must_use]
    pub const fn least(self) -> i32 {
        match self {
            Self::Fixed(replicas) | Self::Free(replicas) => replicas,
            Self::Autoscaled { min, .. } => min,
        }
    }

    /// The greatest number of gateways, without additional pods during a roll-out.
    #[must_use]
    pub const fn most(self) -> i32 {
        match self {
            Self::Fixed(replicas) | Self::Free(replicas) => replicas,
            Self::Autoscaled { max, .. } => max,
        }
    }
}
