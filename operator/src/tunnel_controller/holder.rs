//! A tunnel as the owner of its children.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;
use muxtunnel_crds::MuxTunnel;

use super::error::Error;
use crate::apply::{Children, owner_reference};

/// The tunnel that owns children, independent of its spec.
#[derive(Debug, Clone)]
pub struct Holder {
    /// Name of the object.
    pub name: String,
    /// Namespace of the tunnel.
    pub namespace: String,
    /// The owner reference for the tunnel's children.
    pub owner: OwnerReference,
    /// The generation of the tunnel's spec.
    pub generation: Option<i64>,
}

impl Holder {
    /// The holder of `tunnel`.
    ///
    /// # Errors
    /// Only for an object that an API server cannot have sent.
    pub fn of(tunnel: &MuxTunnel) -> Result<Self, Error> {
        Ok(Self {
            name: tunnel.name_any(),
            namespace: tunnel.namespace().ok_or(Error::Incomplete("namespace"))?,
            owner: owner_reference(tunnel).ok_or(Error::Incomplete("uid"))?,
            generation: tunnel.metadata.generation,
        })
    }

    /// The tunnel's children with one of `components`.
    #[must_use]
    pub fn children<'a>(&'a self, components: &'a [&'a str]) -> Children<'a> {
        Children {
            namespace: &self.namespace,
            instance: &self.name,
            components,
            owner: &self.owner,
            generation: self.generation,
            adopts: true,
        }
    }
}
