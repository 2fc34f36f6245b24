//! The visits in progress, and their shares of the limit.
//!
//! At the limit, the visitor with the most visits gives up its newest visit for a visitor with fewer
//! visits. If the limit is at least the number of visitors, each visitor therefore has a visit.

use std::collections::BTreeMap;

use muxtunnel_codes::Code;
use tokio::sync::oneshot;

use crate::io::proof::Proof;

#[derive(Debug, Default)]
pub(super) struct Visits {
    by_number: BTreeMap<u64, InProgress>,
    /// Number of visits since the start.
    last: u64,
}

#[derive(Debug)]
struct InProgress {
    /// The visitor and the exit.
    members: [Proof; 2],
    registration: u64,
    is_joined: bool,
    end: oneshot::Sender<Ended>,
}

/// Why the rendezvous ended a visit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(in crate::roles::rendezvous) enum Ended {
    #[error("the member {0} is suspended, has expired, or is no longer in members")]
    NoMember(String),
    #[error(
        "the rendezvous is at its limit of visits, and gave this place to a member with a smaller share: raise \
         limits.carriers of the rendezvous"
    )]
    Share,
}

impl Ended {
    pub(in crate::roles::rendezvous) const fn code(&self) -> Code {
        match self {
            Self::NoMember(_) => Code::KeyUnknown,
            Self::Share => Code::TooManyCarriers,
        }
    }
}

impl Visits {
    /// Begins a visit of the first member to the second. Returns its number and the receiver of its
    /// end; `None`: there are `limit` visits, and no visitor has a larger share than this visitor
    /// would have.
    pub(super) fn begin(
        &mut self,
        members: [Proof; 2],
        registration: u64,
        limit: usize,
    ) -> Option<(u64, oneshot::Receiver<Ended>)> {
        if self.by_number.len() >= limit {
            let newest = self.newest_of_largest_share(&members[0].identity)?;
            self.end(newest, Ended::Share);
        }
        self.last += 1;
        let (end, ended) = oneshot::channel();
        let begun = InProgress {
            members,
            registration,
            is_joined: false,
            end,
        };
        self.by_number.insert(self.last, begun);
        Some((self.last, ended))
    }

    /// The newest visit of the visitor with the most visits, if these are more than `visitor` has
    /// with one more visit.
    fn newest_of_largest_share(&self, visitor: &str) -> Option<u64> {
        let mut shares: BTreeMap<&str, (usize, u64)> = BTreeMap::new();
        for (number, one) in &self.by_number {
            let share = shares.entry(&one.members[0].identity).or_default();
            *share = (share.0 + 1, *number);
        }
        let own = shares.get(visitor).map_or(0, |(count, _)| *count);
        let (most, newest) = shares.into_values().max()?;
        (most > own + 1).then_some(newest)
    }

    /// Ends the visits of members whose proof is no longer `good`.
    pub(super) fn verify_again(&mut self, good: impl Fn(&Proof) -> bool) {
        let bad = |one: &InProgress| {
            let bad = one.members.iter().find(|member| !good(member))?;
            Some(bad.identity.clone())
        };
        let ended = self.by_number.iter();
        let ended: Vec<_> = ended
            .filter_map(|(number, one)| Some((*number, bad(one)?)))
            .collect();
        for (number, name) in ended {
            self.end(number, Ended::NoMember(name));
        }
    }

    fn end(&mut self, number: u64, reason: Ended) {
        if let Some(one) = self.by_number.remove(&number) {
            // The visit may end at the same time by itself.
            let _ = one.end.send(reason);
        }
    }

    pub(super) fn joined(&mut self, number: u64) {
        if let Some(one) = self.by_number.get_mut(&number) {
            one.is_joined = true;
        }
    }

    pub(super) fn remove(&mut self, number: u64) {
        self.by_number.remove(&number);
    }

    /// Number of visits to the exit of a registration.
    pub(super) fn of_registration(&self, registration: u64) -> usize {
        let visits = self.by_number.values();
        visits
            .filter(|one| one.registration == registration)
            .count()
    }

    /// Number of visits that wait for a connection.
    pub(super) fn waiting(&self) -> usize {
        self.by_number.values().filter(|one| !one.is_joined).count()
    }

    pub(super) fn len(&self) -> usize {
        self.by_number.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_number.is_empty()
    }
}
