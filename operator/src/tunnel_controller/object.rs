//! The objects that gateways serve: [`MuxTunnel`], [`MuxExit`] and [`MuxRendezvous`]. This module
//! is pure.
//!
//! All steps take an [`Object`]. Its functions return the fields that several kinds have, so a step
//! names a kind only for a field of this kind alone.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, OwnerReference};
use kube::api::ObjectMeta;
use kube::{Resource, ResourceExt};
use muxtunnel_crds::{
    CertificateSource, Connect, ExitCarrier, Forward, Gateway, KeySource, KeyStatus, MuxExit,
    MuxRendezvous, MuxTunnel, Pool, Proxy, ReverseForward, Rule, SecurityMode, Service, Template,
    Timeouts, Tuning, WanEmulation,
};

use super::end::End;
use crate::apply::owner_reference;
use crate::undecoded;

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

    /// The kind with this name in the API.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
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

    /// The kind's plural in the API.
    #[must_use]
    pub fn plural(self) -> String {
        match self {
            Self::Tunnel => MuxTunnel::plural(&()),
            Self::Exit => MuxExit::plural(&()),
            Self::Rendezvous => MuxRendezvous::plural(&()),
        }
        .into_owned()
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

impl From<MuxTunnel> for Object {
    fn from(object: MuxTunnel) -> Self {
        Self::Tunnel(Arc::new(object))
    }
}

impl From<Arc<MuxTunnel>> for Object {
    fn from(object: Arc<MuxTunnel>) -> Self {
        Self::Tunnel(object)
    }
}

impl From<MuxExit> for Object {
    fn from(object: MuxExit) -> Self {
        Self::Exit(Arc::new(object))
    }
}

impl From<Arc<MuxExit>> for Object {
    fn from(object: Arc<MuxExit>) -> Self {
        Self::Exit(object)
    }
}

impl From<MuxRendezvous> for Object {
    fn from(object: MuxRendezvous) -> Self {
        Self::Rendezvous(Arc::new(object))
    }
}

impl From<Arc<MuxRendezvous>> for Object {
    fn from(object: Arc<MuxRendezvous>) -> Self {
        Self::Rendezvous(object)
    }
}

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

/// The settings of carriers. A MuxRendezvous opens none.
#[derive(Debug, Clone, Copy, Default)]
pub struct Carriers<'a> {
    /// The fields of all kinds with carriers.
    pub connection: Option<&'a ExitCarrier>,
    /// The number of carriers of a session. Only a MuxTunnel has this field.
    pub pool: Option<Pool>,
    /// Whether streams outlive their carrier. Only a MuxTunnel has this field.
    pub resume: Option<bool>,
}

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

    /// The public keys in the status, newest first.
    #[must_use]
    pub fn public_keys(&self) -> &[String] {
        of_each!(self, object => object.status.as_ref().map_or(&[], |status| &status.public_keys))
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

/// The fields of the spec that several kinds have.
impl Object {
    /// The MuxTunnel.
    #[must_use]
    pub fn tunnel(&self) -> Option<&MuxTunnel> {
        match self {
            Self::Tunnel(tunnel) => Some(tunnel),
            _ => None,
        }
    }

    /// The MuxExit.
    #[must_use]
    pub fn exit(&self) -> Option<&MuxExit> {
        match self {
            Self::Exit(exit) => Some(exit),
            _ => None,
        }
    }

    /// The MuxRendezvous.
    #[must_use]
    pub fn rendezvous(&self) -> Option<&MuxRendezvous> {
        match self {
            Self::Rendezvous(rendezvous) => Some(rendezvous),
            _ => None,
        }
    }

    /// The exits elsewhere that the entries dial.
    #[must_use]
    pub fn connect(&self) -> &[Connect] {
        self.tunnel().map_or(&[], |tunnel| &tunnel.spec.connect)
    }

    /// Whether the object has gateways of `end`.
    #[must_use]
    pub fn has(&self, end: End) -> bool {
        match end {
            End::Entry => self.has_entry(),
            End::Exit => self.has_exit(),
            End::Rendezvous => matches!(self, Self::Rendezvous(_)),
        }
    }

    /// Whether the object has entry gateways.
    #[must_use]
    pub const fn has_entry(&self) -> bool {
        matches!(self, Self::Tunnel(_))
    }

    /// Whether the object has exit gateways.
    #[must_use]
    pub fn has_exit(&self) -> bool {
        match self {
            Self::Tunnel(tunnel) => tunnel.spec.connect.is_empty(),
            Self::Exit(_) => true,
            Self::Rendezvous(_) => false,
        }
    }

    /// Whether both ends of the carriers belong to the object.
    #[must_use]
    pub fn has_both_ends(&self) -> bool {
        self.has_entry() && self.has_exit()
    }

    /// The ends of the object, the exit before the entry.
    pub fn ends(&self) -> impl Iterator<Item = End> {
        let ends = self.kind().ends().iter().copied();
        ends.filter(|end| self.has(*end))
    }

    /// The settings of the pods of `end`.
    #[must_use]
    pub fn gateway(&self, end: End) -> Option<&Gateway> {
        match (self, end) {
            (Self::Tunnel(tunnel), End::Entry) => tunnel.spec.entry.as_ref(),
            (Self::Tunnel(tunnel), End::Exit) => tunnel.spec.exit.as_ref(),
            (Self::Exit(exit), End::Exit) => exit.spec.gateway.as_ref(),
            _ => None,
        }
    }

    /// The settings of carriers.
    #[must_use]
    pub fn carrier(&self) -> Carriers<'_> {
        match self {
            Self::Tunnel(tunnel) => {
                let carrier = tunnel.spec.carrier.as_ref();
                Carriers {
                    connection: carrier.map(|carrier| &carrier.connection),
                    pool: carrier.and_then(|carrier| carrier.pool),
                    resume: carrier.and_then(|carrier| carrier.resume),
                }
            }
            Self::Exit(exit) => Carriers {
                connection: exit.spec.carrier.as_ref(),
                ..Carriers::default()
            },
            Self::Rendezvous(_) => Carriers::default(),
        }
    }

    /// The template of the pods of `end`.
    #[must_use]
    pub fn template(&self, end: End) -> Option<&Template> {
        match self {
            Self::Rendezvous(own) => own.spec.template.as_ref(),
            _ => self.gateway(end)?.template.as_ref(),
        }
    }

    /// Targets that the exits may dial.
    #[must_use]
    pub fn allow(&self) -> &[Rule] {
        match self {
            Self::Tunnel(tunnel) => &tunnel.spec.allow,
            Self::Exit(exit) => &exit.spec.allow,
            Self::Rendezvous(_) => &[],
        }
    }

    /// Targets that the exits may not dial.
    #[must_use]
    pub fn deny(&self) -> &[Rule] {
        match self {
            Self::Tunnel(tunnel) => &tunnel.spec.deny,
            Self::Exit(exit) => &exit.spec.deny,
            Self::Rendezvous(_) => &[],
        }
    }

    /// Prefixes of IPv6 addresses that contain IPv4 addresses.
    #[must_use]
    pub fn nat64_prefixes(&self) -> &[String] {
        match self {
            Self::Tunnel(tunnel) => &tunnel.spec.nat64_prefixes,
            Self::Exit(exit) => &exit.spec.nat64_prefixes,
            Self::Rendezvous(_) => &[],
        }
    }

    /// The ports on which the entries listen, with fixed targets.
    #[must_use]
    pub fn forwards(&self) -> &[Forward] {
        self.tunnel().map_or(&[], |tunnel| &tunnel.spec.forwards)
    }

    /// The targets of ports on which exits listen.
    #[must_use]
    pub fn reverse_forwards(&self) -> &[ReverseForward] {
        self.tunnel()
            .map_or(&[], |tunnel| &tunnel.spec.reverse_forwards)
    }

    /// The ports on which the entries listen, with targets that clients name.
    #[must_use]
    pub fn proxies(&self) -> &[Proxy] {
        self.tunnel().map_or(&[], |tunnel| &tunnel.spec.proxies)
    }

    /// The settings of named Services.
    #[must_use]
    pub fn services(&self) -> &[Service] {
        match self {
            Self::Tunnel(tunnel) => &tunnel.spec.services,
            Self::Exit(exit) => &exit.spec.services,
            Self::Rendezvous(_) => &[],
        }
    }

    /// Whether IP packets pass between the networks of both ends.
    #[must_use]
    pub fn has_network(&self) -> bool {
        match self {
            Self::Tunnel(tunnel) => tunnel.spec.network.is_some(),
            Self::Exit(exit) => exit.spec.network.is_some(),
            Self::Rendezvous(_) => false,
        }
    }

    /// The security of carriers. `None` for a MuxRendezvous, whose carriers belong to others.
    #[must_use]
    pub fn mode(&self) -> Option<SecurityMode> {
        let mode = match self {
            Self::Tunnel(tunnel) => (tunnel.spec.security.as_ref()).and_then(|asked| asked.mode),
            Self::Exit(exit) => (exit.spec.security.as_ref()).and_then(|asked| asked.mode),
            Self::Rendezvous(_) => return None,
        };
        Some(mode.unwrap_or_default())
    }

    /// The source of the certificate of the gateways of `end`, in mode Certificates.
    #[must_use]
    pub fn certificates(&self, end: End) -> Option<&CertificateSource> {
        match (self, end) {
            (Self::Tunnel(tunnel), End::Entry) => {
                let security = tunnel.spec.security.as_ref()?;
                Some(&security.certificates.as_ref()?.entry)
            }
            (Self::Tunnel(tunnel), End::Exit) => {
                let security = tunnel.spec.security.as_ref()?;
                security.certificates.as_ref()?.exit.as_ref()
            }
            (Self::Exit(exit), End::Exit) => exit.spec.security.as_ref()?.certificates.as_ref(),
            _ => None,
        }
    }

    /// The keys of the gateways.
    #[must_use]
    pub fn key(&self) -> Option<&KeySource> {
        of_each!(self, object => object.spec.key.as_ref())
    }

    /// Time-outs of streams.
    #[must_use]
    pub fn timeouts(&self) -> Option<&Timeouts> {
        match self {
            Self::Tunnel(tunnel) => tunnel.spec.timeouts.as_ref(),
            Self::Exit(exit) => exit.spec.timeouts.as_ref(),
            Self::Rendezvous(_) => None,
        }
    }

    /// Kernel settings of the pods.
    #[must_use]
    pub fn tuning(&self) -> Option<&Tuning> {
        match self {
            Self::Tunnel(tunnel) => tunnel.spec.tuning.as_ref(),
            Self::Exit(exit) => exit.spec.tuning.as_ref(),
            Self::Rendezvous(_) => None,
        }
    }

    /// Emulation of a wide-area network.
    #[must_use]
    pub fn wan_emulation(&self) -> Option<&WanEmulation> {
        match self {
            Self::Tunnel(tunnel) => tunnel.spec.wan_emulation.as_ref(),
            Self::Exit(exit) => exit.spec.wan_emulation.as_ref(),
            Self::Rendezvous(_) => None,
        }
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
