//! What is shown of the gateway: metrics, and samples of what limits its carriers.

pub(crate) mod carrier_sampler;
pub(crate) mod metrics;
