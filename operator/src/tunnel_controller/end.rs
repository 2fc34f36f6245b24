//! The ends of a tunnel, and the names of their children.

/// The component label of what tries sysctls.
pub const PROBE: &str = "sysctl-probe";

/// One end of the tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// Where streams enter.
    Entry,
    /// Where targets are dialled.
    Exit,
    /// Where those two meet that are elsewhere.
    Rendezvous,
}

impl End {
    /// All, the exit before the entry: it is dialled.
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
