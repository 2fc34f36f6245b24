//! The objects that gateways serve: [`MuxTunnel`], [`MuxExit`] and [`MuxRendezvous`]. This module
//! is pure.
//!
//! All steps take an [`Object`]. Its functions return the fields that several kinds have, so a step
//! names a kind only for a field of this kind alone.

mod spec;

use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, OwnerReference};
use kube::api::ObjectMeta;
use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt};
use muxtunnel_crds::{KeyStatus, MuxExit, MuxRendezvous, MuxTunnel};

use super::end::End;
use crate::apply::owner_reference;
use crate::undecoded;
use crate::watches::ObjectId;

/// The kind of an object that gateways serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A MuxTunnel: entries, and exits of its own unless it has `connect`.
    Tunnel,
    /// A MuxExit: exits for entries elsewhere.
    Exit,
    /// A MuxRendezvous: a gateway that joins entries and exits.
    Rendezvous,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Tunnel, Self::Exit, Self::Rendezvous];

    /// The kind's name in the API, and the value of the label `muxtunnel.dev/kind`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tunnel => "MuxTunnel",
            Self::Exit => "MuxExit",
            Self::Rendezvous => "MuxRendezvous",
        }
    }

    /// The kind's short name in the API, which is also in SPIFFE IDs.
    #[must_use]
    pub const fn short_name(self) -> &'static str {
        match self {
            Self::Tunnel => "mt",
            Self::Exit => "mx",
            Self::Rendezvous => "mr",
        }
    }

    /// The ends that objects of this kind may have.
    #[must_use]
    pub const fn ends(self) -> &'static [End] {
        match self {
            Self::Tunnel => &[End::Exit, End::Entry],
            Self::Exit => &[End::Exit],
            Self::Rendezvous => &[End::Rendezvous],
        }
    }

    /// The name of the children of `end` of the object `name`.
    #[must_use]
    pub fn child(self, end: End, name: &str) -> String {
        // A MuxExit and the exit of a MuxTunnel may have one name.
        let owner = match (self, end) {
            (Self::Tunnel, End::Exit) => "tunnel-",
            _ => "",
        };
        format!("{name}-{owner}{}", end.component())
    }

    /// The default name of the Service with the ports that the exits of the object `name` open for
    /// clients.
    #[must_use]
    pub fn reverse_service(self, name: &str) -> String {
        match self {
            Self::Exit => format!("{name}-exit-reverse"),
            Self::Tunnel | Self::Rendezvous => format!("{name}-reverse"),
        }
    }
}

/// An object that gateways serve. A clone shares the object.
#[derive(Debug, Clone)]
pub enum Object {
    /// A MuxTunnel.
    Tunnel(Arc<MuxTunnel>),
    /// A MuxExit.
    Exit(Arc<MuxExit>),
    /// A MuxRendezvous.
    Rendezvous(Arc<MuxRendezvous>),
}

macro_rules! into_object {
    ($($kind:ident: $type:ident),+) => {
        $(impl From<$type> for Object {
            fn from(object: $type) -> Self {
                Self::$kind(Arc::new(object))
            }
        }

        impl From<Arc<$type>> for Object {
            fn from(object: Arc<$type>) -> Self {
                Self::$kind(object)
            }
        })+
    };
}
into_object!(Tunnel: MuxTunnel, Exit: MuxExit, Rendezvous: MuxRendezvous);

/// The same expression for the object of each kind.
macro_rules! of_each {
    ($object:expr, $one:ident => $value:expr) => {
        match $object {
            Object::Tunnel($one) => $value,
            Object::Exit($one) => $value,
            Object::Rendezvous($one) => $value,
        }
    };
}
pub(in crate::tunnel_controller) use of_each;

/// What the operator knows of an object, whatever its kind.
impl Object {
    /// The kind.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Tunnel(_) => Kind::Tunnel,
            Self::Exit(_) => Kind::Exit,
            Self::Rendezvous(_) => Kind::Rendezvous,
        }
    }

    /// The metadata.
    #[must_use]
    pub fn meta(&self) -> &ObjectMeta {
        of_each!(self, object => &object.metadata)
    }

    /// The name.
    #[must_use]
    pub fn name_any(&self) -> String {
        of_each!(self, object => object.name_any())
    }

    /// The namespace.
    #[must_use]
    pub fn namespace(&self) -> Option<String> {
        self.meta().namespace.clone()
    }

    /// The UID.
    #[must_use]
    pub fn uid(&self) -> Option<String> {
        self.meta().uid.clone()
    }

    /// The reference for Events.
    #[must_use]
    pub fn object_ref(&self) -> ObjectReference {
        of_each!(self, object => object.object_ref(&()))
    }

    /// The owner reference for children. `None` for an object without a UID.
    #[must_use]
    pub fn owner_reference(&self) -> Option<OwnerReference> {
        of_each!(self, object => owner_reference(&**object))
    }

    /// The conditions of the status.
    #[must_use]
    pub fn conditions(&self) -> &[Condition] {
        of_each!(self, object => object.status.as_ref().map_or(&[], |status| &status.conditions))
    }

    /// The keys in the status.
    #[must_use]
    pub fn keys(&self) -> &[KeyStatus] {
        of_each!(self, object => object.status.as_ref().map_or(&[], |status| &status.keys))
    }

    /// The object's kind, namespace and name.
    #[must_use]
    pub fn id(&self) -> ObjectId {
        of_each!(self, object => ObjectRef::from_obj(&**object).into())
    }

    /// The generation of the spec that the status describes.
    #[must_use]
    pub fn observed_generation(&self) -> Option<i64> {
        of_each!(self, object => object.status.as_ref()?.observed_generation)
    }

    /// The `className` of the spec.
    #[must_use]
    pub fn class_name(&self) -> Option<&str> {
        of_each!(self, object => object.spec.class_name.as_deref())
    }

    /// Whether the operator only writes the status.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        of_each!(self, object => object.spec.paused)
    }

    /// Whether the object is being deleted.
    #[must_use]
    pub fn is_deleted(&self) -> bool {
        self.meta().deletion_timestamp.is_some()
    }

    /// Why this version of the operator cannot decode the object.
    #[must_use]
    pub fn undecoded(&self) -> Option<&str> {
        of_each!(self, object => undecoded::reason(&**object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One name may be the name of a MuxTunnel, a MuxExit and a MuxRendezvous.
    #[test]
    fn objects_of_one_name_have_children_of_different_names() {
        let children = Kind::ALL.into_iter().flat_map(|kind| {
            let ends = kind.ends().iter();
            ends.map(move |end| kind.child(*end, "shop"))
        });
        let mut children: Vec<_> = children.collect();
        children.sort();
        let expected = [
            "shop-entry",
            "shop-exit",
            "shop-rendezvous",
            "shop-tunnel-exit",
        ];
        assert_eq!(children, expected);
    }
}
