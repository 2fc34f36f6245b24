//! The sessions of one worker that carry packets. The module publishes them to the other workers, and
//! chooses a session of an owner, on any worker.

use std::cell::OnceCell;
use std::convert::Infallible;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use muxtunnel_codes::Code;
use muxtunnel_gateway_config::NetworkPeer;
use muxtunnel_packet::DropReason;
use muxtunnel_proto::Assignment;

use super::Network;
use super::addresses::Changed;
use super::owner::Owner;
use super::queues::{Links, SessionLink};
use crate::session::mux::Mux;

/// Interval at which a worker publishes which of its sessions have a carrier, and which answer. If a
/// session loses its carrier in between, the worker drops packets that other workers hand it for
/// this session.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(50);

/// A session that carries packets.
pub(super) struct Attached {
    pub(super) mux: Weak<dyn Mux>,
    /// The session as last published.
    pub(super) link: SessionLink,
    /// Entry: the exit's assignment in this session.
    pub(super) assignment: Rc<OnceCell<Rc<Assignment>>>,
}

/// A session of this worker that has a carrier.
pub(super) struct Carried {
    pub(super) mux: Rc<dyn Mux>,
    /// Verified identity of the peer.
    pub(super) identity: Option<Arc<str>>,
    /// See [`Network::answers`].
    pub(super) answers: bool,
}

impl Network {
    /// The session of `owner` on this worker that is preferred ([`preferred`]).
    pub(super) fn session_of(&self, owner: &Owner) -> Option<Carried> {
        let sessions = self.sessions.borrow();
        let of_owner = sessions
            .iter()
            .filter(|session| session.link.owner == *owner && session.carried().is_some());
        let answers = |session: &Attached| self.answers(session);
        let (session, answers) = preferred(of_owner, |session| &session.link, answers)?;
        Some(Carried {
            mux: session.carried()?,
            identity: session.link.identity.clone(),
            answers,
        })
    }

    /// The session with this number on this worker, if it has a carrier.
    pub(super) fn session_with_number(&self, number: u64) -> Option<Rc<dyn Mux>> {
        let sessions = self.sessions.borrow();
        let mut sessions = sessions.iter();
        sessions
            .find(|session| session.link.number == number)?
            .carried()
    }

    /// Publishes this worker's sessions to the other workers, and forgets ended sessions.
    pub(super) fn publish(&self) {
        let mut sessions = self.sessions.borrow_mut();
        sessions.retain(Attached::is_alive);
        if self.is_alone() {
            return;
        }
        for session in &mut *sessions {
            session.link.has_carrier = session.carried().is_some();
            session.link.answers = self.answers(session);
        }
        let mut published = self.published.borrow_mut();
        if published
            .iter()
            .ne(sessions.iter().map(|session| &session.link))
        {
            *published = sessions
                .iter()
                .map(|session| session.link.clone())
                .collect();
            self.queues.publish(self.index, &published);
        }
    }

    pub(super) async fn publish_changes(&self) -> Infallible {
        loop {
            tokio::time::sleep(PUBLISH_INTERVAL).await;
            self.publish();
        }
    }

