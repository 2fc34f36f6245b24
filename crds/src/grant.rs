//! [`MuxGrant`]: permits tunnels and exits of other namespaces to use Services of its namespace. Its spec has
//! the form of the Gateway API's ReferenceGrant. The operator also reads ReferenceGrants, where
//! they are installed.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with_macros::skip_serializing_none;

use crate::patterns;

/// Permits objects of other namespaces to refer to objects of this namespace. Deletion of the
/// MuxGrant withdraws the permission.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[kube(
    group = "muxtunnel.dev",
    version = "v1alpha1",
    kind = "MuxGrant",
    plural = "muxgrants",
    shortname = "mg",
    category = "mux",
    namespaced,
    derive = "PartialEq",
    doc = "Permits objects of other namespaces to refer to objects of this namespace, as the Gateway API's ReferenceGrant does. Deletion of the MuxGrant withdraws the permission."
)]
#[serde(rename_all = "camelCase")]
pub struct MuxGrantSpec {
    /// The objects of other namespaces that may refer to objects of this namespace.
    #[schemars(length(min = 1, max = 16), extend("x-kubernetes-list-type" = "atomic"))]
    pub from: Vec<MuxGrantFrom>,
    /// The objects of this namespace to which the objects of `from` may refer.
    #[schemars(length(min = 1, max = 16), extend("x-kubernetes-list-type" = "atomic"))]
    pub to: Vec<MuxGrantTo>,
}

/// Objects of one kind in one namespace.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct MuxGrantFrom {
    /// API group of the objects: muxtunnel.dev.
    #[schemars(extend("enum" = ["muxtunnel.dev"]))]
    pub group: String,
    /// Kind of the objects: MuxTunnel or MuxExit.
    #[schemars(extend("enum" = ["MuxTunnel", "MuxExit"]))]
    pub kind: String,
    /// Namespace of the objects.
    #[schemars(length(min = 1, max = 63), regex(pattern = patterns::LABEL))]
    pub namespace: String,
}

impl MuxGrantFrom {
    fn is_of_muxtunnel(&self) -> bool {
        self.group == "muxtunnel.dev" && ["MuxTunnel", "MuxExit"].contains(&self.kind.as_str())
    }
}

/// Objects of this namespace.
#[skip_serializing_none]
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct MuxGrantTo {
    /// API group of the objects. Must be empty, because Services belong to the API group with the
    /// empty name.
    #[schemars(extend("enum" = [""]))]
    pub group: String,
    /// Kind of the objects: Service.
    #[schemars(extend("enum" = ["Service"]))]
    pub kind: String,
    /// Name of a single object. Default: all objects of the kind.
    #[schemars(length(min = 1, max = 63), regex(pattern = patterns::LABEL))]
    pub name: Option<String>,
}

impl MuxGrantSpec {
    /// Whether this grant permits an object of `kind` in `namespace` to refer to the Service `name`
    /// of the grant's own namespace. Entries for other kinds are ignored, so the spec of a
    /// ReferenceGrant can be parsed as a MuxGrant's.
    #[must_use]
    pub fn permits(&self, kind: &str, namespace: &str, name: &str) -> bool {
        let from = self
            .from
            .iter()
            .any(|from| from.is_of_muxtunnel() && from.kind == kind && from.namespace == namespace);
        let to = self.to.iter().any(|to| {
            to.group.is_empty()
                && to.kind == "Service"
                && to.name.as_deref().is_none_or(|named| named == name)
        });
        from && to
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(text: &str) -> MuxGrantSpec {
        serde_yaml::from_str(text).unwrap()
    }

    #[test]
    fn a_grant_is_for_one_kind_of_one_namespace_and_for_what_it_names() {
        let one = grant(
            "
from: [{group: muxtunnel.dev, kind: MuxTunnel, namespace: a}]
to: [{group: '', kind: Service, name: shop}]
",
        );
        assert!(one.permits("MuxTunnel", "a", "shop"));
        assert!(!one.permits("MuxTunnel", "b", "shop"));
        assert!(!one.permits("MuxExit", "a", "shop"));
        assert!(!one.permits("MuxTunnel", "a", "vault"));
        let all = grant(
            "
from: [{group: muxtunnel.dev, kind: MuxTunnel, namespace: a}]
to: [{group: '', kind: Service}]
",
        );
        assert!(all.permits("MuxTunnel", "a", "shop") && all.permits("MuxTunnel", "a", "vault"));
    }

    #[test]
    fn what_a_reference_grant_says_of_others_permits_nothing() {
        for (from, to) in [
            (
                "group: gateway.networking.k8s.io, kind: HTTPRoute",
                "group: '', kind: Service",
            ),
            (
                "group: muxtunnel.dev, kind: HTTPRoute",
                "group: '', kind: Service",
            ),
            (
                "group: muxtunnel.dev, kind: MuxTunnel",
                "group: '', kind: Secret",
            ),
            (
                "group: muxtunnel.dev, kind: MuxTunnel",
                "group: apps, kind: Service",
            ),
        ] {
            let grant = grant(&format!(
                "{{from: [{{{from}, namespace: a}}], to: [{{{to}}}]}}"
            ));
            assert!(!grant.permits("MuxTunnel", "a", "shop"), "{from} {to}");
        }
    }
}
