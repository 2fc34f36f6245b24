//! What a tunnel has of the MuxBenchmark that made it. Pure.

use kube::{Resource, ResourceExt};
use muxtunnel_crds::{MuxBenchmark, MuxTunnel};

use crate::muxbench;

/// The MuxBenchmark that a tunnel is an environment of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwningBenchmark {
    /// Its name. Its runner asks the gateways how they are.
    pub name: String,
    /// Where the tunnel carries IP packets: the Secret with the token of the agents that are in the pods of the gateways.
    pub agents_token: Option<String>,
}

impl OwningBenchmark {
    /// `None`: no benchmark made the tunnel.
    pub(super) fn of(tunnel: &MuxTunnel) -> Option<Self> {
        let kind = MuxBenchmark::kind(&());
        let mut owners = tunnel.owner_references().iter();
        let owner = owners.find(|owner| owner.controller == Some(true) && owner.kind == kind)?;
        let network = tunnel.spec.network.as_ref();
        Some(Self {
            name: owner.name.clone(),
            agents_token: network.map(|_| muxbench::token(&owner.name, &owner.uid)),
        })
    }
}
