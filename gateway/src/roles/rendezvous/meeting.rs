//! Registrations, visits and tickets, which all workers of a rendezvous share.

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use muxtunnel_codes::Code;
use muxtunnel_gateway_config::status::Rendezvous;
use muxtunnel_proto::Reason;
use muxtunnel_proto::rendezvous::Ticket;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, mpsc, oneshot};

use crate::base::handshake_limiter::{EarlyDrop, HandshakeLimiter, permits_max};
use crate::base::telemetry::RendezvousStatus;
use crate::io::transport::Proof;

/// Maximum number of queued tickets of one exit.
const INVITATIONS_MAX: usize = 64;

/// The state of a rendezvous.
#[derive(Debug)]
pub(crate) struct Meeting {
    /// Limits connections that have neither proved a key nor presented a ticket yet.
    pub(super) limiter: Arc<HandshakeLimiter>,
    state: Mutex<State>,
    left: Notify,
    /// Number of bytes forwarded since the start, in both directions.
    bytes: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// The latest registration of each exit, by the exit's identity.
    registered: BTreeMap<String, Registration>,
    /// Number of registrations since the start.
    last: u64,
    /// The valid tickets: at most one of each visit that waits.
    tickets: BTreeMap<Ticket, Expected>,
    /// Number of visits, including visits that wait.
    visits: usize,
    /// Number of visits that wait.
    waiting: usize,
    /// Number of visits that were joined since the start.
    met: u64,
}

/// A registered exit.
#[derive(Debug)]
struct Registration {
    number: u64,
    proof: Proof,
    invitations: mpsc::Sender<Ticket>,
    /// The round trip to the exit.
    round_trip: Duration,
}

/// Where the connection with a ticket goes.
#[derive(Debug)]
struct Expected {
    /// The registration to which the visit leads.
    registration: u64,
    arrived: oneshot::Sender<Arrived>,
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
        self.meeting.state().tickets.remove(&self.ticket);
    }
}

/// A visit in progress. Dropping the value ends the visit.
pub(super) struct Visit {
    meeting: Arc<Meeting>,
    /// The identity of the visited exit.
    pub(super) exit: String,
    registration: u64,
    /// The round trip to the exit.
    pub(super) round_trip: Duration,
    is_joined: bool,
}

