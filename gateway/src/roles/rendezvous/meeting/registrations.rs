//! The registrations of the exits, and the exit that a visitor reaches.
//!
//! The gateways of one exit have one key, and each of them registers. A session is in one gateway, so
//! all carriers of a visitor go to the gateway that the visitor reached before, while this gateway is
//! registered. Bounds: [`REGISTRATIONS_MAX`] for each identity, and for each registration one entry
//! for each member.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use muxtunnel_proto::rendezvous::Ticket;
use tokio::sync::mpsc;

use crate::io::proof::Proof;

/// Maximum number of registrations of one identity: the largest number of pods of an exit, twice,
/// because old and new pods register during a roll-out.
pub(super) const REGISTRATIONS_MAX: usize = 64;

/// The registrations of each identity, oldest first.
#[derive(Debug, Default)]
pub(super) struct Registrations {
    by_identity: BTreeMap<String, Vec<Registration>>,
    /// Number of registrations since the start.
    last: u64,
}

/// A registered exit. Dropping the value ends the exit's invitations.
#[derive(Debug)]
pub(super) struct Registration {
    pub(super) number: u64,
    pub(super) proof: Proof,
    pub(super) invitations: mpsc::Sender<Ticket>,
    /// The round trip to the exit.
    pub(super) round_trip: Duration,
    /// Whether the exit did not connect with its latest ticket.
    pub(super) has_missed: bool,
    /// The members that visited this exit, by their identities.
    visitors: BTreeMap<String, Proof>,
}

impl Registration {
    pub(super) const fn new(
        proof: Proof,
        invitations: mpsc::Sender<Ticket>,
        round_trip: Duration,
    ) -> Self {
        Self {
            number: 0,
            proof,
            invitations,
            round_trip,
            has_missed: false,
            visitors: BTreeMap::new(),
        }
    }

    /// Records that the visitor's session is in this exit.
    pub(super) fn take(&mut self, visitor: &Proof) {
        self.visitors
            .insert(visitor.identity.clone(), visitor.clone());
    }
}

impl Registrations {
    /// Adds a registration. Returns its number, and the number of the oldest registration of the
    /// identity if this one has to end.
    pub(super) fn add(&mut self, mut registration: Registration) -> (u64, Option<u64>) {
        self.last += 1;
        registration.number = self.last;
        let identity = registration.proof.identity.clone();
        let all = self.by_identity.entry(identity).or_default();
        let ended = (all.len() >= REGISTRATIONS_MAX).then(|| all.remove(0).number);
        all.push(registration);
        (self.last, ended)
    }

    /// Removes a registration. Returns whether the registration existed.
    pub(super) fn remove(&mut self, identity: &str, number: u64) -> bool {
        let Some(all) = self.by_identity.get_mut(identity) else {
            return false;
        };
        let before = all.len();
        all.retain(|one| one.number != number);
        let existed = all.len() < before;
        if all.is_empty() {
            self.by_identity.remove(identity);
        }
        existed
    }

    pub(super) fn has(&self, identity: &str) -> bool {
        self.by_identity.contains_key(identity)
    }

    pub(super) fn get(&mut self, identity: &str, number: u64) -> Option<&mut Registration> {
        let mut all = self.by_identity.get_mut(identity)?.iter_mut();
        all.find(|one| one.number == number)
    }

    /// Ends the registrations whose proof is no longer `good`, and forgets such visitors. Returns the
    /// identities and the numbers of the ended registrations.
    pub(super) fn verify_again(&mut self, good: impl Fn(&Proof) -> bool) -> Vec<(String, u64)> {
        let mut ended = Vec::new();
        self.by_identity.retain(|identity, all| {
            all.retain_mut(|one| {
                one.visitors.retain(|_, visitor| good(visitor));
                let stays = good(&one.proof);
                if !stays {
                    ended.push((identity.clone(), one.number));
                }
                stays
            });
            !all.is_empty()
        });
        ended
    }

    /// The registration of `identity` for one more connection of `visitor`, in this order: one that
    /// did not miss its latest ticket, the one that the visitor reached before, the one with the
    /// fewest `visits`, the newest. The visitor has its place only in the returned registration.
    pub(super) fn choose(
        &mut self,
        identity: &str,
        visitor: &Proof,
        visits: impl Fn(u64) -> usize,
    ) -> Option<&mut Registration> {
        let all = self.by_identity.get_mut(identity)?;
        let rank = |one: &Registration| {
            let is_new = !one.visitors.contains_key(&visitor.identity);
            (
                one.has_missed,
                is_new,
                visits(one.number),
                Reverse(one.number),
            )
        };
        let chosen = all.iter().min_by_key(|one| rank(one))?.number;
        for one in all.iter_mut().filter(|one| one.number != chosen) {
            one.visitors.remove(&visitor.identity);
        }
        all.iter_mut().find(|one| one.number == chosen)
    }

    /// The identity of each registration.
    pub(super) fn identities(&self) -> Vec<String> {
        let all = self.by_identity.iter();
        all.flat_map(|(identity, all)| std::iter::repeat_n(identity.clone(), all.len()))
            .collect()
    }
}
