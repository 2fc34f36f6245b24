//! A tunnel, as its children know it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;
use muxtunnel_crds::MuxTunnel;

use super::error::Error;
use crate::apply::{Children, owner_reference};

/// The tunnel that children are of, whatever its spec says.
#[derive(Debug, Clone)]
pub struct Holder {
    /// Name of the object.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// The reference by which it owns its children.
    pub owner: OwnerReference,
    /// Generation of its spec.
    pub generation: Option<i64>,
}

impl Holder {
    /// That of `tunnel`.
    ///
    /// # Errors
    /// Only for an object that no API server could have sent.
    pub fn of(tunnel: &MuxTunnel) -> Result<Self, Error> {
        Ok(Self {
            name: tunnel.name_any(),
            namespace: tunnel.namespace().ok_or(Error::Incomplete("namespace"))?,
            owner: owner_reference(tunnel).ok_or(Error::Incomplete("uid"))?,
            generation: tunnel.metadata.generation,
        })
    }

    /// Its children with one of `components`.
    #[must_use]
    pub fn children<'a>(&'a self, components: &'a [&'a str]) -> Children<'a> {
        Children {
            namespace: &self.namespace,
            instance: &self.name,
            components,
            owner: &self.owner,
            generation: self.generation,
        }
    }
}
