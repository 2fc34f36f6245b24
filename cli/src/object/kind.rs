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

    /// The name, such as `MuxTunnel`.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Tunnel => "MuxTunnel",
            Self::Exit => "MuxExit",
            Self::Rendezvous => "MuxRendezvous",
        }
    }

    /// The plural, such as `muxtunnels`.
    pub(crate) const fn plural(self) -> &'static str {
        match self {
            Self::Tunnel => "muxtunnels",
            Self::Exit => "muxexits",
            Self::Rendezvous => "muxrendezvous",
        }
    }

    /// The kind of a name that kubectl accepts (the kind, its plural, its short name, or one of these
    /// with the group), or of the kind without the prefix.
    pub(crate) fn named(text: &str) -> Option<Self> {
        let text = text.to_ascii_lowercase();
        let text = text.strip_suffix(".muxtunnel.dev").unwrap_or(&text);
        Self::ALL.into_iter().find(|kind| {
            let (word, short) = match kind {
                Self::Tunnel => ("tunnel", "mt"),
                Self::Exit => ("exit", "mx"),
                Self::Rendezvous => ("rendezvous", "mr"),
            };
            [word, short, kind.plural()].contains(&text) || kind.name().eq_ignore_ascii_case(text)
        })
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
