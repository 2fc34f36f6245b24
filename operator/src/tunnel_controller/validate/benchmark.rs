//! The link of a tunnel to the MuxBenchmark that created it. Pure.

use kube::{Resource, ResourceExt};
use muxtunnel_crds::{MuxBenchmark, MuxTunnel};

use crate::muxbench;

/// The MuxBenchmark that created a tunnel as an environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwningBenchmark {
    /// The benchmark's name. The benchmark's runner queries the gateways.
    pub name: String,
    /// With a network: the Secret with the token of the agents in the gateways' pods.
    pub agents_token: Option<String>,
}

impl OwningBenchmark {
    /// Returns `None` if no benchmark created the tunnel.
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
