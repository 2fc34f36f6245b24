//! What the steps of a reconciliation read and write, besides the tunnel: one for all reconciliations of an operator.

use std::sync::Arc;

use super::certifier::Certifier;
use super::rollouts::Rollouts;
use crate::api_server::ApiServer;
use crate::caches::{Cluster, Targets};
use crate::grants::Grants;
use crate::metrics::tunnels::Tunnels;
use crate::settings::Settings;
use crate::watch_clock::WatchClock;

/// What the steps read and write.
pub struct Access {
    /// The children, and what no watch may bring.
    pub cluster: Cluster,
    /// The Services that forwards target.
    pub targets: Targets,
    /// What other namespaces permit.
    pub grants: Grants,
    /// Where the API server is.
    pub api_server: ApiServer,
    /// What is remembered of certificates, and the seed.
    pub certifier: Certifier,
    /// What is remembered of ends that were refused.
    pub rollouts: Rollouts,
    /// The figures of the metrics.
    pub figures: Tunnels,
    /// Which watches bring nothing.
    pub watches: Arc<WatchClock>,
    /// How the operator was installed.
    pub settings: Arc<Settings>,
}
