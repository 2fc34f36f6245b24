//! Registrations, visits and tickets, which all workers of a rendezvous share.

mod registrations;
mod visits;

use std::collections::{BTreeMap, VecDeque};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use muxtunnel_codes::Code;
use muxtunnel_gateway_config::status::Rendezvous;
use muxtunnel_proto::Reason;
use muxtunnel_proto::rendezvous::Ticket;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, mpsc, oneshot};

use crate::base::counters::Counter;
use crate::base::handshake_limiter::{EarlyDrop, HandshakeLimiter, permits_max};
use crate::base::telemetry::RendezvousStatus;
use crate::io::proof::Proof;
use registrations::{Registration, Registrations};
pub(super) use visits::Ended;
use visits::Visits;

/// Maximum number of queued tickets of one exit.
const INVITATIONS_MAX: usize = 64;

/// Maximum number of remembered tickets whose visits ended before a connection came.
const LATE_MAX: usize = 1024;

/// The state of a rendezvous.
#[derive(Debug)]
pub(crate) struct Meeting {
    /// Limits connections that have neither proved a key nor presented a ticket yet.
    pub(crate) limiter: Arc<HandshakeLimiter>,
    state: Mutex<State>,
    left: Notify,
    /// Number of bytes forwarded since the start, in both directions.
    pub(super) bytes: Counter,
}

#[derive(Debug, Default)]
struct State {
    registrations: Registrations,
    /// The valid tickets: at most one of each visit that waits.
    tickets: BTreeMap<Ticket, Expected>,
    /// Tickets that no connection used before their visits ended, the newest last. A leaf may be on
    /// its way with one of them.
    late: VecDeque<Ticket>,
    visits: Visits,
    /// Number of visits that were joined since the start.
    met: u64,
}

/// Where the connection with a ticket goes.
#[derive(Debug)]
struct Expected {
    /// The registration to which the visit leads.
    registration: u64,
    arrived: oneshot::Sender<Arrived>,
}

/// What a ticket is worth when a connection presents it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// A visit waited for the connection, and has it now.
    Awaited,
    /// The visit ended while the leaf was on its way, for example because the other leaf has gone.
    Late,
    /// The ticket was used before, or was never issued.
    Unknown,
}

/// A connection that began with a ticket.
#[derive(Debug)]
pub(super) struct Arrived {
    pub(super) tcp: TcpStream,
    pub(super) peer: String,
}

/// A valid ticket. Dropping the value ends its validity.
pub(super) struct Issued {
    meeting: Arc<Meeting>,
    pub(super) ticket: Ticket,
    pub(super) arrived: oneshot::Receiver<Arrived>,
}

impl Drop for Issued {
    fn drop(&mut self) {
        self.meeting.state().end_unused(self.ticket);
    }
}

/// A visit in progress. Dropping the value ends the visit.
pub(super) struct Visit {
    meeting: Arc<Meeting>,
    number: u64,
    /// The identity of the visited exit.
    pub(super) exit: String,
    registration: u64,
    /// The round trip to the exit.
    pub(super) round_trip: Duration,
}

/// Why a visit was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum VisitRefused {
    #[error(
        "no exit is registered under the requested key: check that members of the rendezvous has this key, and that \
         the exit's log contains `Registered`"
    )]
    Nobody,
    #[error("the gateway is no longer in members")]
    NoMember,
    #[error(
        "the rendezvous is at its limit of visits, and no other member has more visits to give up: raise \
         limits.carriers of the rendezvous"
    )]
    TooMany,
    #[error(
        "{INVITATIONS_MAX} earlier visits wait until the rendezvous can send them to the exit: check the network to the exit, and the exit's log"
    )]
    NotComing,
}

impl VisitRefused {
    pub(super) const fn code(self) -> Code {
        match self {
            Self::Nobody | Self::NotComing => Code::MeetingRefused,
            Self::NoMember => Code::KeyUnknown,
            Self::TooMany => Code::TooManyCarriers,
        }
    }

    pub(super) const fn reason(self) -> Reason {
        match self {
            Self::Nobody | Self::NotComing => Reason::HostUnreachable,
            Self::NoMember => Reason::NotAllowed,
            Self::TooMany => Reason::General,
        }
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.meeting.state().visits.remove(self.number);
        self.meeting.left.notify_waiters();
    }
}

impl Visit {
    /// Issues the visitor's ticket.
    pub(super) fn admit(&self) -> Issued {
        self.issue(&mut self.meeting.state())
    }

    /// Issues the exit's ticket, and sends it to the exit.
    ///
    /// # Errors
    /// [`VisitRefused`].
    pub(super) fn invite(&self) -> Result<Issued, VisitRefused> {
        // Dropping a ticket takes the lock.
        let (issued, sent) = {
            let mut state = self.meeting.state();
            let issued = self.issue(&mut state);
            let sent = match state.registrations.get(&self.exit, self.registration) {
                Some(one) => one.invitations.try_send(issued.ticket),
                None => Err(mpsc::error::TrySendError::Closed(issued.ticket)),
            };
            (issued, sent)
        };
        match sent {
            Ok(()) => Ok(issued),
            Err(mpsc::error::TrySendError::Full(_)) => Err(VisitRefused::NotComing),
            Err(mpsc::error::TrySendError::Closed(_)) => Err(VisitRefused::Nobody),
        }
    }

    fn issue(&self, state: &mut State) -> Issued {
        let ticket = rand::random();
        let (sender, arrived) = oneshot::channel();
        let expected = Expected {
            registration: self.registration,
            arrived: sender,
        };
        state.tickets.insert(ticket, expected);
        Issued {
            meeting: Arc::clone(&self.meeting),
            ticket,
            arrived,
        }
    }

