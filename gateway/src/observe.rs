//! Observability: metrics, and samples of the carriers' bottlenecks.

pub(crate) mod carrier_sampler;
pub(crate) mod metrics;
