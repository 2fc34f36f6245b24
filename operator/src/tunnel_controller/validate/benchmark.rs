//! The link of an object to the MuxBenchmark that created it. Pure.

use kube::Resource;
use muxtunnel_crds::MuxBenchmark;

use crate::muxbench;
use crate::tunnel_controller::object::Object;

/// The MuxBenchmark that created an object as an environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwningBenchmark {
    /// The benchmark's name. The benchmark's runner queries the gateways.
    pub name: String,
    /// With a network: the Secret with the token of the agents in the gateways' pods.
    pub agents_token: Option<String>,
}

impl OwningBenchmark {
    /// Returns `None` if no benchmark created the object.
    pub(super) fn of(object: &Object) -> Option<Self> {
        let (version, kind) = (MuxBenchmark::api_version(&()), MuxBenchmark::kind(&()));
        let mut owners = object.meta().owner_references.iter().flatten();
        let owner = owners.find(|owner| {
            owner.controller == Some(true) && owner.api_version == version && owner.kind == kind
        })?;
        let token = || muxbench::token(&owner.name, &owner.uid);
        Some(Self {
            name: owner.name.clone(),
            agents_token: object.has_network().then(token),
        })
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

    use std::sync::Arc;

    use super::*;

    /// The users of a namespace can write owner references. A reference names a Secret and a runner
    /// of the tunnel's own namespace only.
    #[test]
    fn only_a_controller_of_the_right_kind_and_group_is_a_benchmark() {
        let owner = OwnerReference {
            api_version: MuxBenchmark::api_version(&()).into_owned(),
            kind: "MuxBenchmark".into(),
            name: "b".into(),
            uid: "2b4a".into(),
            controller: Some(true),
            block_owner_deletion: None,
        };
        let of = |owner: OwnerReference| {
            let mut tunnel: muxtunnel_crds::MuxTunnel = serde_yaml::from_str(
                "{apiVersion: muxtunnel.dev/v1alpha1, kind: MuxTunnel, metadata: {name: t}, spec: {}}",
            )
            .unwrap();
            tunnel.metadata.owner_references = Some(vec![owner]);
            OwningBenchmark::of(&Arc::new(tunnel).into())
        };
        assert_eq!(of(owner.clone()).map(|found| found.name), Some("b".into()));
        for forged in [
            OwnerReference {
                api_version: "example.com/v1alpha1".into(),
                ..owner.clone()
            },
            OwnerReference {
                kind: "MuxTunnel".into(),
                ..owner.clone()
            },
            OwnerReference {
                controller: None,
                ..owner
            },
        ] {
            assert_eq!(of(forged), None);
        }
    }
}
