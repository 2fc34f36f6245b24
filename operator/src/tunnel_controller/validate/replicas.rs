//! The number of gateways of one side. Pure.

use muxtunnel_crds::Gateway;

/// Default of the average CPU usage of a gateway, in percent of its CPU request.
const TARGET_CPU_PERCENT_DEFAULT: i32 = 80;

/// The number of gateways of one side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replicas {
    /// A fixed number.
    Fixed(i32),
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
    pub(super) fn of(asked: &Gateway) -> Self {
        match asked.autoscaling {
            None => Self::Fixed(asked.replicas.unwrap_or(1)),
            Some(asked) => Self::Autoscaled {
                min: asked.min_replicas.unwrap_or(1),
                max: asked.max_replicas,
                target_cpu_percent: asked
                    .target_cpu_utilization_percentage
                    .unwrap_or(TARGET_CPU_PERCENT_DEFAULT),
            },
        }
    }

    /// The number for the Deployment. `None` if the autoscaler owns the number.
    #[must_use]
    pub const fn fixed(self) -> Option<i32> {
        match self {
            Self::Fixed(replicas) => Some(replicas),
            Self::Autoscaled { .. } => None,
        }
    }

    /// The least number of gateways. The value is at least 1.
    #[must_use]
    pub const fn least(self) -> i32 {
        match self {
            Self::Fixed(replicas) => replicas,
            Self::Autoscaled { min, .. } => min,
        }
    }

    /// The greatest number of gateways, without additional pods during a roll-out.
    #[must_use]
    pub const fn most(self) -> i32 {
        match self {
            Self::Fixed(replicas) => replicas,
            Self::Autoscaled { max, .. } => max,
        }
    }
}
