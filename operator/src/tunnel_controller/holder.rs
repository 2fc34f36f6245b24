//! An object as the owner of its children.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use super::end::End;
use super::error::Error;
use super::object::{Kind, Object};
use crate::apply::Children;
use crate::watches::ObjectId;

/// The object that owns children, independent of its spec.
#[derive(Debug, Clone, PartialEq)]
pub struct Holder {
    /// Kind of the object.
    pub kind: Kind,
    /// Name of the object.
    pub name: String,
    /// Namespace of the object.
    pub namespace: String,
    /// The owner reference for the object's children.
    pub owner: OwnerReference,
    /// The generation of the object's spec.
    pub generation: Option<i64>,
}

impl Holder {
    /// The holder of `object`.
    ///
    /// # Errors
    /// Only for an object that an API server cannot have sent.
    pub fn of(object: &Object) -> Result<Self, Error> {
        Ok(Self {
            kind: object.kind(),
            name: object.name_any(),
            namespace: object.namespace().ok_or(Error::Incomplete("namespace"))?,
            owner: object.owner_reference().ok_or(Error::Incomplete("uid"))?,
            generation: object.meta().generation,
        })
    }

    /// The object.
    pub fn id(&self) -> ObjectId {
        ObjectId {
            namespace: self.namespace.clone(),
            kind: self.kind.name().to_owned(),
            name: self.name.clone(),
        }
    }

    /// The object's kind and name, as in the labels of its children.
    pub fn labelled(&self) -> (&str, &str) {
        (self.kind.name(), &self.name)
    }

    /// The name of the children of `end`.
    pub fn child(&self, end: End) -> String {
        self.kind.child(end, &self.name)
    }

    /// The object's children with one of `components`.
    pub fn children<'a>(&'a self, components: &'a [&'a str]) -> Children<'a> {
        Children {
            namespace: &self.namespace,
            components,
            owner: &self.owner,
            generation: self.generation,
            adopts: true,
        }
    }
}
