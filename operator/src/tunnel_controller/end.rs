//! The ends of a tunnel, and the names of their children.

/// The component label of Jobs that test sysctls.
pub const PROBE: &str = "sysctl-probe";

/// One end of the tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// Accepts connections of clients.
    Entry,
    /// Dials targets.
    Exit,
    /// Joins entries and exits of other objects.
    Rendezvous,
}

impl End {
    /// All ends. The exit comes before the entry, because the entry dials the exit.
    pub const ALL: [Self; 3] = [Self::Rendezvous, Self::Exit, Self::Entry];

    /// The value of the component label, and the suffix of names.
    #[must_use]
    pub const fn component(self) -> &'static str {
        match self {
            Self::Entry => "entry",
            Self::Exit => "exit",
            Self::Rendezvous => "rendezvous",
        }
    }

    /// The name of all children of this end of the tunnel `name`.
    #[must_use]
    pub fn child_of(self, name: &str) -> String {
        format!("{name}-{}", self.component())
    }
}