/// Why a visit was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum VisitRefused {
    #[error(
        "no exit is registered under the requested key: check that members of the rendezvous has this key, and that \
         the exit's log contains `Registered`"
    )]
    Nobody,
    #[error("the rendezvous is at its limit of visits: raise limits.carriers of the rendezvous")]
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
            Self::TooMany => Code::TooManyCarriers,
        }
    }

    pub(super) const fn reason(self) -> Reason {
        match self {
            Self::Nobody | Self::NotComing => Reason::HostUnreachable,
            Self::TooMany => Reason::General,
        }
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        let mut state = self.meeting.state();
        state.visits -= 1;
        state.waiting -= usize::from(!self.is_joined);
        drop(state);
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
            let registration = state.registered.get(&self.exit);
            let registration = registration.filter(|one| one.number == self.registration);
            let sent = match registration {
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

    /// Counts the visit as joined.
    pub(super) fn joined(&mut self) {
        let mut state = self.meeting.state();
        state.met += 1;
        state.waiting -= 1;
        self.is_joined = true;
    }
}

impl Meeting {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            limiter: HandshakeLimiter::new(permits_max(), EarlyDrop::On),
            state: Mutex::default(),
            left: Notify::new(),
            bytes: AtomicU64::new(0),
        })
    }

    /// Registers the exit that has proved `proof`, which receives all invitations from now on.
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
        state.last += 1;
        let number = state.last;
        let registration = Registration {
            number,
            proof: proof.clone(),
            invitations: sender,
            round_trip,
        };
        // The insert drops the sender of the previous registration, so that exit receives the end
        // of its invitations.
        let before = state
            .registered
            .insert(proof.identity.clone(), registration);
        if let Some(before) = before {
            state.forget(before.number);
        }
        Some((number, receiver))
    }

    /// Removes the registration, if it is still the latest registration of the exit.
    pub(super) fn unregister(&self, identity: &str, number: u64) {
        let mut state = self.state();
        let latest = state.registered.get(identity);
        if latest.is_some_and(|latest| latest.number == number) {
            state.registered.remove(identity);
            state.forget(number);
        }
    }

    /// Ends the registrations whose proof is no longer `good`. Joined connections continue. Returns
    /// the identities of the exits.
    pub(super) fn verify_again(&self, good: impl Fn(&Proof) -> bool) -> Vec<String> {
        let mut state = self.state();
        let ended = state.registered.iter().filter(|(_, one)| !good(&one.proof));
        let ended: Vec<_> = ended.map(|(identity, _)| identity.clone()).collect();
        for identity in &ended {
            // Removing a registration drops the sender, so the exit receives the end of its
            // invitations.
            if let Some(one) = state.registered.remove(identity) {
                state.forget(one.number);
            }
        }
        ended
    }

    /// Begins a visit to the first registered exit of `exits`.
    ///
    /// # Errors
    /// [`VisitRefused`].
    pub(super) fn visit(
        self: &Arc<Self>,
        exits: &[String],
        limit: usize,
    ) -> Result<Visit, VisitRefused> {
        let mut state = self.state();
        if state.visits >= limit {
            return Err(VisitRefused::TooMany);
        }
        let found = exits.iter().find_map(|exit| {
            let one = state.registered.get(exit)?;
            Some((exit.clone(), one.number, one.round_trip))
        });
        let (exit, registration, round_trip) = found.ok_or(VisitRefused::Nobody)?;
        state.visits += 1;
        state.waiting += 1;
        Ok(Visit {
            meeting: Arc::clone(self),
            exit,
            registration,
            round_trip,
            is_joined: false,
        })
    }

    /// Passes a connection to the visit that waits for `ticket`, which is then no longer valid.
    /// Returns whether the visit still waits.
    pub(super) fn arrive(&self, ticket: &Ticket, arrived: Arrived) -> bool {
        let expected = self.state().tickets.remove(ticket);
        expected.is_some_and(|expected| expected.arrived.send(arrived).is_ok())
    }

    /// Waits until no visit is in progress.
    pub(super) async fn is_empty(&self) {
        loop {
            let left = self.left.notified();
            if self.state().visits == 0 {
                return;
            }
            left.await;
        }
    }

    /// Counts forwarded bytes.
    pub(super) fn count_bytes(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// The limiter of connections that have neither proved a key nor presented a ticket.
    pub(crate) fn limiter(&self) -> Arc<HandshakeLimiter> {
        Arc::clone(&self.limiter)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
    /// Removes the tickets of visits to an ended registration.
    fn forget(&mut self, registration: u64) {
        self.tickets
            .retain(|_, expected| expected.registration != registration);
    }
}

impl RendezvousStatus for Meeting {
    fn status(&self) -> Rendezvous {
        let state = self.state();
        Rendezvous {
            registered: state.registered.keys().cloned().collect(),
            strangers: self.limiter.taken() as u64,
            waiting: state.waiting as u64,
            meeting: (state.visits - state.waiting) as u64,
            met: state.met,
            bytes: self.bytes.load(Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn registered() -> (Arc<Meeting>, u64, mpsc::Receiver<Ticket>) {
        let meeting = Meeting::new();
        let proof = Proof::of("db".to_owned());
        let (number, tickets) = meeting.register(&proof, Duration::ZERO, |_| true).unwrap();
        (meeting, number, tickets)
    }

    fn arrived() -> Arrived {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        Arrived {
            tcp: TcpStream::connect(listener.local_addr().unwrap()).unwrap(),
            peer: String::new(),
        }
    }

    #[test]
    fn a_ticket_is_valid_once_and_no_longer_than_its_visit_and_its_registration() {
        let (meeting, number, mut tickets) = registered();
        let visit = meeting.visit(&["db".to_owned()], 1).unwrap();
        assert_eq!(
            meeting.visit(&["db".to_owned()], 1).err(),
            Some(VisitRefused::TooMany)
        );
        let mut own = visit.admit();
        assert!(!meeting.arrive(&[0; 16], arrived()), "a guess");
        assert!(meeting.arrive(&own.ticket, arrived()));
        assert!(!meeting.arrive(&own.ticket, arrived()), "a second time");
        assert!(own.arrived.try_recv().is_ok());
        let invited = visit.invite().unwrap();
        let ticket = tickets.try_recv().unwrap();
        assert!(ticket == invited.ticket && ticket != own.ticket);
        drop(invited);
        assert!(!meeting.arrive(&ticket, arrived()), "the visitor has gone");
        let mut invited = visit.invite().unwrap();
        meeting.unregister("db", number + 1);
        assert_eq!(
            invited.arrived.try_recv().err(),
            Some(oneshot::error::TryRecvError::Empty)
        );
        meeting.unregister("db", number);
        assert!(!meeting.arrive(&invited.ticket, arrived()), "no exit");
        assert_eq!(visit.invite().err(), Some(VisitRefused::Nobody));
        drop((own, invited, visit));
        let state = meeting.state();
        assert_eq!(
            (state.visits, state.waiting, state.tickets.len()),
            (0, 0, 0)
        );
    }

    #[test]
    fn a_registration_ends_with_its_proof_or_by_a_later_one() {
        let (meeting, _, mut tickets) = registered();
        let proof = Proof::of("db".to_owned());
        assert!(
            meeting
                .register(&proof, Duration::ZERO, |_| false)
                .is_none()
        );
        assert_eq!(tickets.try_recv(), Err(mpsc::error::TryRecvError::Empty));
        let (_, later) = meeting.register(&proof, Duration::ZERO, |_| true).unwrap();
        let closed = Err(mpsc::error::TryRecvError::Disconnected);
        assert_eq!(tickets.try_recv(), closed);
        assert!(meeting.verify_again(|_| true).is_empty());
        assert_eq!(meeting.verify_again(|_| false), ["db"]);
        assert!({ later }.try_recv() == closed && meeting.status().registered.is_empty());
        assert_eq!(
            meeting.visit(&["db".to_owned()], 1).err(),
            Some(VisitRefused::Nobody)
        );
    }
}
