//! The kinds whose objects have gateways.

use kube::api::ApiResource;
use muxtunnel_crds::{MuxExit, MuxRendezvous, MuxTunnel};

/// A kind whose objects have gateways.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// MuxTunnel.
    Tunnel,
    /// MuxExit.
    Exit,
    /// MuxRendezvous.
    Rendezvous,
}

impl Kind {
    /// All kinds.
    pub(crate) const ALL: [Self; 3] = [Self::Tunnel, Self::Exit, Self::Rendezvous];

    /// The kind as the API server names it.
    pub(crate) fn resource(self) -> ApiResource {
        match self {
            Self::Tunnel => ApiResource::erase::<MuxTunnel>(&()),
            Self::Exit => ApiResource::erase::<MuxExit>(&()),
            Self::Rendezvous => ApiResource::erase::<MuxRendezvous>(&()),
        }
    }

    /// The name, the plural, the short name, and the word of this program.
    const fn names(self) -> [&'static str; 4] {
        match self {
            Self::Tunnel => ["MuxTunnel", "muxtunnels", "mt", "tunnel"],
            Self::Exit => ["MuxExit", "muxexits", "mx", "exit"],
            Self::Rendezvous => ["MuxRendezvous", "muxrendezvous", "mr", "rendezvous"],
        }
    }

    /// The name, such as `MuxTunnel`.
    pub(crate) const fn name(self) -> &'static str {
        self.names()[0]
    }

    /// The plural, such as `muxtunnels`.
    pub(crate) const fn plural(self) -> &'static str {
        self.names()[1]
    }

    /// The kind with this name. Names may end with the group, as kubectl accepts them.
    pub(crate) fn named(text: &str) -> Option<Self> {
        let text = text.strip_suffix(".muxtunnel.dev").unwrap_or(text);
        let is_name = |name: &&str| name.eq_ignore_ascii_case(text);
        let mut all = Self::ALL.into_iter();
        all.find(|kind| kind.names().iter().any(is_name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_the_names_of_kubectl() {
        for kind in Kind::ALL {
            let resource = kind.resource();
            assert_eq!(
                (resource.kind.as_str(), resource.plural.as_str()),
                (kind.name(), kind.plural())
            );
            let full = format!("{}.{}", kind.plural(), resource.group);
            for name in [kind.name(), kind.plural(), &full] {
                assert_eq!(Kind::named(name), Some(kind), "{name}");
            }
        }
        for name in ["mx", "exit"] {
            assert_eq!(Kind::named(name), Some(Kind::Exit));
        }
        assert_eq!(Kind::named("muxpeer"), None);
    }
}