    /// Exit: applies changed networks of entries. Ends the sessions whose addresses changed, because an
    /// entry learns its addresses when a session begins. Other sessions stay. Never ends.
    pub(super) async fn follow_peers(&self) -> Infallible {
        let mut reloadable = self.reloadable.clone();
        loop {
            let in_force = Arc::clone(&reloadable.borrow_and_update());
            self.set_peers(&in_force.network_peers);
            if reloadable.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    fn set_peers(&self, peers: &[NetworkPeer]) {
        let changed = self.addresses.set_peers(peers);
        for mux in self.concerned(&changed) {
            let (peer, identity) = (mux.peer(), mux.identity());
            let identity = identity.as_deref().unwrap_or_default();
            tracing::info!(%peer, identity, "The networks of the entry have changed: its session ends, and the entry begins another one");
            mux.shut_down();
        }
    }

    fn concerned(&self, changed: &Changed) -> Vec<Rc<dyn Mux>> {
        let (sessions, apart) = (self.sessions.borrow(), self.apart.borrow());
        let joined = sessions.iter().filter_map(|session| {
            let link = &session.link;
            let concerned = changed.concerns(link.identity.as_deref(), Some(&link.owner));
            concerned.then(|| session.alive())?
        });
        let apart = apart.iter().filter_map(|(mux, identity)| {
            let concerned = changed.concerns(identity.as_deref(), None);
            concerned.then(|| mux.upgrade())?
        });
        joined.chain(apart).collect()
    }

    /// Whether the session has a carrier and its peer answers ([`Mux::answers`]). An entry
    /// counts every session with a carrier as one that answers, because another session may belong
    /// to another exit, which does not know the assigned addresses.
    pub(super) fn answers(&self, session: &Attached) -> bool {
        let is_entry = self.assigned.is_some();
        session
            .carried()
            .is_some_and(|mux| is_entry || mux.answers())
    }

    /// Checks that the entry with `identity` has the networks. If only one entry at a time has
    /// networks, it is the entry of the oldest session that has a carrier.
    pub(super) fn has_networks(&self, identity: Option<&str>) -> Result<(), DropReason> {
        if !self.addresses.has_one_entry() {
            return Ok(());
        }
        let is_it = |first: &SessionLink| first.identity.as_deref() == identity;
        let has = if self.is_alone() {
            let sessions = self.sessions.borrow();
            let first = sessions.iter().find(|session| session.carried().is_some());
            first.is_none_or(|first| is_it(&first.link))
        } else {
            self.links().first().is_none_or(is_it)
        };
        if has {
            return Ok(());
        }
        if !self.told.replace(true) {
            tracing::warn!(code = %Code::NoPackets, peer = identity.unwrap_or_default(), "Dropped packets of this entry, because another entry with an earlier session has the networks: assign each entry its own networks (network.peers) or addresses (network.pool)");
        }
        Err(DropReason::SourceNotRemote)
    }
}

impl Attached {
    fn alive(&self) -> Option<Rc<dyn Mux>> {
        self.mux.upgrade().filter(|mux| !mux.has_ended())
    }

    /// The session, if it has a carrier. Without a carrier, its peer may have begun a new session.
    pub(super) fn carried(&self) -> Option<Rc<dyn Mux>> {
        self.alive().filter(|mux| !mux.waits())
    }

    pub(super) fn is_alive(&self) -> bool {
        self.alive().is_some()
    }
}

impl Links {
    /// The preferred session of `owner` ([`preferred`]) on a worker other than `own`. `unanswered`
    /// is the owner's session on `own`, if `own` has one, which does not answer. The other session
    /// must then answer, and its peer must have proved the same identity.
    pub(super) fn other_session(
        &self,
        owner: &Owner,
        own: usize,
        unanswered: Option<&Carried>,
    ) -> Option<&SessionLink> {
        let sessions = self.sessions.iter().filter(|session| {
            session.has_carrier
                && session.worker != own
                && session.owner == *owner
                && unanswered.is_none_or(|own| session.is_of(own.identity.as_ref()))
        });
        let (session, answers) = preferred(sessions, |session| session, |session| session.answers)?;
        (answers || unanswered.is_none()).then_some(session)
    }
}

/// The oldest of `sessions`. If it does not answer: the oldest session that answers and whose peer
/// has proved the same identity, if there is one. Peers without an identity may be different
/// clients, so none of them gets the packets of another. Also returns whether the session answers.
fn preferred<'a, T>(
    mut sessions: impl Iterator<Item = &'a T>,
    link: impl Fn(&T) -> &SessionLink,
    answers: impl Fn(&T) -> bool,
) -> Option<(&'a T, bool)> {
    let oldest = sessions.next()?;
    if answers(oldest) {
        return Some((oldest, true));
    }
    let is_same = |other: &T| link(other).is_of(link(oldest).identity.as_ref());
    let other = sessions.find(|other| is_same(other) && answers(other));
    Some(other.map_or((oldest, false), |other| (other, true)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(worker: usize, number: u64, owner: &str, has_carrier: bool) -> SessionLink {
        SessionLink {
            worker,
            number,
            identity: Some(Arc::from(owner)),
            owner: Owner::Peer(Arc::from(owner)),
            has_carrier,
            answers: has_carrier,
        }
    }

    fn worker_of(links: &Links, owner: &Owner, own: usize) -> Option<usize> {
        let session = links.other_session(owner, own, None);
        session.map(|session| session.worker)
    }

    #[test]
    fn a_packet_goes_to_the_oldest_session_of_its_owner_that_has_a_carrier() {
        let mut links = Links::default();
        let owner = Owner::Peer(Arc::from("a"));
        links.update(1, &[session(1, 0, "b", true), session(1, 1, "a", true)]);
        links.update(2, &[session(2, 0, "a", true)]);
        assert_eq!(worker_of(&links, &owner, 0), Some(1));
        assert_eq!(worker_of(&links, &owner, 1), Some(2));
        links.update(1, &[session(1, 0, "b", true), session(1, 1, "a", false)]);
        assert_eq!(worker_of(&links, &owner, 0), Some(2));
        links.update(1, &[session(1, 0, "b", true), session(1, 1, "a", true)]);
        assert_eq!(
            worker_of(&links, &owner, 0),
            Some(1),
            "the session has kept its place"
        );
        links.update(1, &[]);
        links.update(2, &[]);
        assert_eq!(worker_of(&links, &owner, 0), None);
    }

    #[test]
    fn a_packet_goes_to_a_session_of_its_owner_that_answers_if_there_is_one() {
        let silent = |session| SessionLink {
            answers: false,
            ..session
        };
        let mut links = Links::default();
        let owner = Owner::Peer(Arc::from("a"));
        links.update(1, &[silent(session(1, 0, "a", true))]);
        assert_eq!(worker_of(&links, &owner, 0), Some(1));
        links.update(2, &[session(2, 0, "a", true)]);
        assert_eq!(worker_of(&links, &owner, 0), Some(2));
        links.update(1, &[session(1, 0, "a", true)]);
        assert_eq!(worker_of(&links, &owner, 0), Some(1));
        // Without peers and pools, all entries have the same owner.
        let of = |worker, identity, answers| SessionLink {
            owner: Owner::Side,
            answers,
            ..session(worker, 0, identity, true)
        };
        links.update(1, &[of(1, "a", false)]);
        links.update(2, &[of(2, "b", true)]);
        let worker = worker_of(&links, &Owner::Side, 0);
        assert_eq!(worker, Some(1), "another entry does not get the packets");
    }
}
