//! The status of an object of any kind. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use muxtunnel_crds::{
    Bottleneck, CarrierStatus, MuxExitStatus, MuxRendezvousStatus, MuxTunnelStatus, NetworkStatus,
    PeerCounts,
};
use serde::Serialize;

use crate::tunnel_controller::object::Object;

/// The status of an object of any kind.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Status {
    /// The status of a MuxTunnel.
    Tunnel(MuxTunnelStatus),
    /// The status of a MuxExit.
    Exit(MuxExitStatus),
    /// The status of a MuxRendezvous.
    Rendezvous(MuxRendezvousStatus),
}

/// The same expression for the status of each kind.
macro_rules! of_each {
    ($status:expr, $one:ident => $value:expr) => {
        match $status {
            Status::Tunnel($one) => $value,
            Status::Exit($one) => $value,
            Status::Rendezvous($one) => $value,
        }
    };
}

impl Status {
    /// The stored status of `object`.
    #[must_use]
    pub fn of(object: &Object) -> Self {
        match object {
            Object::Tunnel(one) => Self::Tunnel(one.status.clone().unwrap_or_default()),
            Object::Exit(one) => Self::Exit(one.status.clone().unwrap_or_default()),
            Object::Rendezvous(one) => Self::Rendezvous(one.status.clone().unwrap_or_default()),
        }
    }

    /// The conditions.
    #[must_use]
    pub fn conditions(&self) -> &[Condition] {
        of_each!(self, status => &status.conditions)
    }

    /// Sets the conditions, and the generation of the spec that the status describes.
    pub(super) fn judge(&mut self, conditions: Vec<Condition>, generation: Option<i64>) {
        of_each!(self, status => {
            status.conditions = conditions;
            status.observed_generation = generation;
        });
    }

    /// The bottleneck. `None` for a kind that has none.
    pub(super) fn bottleneck(&mut self) -> Option<&mut Option<Bottleneck>> {
        match self {
            Self::Tunnel(status) => Some(&mut status.bottleneck),
            Self::Exit(status) => Some(&mut status.bottleneck),
            Self::Rendezvous(_) => None,
        }
    }

    /// The counts that may change at any time.
    pub(super) fn counts(&mut self) -> Vec<&mut i32> {
        let (carriers, network, peers) = match self {
            Self::Tunnel(status) => (&mut status.carriers, Some(&mut status.network), None),
            Self::Exit(status) => (
                &mut status.carriers,
                Some(&mut status.network),
                Some(&mut status.peers),
            ),
            Self::Rendezvous(status) => (&mut status.carriers, None, None),
        };
        let carriers = carriers
            .iter_mut()
            .map(|CarrierStatus { connected, .. }| connected);
        let network = network.into_iter().flatten();
        let network = network.map(|NetworkStatus { sessions, .. }| sessions);
        let peers = peers.into_iter().flatten();
        let peers = peers.flat_map(|PeerCounts { total, connected }| [total, connected]);
        carriers.chain(network).chain(peers).collect()
    }
}
