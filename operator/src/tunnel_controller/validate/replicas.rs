//! How many gateways one side has. Pure.

use muxtunnel_crds::Gateway;

/// The part of the requested CPU time that a gateway is to take on average, unless the spec says another.
const TARGET_CPU_PERCENT_DEFAULT: i32 = 80;

/// How many gateways one side has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replicas {
    /// This many.
    Fixed(i32),
    /// As many as their CPU time asks for; the number is not ours.
    Autoscaled {
        /// Never fewer.
        min: i32,
        /// Never more.
        max: i32,
        /// What each is to take on average, percent of what it requests.
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

    /// The number that is asked for of the Deployment; `None`: it is the autoscaler's.
    #[must_use]
    pub const fn fixed(self) -> Option<i32> {
        match self {
            Self::Fixed(replicas) => Some(replicas),
            Self::Autoscaled { .. } => None,
        }
    }

    /// There are never fewer, at least 1.
    #[must_use]
    pub const fn least(self) -> i32 {
        match self {
            Self::Fixed(replicas) => replicas,
            Self::Autoscaled { min, .. } => min,
        }
    }

    /// There are never more, but for a roll-out's.
    #[must_use]
    pub const fn most(self) -> i32 {
        match self {
            Self::Fixed(replicas) => replicas,
            Self::Autoscaled { max, .. } => max,
        }
    }
}