    /// Records whether the exit connected with its ticket. Later visits prefer exits that did.
    pub(super) fn exit_came(&self, came: bool) {
        let mut state = self.meeting.state();
        if let Some(one) = state.registrations.get(&self.exit, self.registration) {
            one.has_missed = !came;
        }
    }

    /// Counts the visit as joined.
    pub(super) fn joined(&self) {
        let mut state = self.meeting.state();
        state.met += 1;
        state.visits.joined(self.number);
    }
}

impl Meeting {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            limiter: HandshakeLimiter::new(permits_max(), EarlyDrop::On),
            state: Mutex::default(),
            left: Notify::new(),
            bytes: Counter::default(),
        })
    }

    /// Registers the exit that has proved `proof`, in addition to other exits with this identity.
    /// `round_trip` is the round trip to the exit. Returns the number of the registration and the
    /// receiver of the tickets. Returns `None` if the proof is no longer `good`.
    pub(super) fn register(
        &self,
        proof: &Proof,
        round_trip: Duration,
        good: impl Fn(&Proof) -> bool,
    ) -> Option<(u64, mpsc::Receiver<Ticket>)> {
        let (sender, receiver) = mpsc::channel(INVITATIONS_MAX);
        let mut state = self.state();
        // Within the lock, so that a later change of the members finds this registration.
        if !good(proof) {
            return None;
        }
        let registration = Registration::new(proof.clone(), sender, round_trip);
        let (number, ended) = state.registrations.add(registration);
        if let Some(ended) = ended {
            state.forget(ended);
        }
        Some((number, receiver))
    }

    /// Removes the registration, if it has not ended yet.
    pub(super) fn unregister(&self, identity: &str, number: u64) {
        let mut state = self.state();
        if state.registrations.remove(identity, number) {
            state.forget(number);
        }
    }

    /// Ends the registrations and the visits of members whose proof is no longer `good`. Returns the
    /// identities of the exits whose registrations ended.
    pub(super) fn verify_again(&self, good: impl Fn(&Proof) -> bool) -> Vec<String> {
        let mut state = self.state();
        state.visits.verify_again(&good);
        let ended = state.registrations.verify_again(&good);
        let identities = ended.into_iter().map(|(identity, number)| {
            state.forget(number);
            identity
        });
        identities.collect()
    }

    /// Begins a visit to the first registered exit of `exits`. The second value tells why the
    /// rendezvous ends the visit. At the limit, the member with the most visits gives up one.
    ///
    /// # Errors
    /// [`VisitRefused`].
    pub(super) fn visit(
        self: &Arc<Self>,
        visitor: &Proof,
        exits: &[String],
        limit: usize,
        good: impl Fn(&Proof) -> bool,
    ) -> Result<(Visit, oneshot::Receiver<Ended>), VisitRefused> {
        let mut guard = self.state();
        let state = &mut *guard;
        // Within the lock, so that a later change of the members finds this visit.
        if !good(visitor) {
            return Err(VisitRefused::NoMember);
        }
        let visits = |registration| state.visits.of_registration(registration);
        let mut exits = exits.iter();
        let exit = exits.find(|exit| state.registrations.has(exit));
        let found = exit.and_then(|exit| state.registrations.choose(exit, visitor, visits));
        let found = found.ok_or(VisitRefused::Nobody)?;
        let members = [visitor, &found.proof].map(Clone::clone);
        let begun = state.visits.begin(members, found.number, limit);
        let (number, end) = begun.ok_or(VisitRefused::TooMany)?;
        let visit = Visit {
            meeting: Arc::clone(self),
            number,
            exit: found.proof.identity.clone(),
            registration: found.number,
            round_trip: found.round_trip,
        };
        found.take(visitor);
        Ok((visit, end))
    }

    /// Passes a connection to the visit that waits for `ticket`, which is then no longer valid.
    pub(super) fn arrive(&self, ticket: &Ticket, arrived: Arrived) -> Arrival {
        let mut state = self.state();
        if let Some(expected) = state.tickets.remove(ticket) {
            return match expected.arrived.send(arrived) {
                Ok(()) => Arrival::Awaited,
                Err(_) => Arrival::Late,
            };
        }
        match state.late.iter().position(|late| late == ticket) {
            Some(place) => {
                state.late.remove(place);
                Arrival::Late
            }
            None => Arrival::Unknown,
        }
    }

    /// Waits until no visit is in progress.
    pub(super) async fn is_empty(&self) {
        loop {
            let left = self.left.notified();
            if self.state().visits.is_empty() {
                return;
            }
            left.await;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
    /// Ends the ticket. If no connection has used it, it is late from now on.
    fn end_unused(&mut self, ticket: Ticket) {
        if self.tickets.remove(&ticket).is_some() {
            if self.late.len() == LATE_MAX {
                self.late.pop_front();
            }
            self.late.push_back(ticket);
        }
    }

    /// Ends the tickets of visits to an ended registration.
    fn forget(&mut self, registration: u64) {
        let of_it = |expected: &Expected| expected.registration == registration;
        let ended = self.tickets.iter().filter(|(_, expected)| of_it(expected));
        let ended: Vec<_> = ended.map(|(ticket, _)| *ticket).collect();
        for ticket in ended {
            self.end_unused(ticket);
        }
    }
}

impl RendezvousStatus for Meeting {
    fn status(&self) -> Rendezvous {
        let state = self.state();
        let waiting = state.visits.waiting() as u64;
        Rendezvous {
            registered: state.registrations.identities(),
            strangers: self.limiter.taken() as u64,
            waiting,
            meeting: state.visits.len() as u64 - waiting,
            met: state.met,
            bytes: self.bytes.get(),
        }
    }
}

#[cfg(test)]
mod tests;
