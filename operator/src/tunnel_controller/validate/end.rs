//! The settings of a validated tunnel by end. Pure.

use std::collections::BTreeSet;

use super::{UsersFile, ValidatedGateway, ValidatedSsh, ValidatedTunnel};
use crate::tunnel_controller::end::End;

impl End {
    /// The settings of this end, if it belongs to the tunnel.
    #[must_use]
    pub fn gateway(self, tunnel: &ValidatedTunnel) -> Option<&ValidatedGateway> {
        match self {
            Self::Entry => tunnel.entry.as_ref(),
            Self::Exit => tunnel.exit.as_ref(),
            Self::Rendezvous => tunnel.rendezvous.as_ref().map(|own| &own.gateway),
        }
    }

    /// Whether other gateways dial this end. True except for an entry and for an exit with a
    /// rendezvous.
    #[must_use]
    pub const fn is_dialled(self, tunnel: &ValidatedTunnel) -> bool {
        match self {
            Self::Entry => false,
            Self::Exit => tunnel.leaf.is_none(),
            Self::Rendezvous => true,
        }
    }

    /// The Secret that the end's gateways use at a rendezvous, or that the rendezvous itself uses.
    #[must_use]
    pub fn meeting_secret(self, tunnel: &ValidatedTunnel) -> Option<&str> {
        match self {
            Self::Rendezvous => tunnel.rendezvous.as_ref().map(|own| own.secret.as_str()),
            Self::Entry | Self::Exit => tunnel.leaf.as_ref().map(|leaf| leaf.secret.as_str()),
        }
    }

    /// The ssh server of this end.
    #[must_use]
    pub fn ssh(self, tunnel: &ValidatedTunnel) -> Option<&ValidatedSsh> {
        let exit = tunnel.exit.as_ref().filter(|_| self == Self::Exit)?;
        exit.ssh.as_ref()
    }

    /// The files with users that the end's gateways mount, each once.
    #[must_use]
    pub fn users(self, tunnel: &ValidatedTunnel) -> BTreeSet<&UsersFile> {
        let asking = tunnel.forwards.iter().filter(|_| self == Self::Entry);
        asking
            .filter_map(|forward| forward.users.as_ref())
            .collect()
    }

    /// The Secrets that the end's pods need to start. The operator may not check whether the
    /// Secrets exist.
    #[must_use]
    pub fn secrets(self, tunnel: &ValidatedTunnel) -> BTreeSet<&str> {
        let keys = self.gateway(tunnel).map(|own| own.security.secrets());
        let users = self.users(tunnel).into_iter();
        let users = users.map(|file| file.secret.as_str());
        keys.into_iter()
            .flatten()
            .chain(self.meeting_secret(tunnel))
            .chain(users)
            .chain(self.ssh(tunnel).map(|ssh| ssh.secret.as_str()))
            .collect()
    }

    /// The name of all children of this end.
    #[must_use]
    pub fn child_name(self, tunnel: &ValidatedTunnel) -> String {
        self.child_of(&tunnel.name)
    }
}
