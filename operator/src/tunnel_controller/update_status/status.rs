//! The status of an object of any kind. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use muxtunnel_crds::{Bottleneck, MuxExitStatus, MuxRendezvousStatus, MuxTunnelStatus, PeerCounts};
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
    pub fn of(object: &Object) -> Self {
        match object {
            Object::Tunnel(one) => Self::Tunnel(one.status.clone().unwrap_or_default()),
            Object::Exit(one) => Self::Exit(one.status.clone().unwrap_or_default()),
            Object::Rendezvous(one) => Self::Rendezvous(one.status.clone().unwrap_or_default()),
        }
    }

    /// The conditions.
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

    /// The status with 0 for each count that may change at any time.
    pub(super) fn still(&self) -> Self {
        let mut still = self.clone();
        if let Some(carriers) = of_each!(&mut still, status => &mut status.carriers) {
            carriers.connected = 0;
        }
        let network = match &mut still {
            Self::Tunnel(status) => status.network.as_mut(),
            Self::Exit(status) => {
                status.peers = status.peers.map(|_| PeerCounts::default());
                status.network.as_mut()
            }
            Self::Rendezvous(_) => None,
        };
        if let Some(network) = network {
            network.sessions = 0;
        }
        still
    }
}
