//! The fields of the specs that several kinds have.

use muxtunnel_crds::{
    Carrier, CertificateSource, Connect, Forward, Gateway, KeySource, Member, MuxExit,
    MuxRendezvous, MuxTunnel, Proxy, ReverseForward, Rule, SecurityMode, Service, Template,
    Timeouts, Tuning, WanEmulation,
};
use muxtunnel_gateway_config::Cidr;

use super::{Object, of_each};
use crate::tunnel_controller::end::End;

/// The same field of the specs with carriers, and `$none` for a MuxRendezvous, which opens none.
macro_rules! of_carriers {
    ($object:expr, $one:ident => $value:expr, $none:expr) => {
        match $object {
            Object::Tunnel($one) => $value,
            Object::Exit($one) => $value,
            Object::Rendezvous(_) => $none,
        }
    };
}

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

    /// Whether the object has gateways of `end`. A MuxTunnel with `connect` has no exit.
    #[must_use]
    pub fn has(&self, end: End) -> bool {
        let is_own = end != End::Exit || self.connect().is_empty();
        is_own && self.kind().ends().contains(&end)
    }

    /// Whether the object has exit gateways.
    #[must_use]
    pub fn has_exit(&self) -> bool {
        self.has(End::Exit)
    }

    /// Whether both ends of the carriers belong to the object.
    #[must_use]
    pub fn has_both_ends(&self) -> bool {
        self.has(End::Entry) && self.has_exit()
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

    /// The settings of carriers. A MuxRendezvous opens none.
    #[must_use]
    pub fn carrier(&self) -> Carrier {
        match self {
            Self::Tunnel(tunnel) => tunnel.spec.carrier.clone().unwrap_or_default(),
            Self::Exit(exit) => Carrier {
                connection: exit.spec.carrier.clone().unwrap_or_default(),
                ..Carrier::default()
            },
            Self::Rendezvous(_) => Carrier::default(),
        }
    }

    /// The members of a rendezvous.
    #[must_use]
    pub fn members(&self) -> &[Member] {
        self.rendezvous().map_or(&[], |own| &own.spec.members)
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
        of_carriers!(self, one => &one.spec.allow, &[])
    }

    /// Targets that the exits may not dial.
    #[must_use]
    pub fn deny(&self) -> &[Rule] {
        of_carriers!(self, one => &one.spec.deny, &[])
    }

    /// Prefixes of IPv6 addresses that contain IPv4 addresses.
    #[must_use]
    pub fn nat64_prefixes(&self) -> &[Cidr] {
        of_carriers!(self, one => &one.spec.nat64_prefixes, &[])
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
        of_carriers!(self, one => &one.spec.services, &[])
    }

    /// Whether IP packets pass between the networks of both ends.
    #[must_use]
    pub fn has_network(&self) -> bool {
        of_carriers!(self, one => one.spec.network.is_some(), false)
    }

    /// The security of carriers. `None` for a MuxRendezvous, whose carriers belong to others.
    #[must_use]
    pub fn mode(&self) -> Option<SecurityMode> {
        let mode = of_carriers!(self, one => one.spec.security.as_ref().and_then(|asked| asked.mode), return None);
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
        of_each!(self, one => one.spec.key.as_ref())
    }

    /// Time-outs of streams.
    #[must_use]
    pub fn timeouts(&self) -> Option<&Timeouts> {
        of_carriers!(self, one => one.spec.timeouts.as_ref(), None)
    }

    /// Kernel settings of the pods.
    #[must_use]
    pub fn tuning(&self) -> Option<&Tuning> {
        of_carriers!(self, one => one.spec.tuning.as_ref(), None)
    }

    /// Emulation of a wide-area network.
    #[must_use]
    pub fn wan_emulation(&self) -> Option<&WanEmulation> {
        of_carriers!(self, one => one.spec.wan_emulation.as_ref(), None)
    }
}
