//! The ends of carriers.

use muxtunnel_gateway_config::{KeyRole, Role};

/// The component label of Jobs that test sysctls.
pub const PROBE: &str = "sysctl-probe";

/// One end of carriers. The exit comes before the entry, because the entry dials the exit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// Joins entries and exits of other objects.
    Rendezvous,
    /// Dials targets.
    Exit,
    /// Accepts connections of clients.
    Entry,
}

impl End {
    /// All ends.
    pub const ALL: [Self; 3] = [Self::Rendezvous, Self::Exit, Self::Entry];

    /// The value of the component label, and the suffix of names.
    pub const fn component(self) -> &'static str {
        match self {
            Self::Entry => "entry",
            Self::Exit => "exit",
            Self::Rendezvous => "rendezvous",
        }
    }

    /// The role of the end's gateways.
    pub const fn role(self) -> Role {
        match self {
            Self::Entry => Role::Entry,
            Self::Exit => Role::Exit,
            Self::Rendezvous => Role::Rendezvous,
        }
    }

    /// The role of the end's keys.
    pub const fn key_role(self) -> KeyRole {
        KeyRole::of(self.role())
    }
}
