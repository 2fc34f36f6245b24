//! The inputs and outputs of the steps of a reconciliation, shared by all reconciliations of an
//! operator.

use std::sync::Arc;

use super::certifier::Certifier;
use super::rollouts::Rollouts;
use crate::api_server::ApiServer;
use crate::caches::{Cluster, Targets};
use crate::grants::Grants;
use crate::metrics::tunnels::Tunnels;
use crate::settings::Settings;
use crate::watch_clock::WatchClock;

/// The inputs and outputs of the steps.
pub struct Access {
    /// The caches, and a client for reads without a watch.
    pub cluster: Cluster,
    /// The Services that forwards target.
    pub targets: Targets,
    /// The grants of other namespaces.
    pub grants: Grants,
    /// The API server's addresses.
    pub api_server: ApiServer,
    /// The last issued certificates, and the seed.
    pub certifier: Certifier,
    /// The ends whose pods nodes have refused.
    pub rollouts: Rollouts,
    /// The sums of the gateways' figures, for the metrics.
    pub figures: Tunnels,
    /// The age of each watch.
    pub watches: Arc<WatchClock>,
    /// The settings of the installation.
    pub settings: Arc<Settings>,
}
