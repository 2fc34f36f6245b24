//! Registrations and visits, which all workers of a rendezvous share.

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

use super::secrets::Secrets;
use crate::base::handshake_limiter::{EarlyDrop, HandshakeLimiter, permits_max};
use crate::base::telemetry::RendezvousStatus;

/// Maximum number of queued invitations of one name.
const INVITATIONS_MAX: usize = 64;

/// The state of a rendezvous.
#[derive(Debug)]
pub(crate) struct Meeting {
    /// Limits connections that have not authenticated yet.
    pub(super) limiter: Arc<HandshakeLimiter>,
    state: Mutex<State>,
    left: Notify,
    /// Number of bytes forwarded since the start, in both directions.
    bytes: AtomicU64,
}

#[derive(Debug)]
struct State {
    secrets: Arc<Secrets>,
    /// The latest registration of each name.
    registered: BTreeMap<String, Registration>,
    /// Number of registrations since the start.
    last: u64,
    waiting: BTreeMap<Ticket, Waiting>,
    /// Number of visits, including visits that wait.
    visits: usize,
    /// Number of visits that were joined since the start.
    met: u64,
}

/// A registered leaf.
#[derive(Debug)]
struct Registration {
    number: u64,
    invitations: mpsc::Sender<Ticket>,
    /// The round trip to the leaf.
    round_trip: Duration,
}

/// A visitor that waits for the leaf that is registered under a name.
#[derive(Debug)]
struct Waiting {
    name: String,
    attended: oneshot::Sender<Attendant>,
}

/// The connection of an invited leaf.
#[derive(Debug)]
pub(super) struct Attendant {
    pub(super) tcp: TcpStream,
    /// The rendezvous's proof, which the leaf receives when the connections are joined.
    pub(super) accepted: [u8; 32],
    pub(super) peer: String,
}

/// A visit in progress.
pub(super) struct Visit {
    pub(super) attended: oneshot::Receiver<Attendant>,
    pub(super) place: Place,
    /// The round trip to the invited leaf.
    pub(super) round_trip: Duration,
}

/// Why a visit was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum VisitRefused {
    #[error(
        "no exit is registered under the name: check that the exit runs, and that its log contains `Registered`"
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

/// The right to one visit. Dropping the value ends the visit.
pub(super) struct Place {
    meeting: Arc<Meeting>,
    ticket: Ticket,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.meeting.state();
        state.waiting.remove(&self.ticket);
        state.visits -= 1;
        drop(state);
        self.meeting.left.notify_waiters();
    }
}

impl Meeting {
    pub(super) fn new(secrets: Secrets) -> Arc<Self> {
        Arc::new(Self {
            limiter: HandshakeLimiter::new(permits_max(), EarlyDrop::On),
            state: Mutex::new(State {
                secrets: Arc::new(secrets),
                registered: BTreeMap::new(),
                last: 0,
                waiting: BTreeMap::new(),
                visits: 0,
                met: 0,
            }),
            left: Notify::new(),
            bytes: AtomicU64::new(0),
        })
    }

    /// The secrets in force.
    pub(super) fn secrets(&self) -> Arc<Secrets> {
        Arc::clone(&self.state().secrets)
    }

    /// Applies new secrets. Joined connections continue. A registration ends if the exit's secret
    /// of its name has changed or was removed. Returns the number of registrations that ended.
    pub(super) fn take_over(&self, secrets: Secrets) -> usize {
        let mut state = self.state();
        let before = std::mem::replace(&mut state.secrets, Arc::new(secrets));
        let now = Arc::clone(&state.secrets);
        let registered = state.registered.len();
        // Removing a registration drops the sender, so the leaf receives the end of its
        // invitations.
        state
            .registered
            .retain(|name, _| now.agree_on(&before, name));
        registered - state.registered.len()
    }

    /// Registers a leaf, which receives all invitations for `name` from now on. Returns the number
    /// of the registration and the receiver of the invitations. `proved` has the secret with which
    /// the leaf authenticated. `round_trip` is the round trip to the leaf. Returns `None` if this
    /// secret is no longer in force.
    pub(super) fn register(
        &self,
        name: &str,
        proved: &Secrets,
        round_trip: Duration,
    ) -> Option<(u64, mpsc::Receiver<Ticket>)> {
        let (sender, receiver) = mpsc::channel(INVITATIONS_MAX);
        let mut state = self.state();
        if !state.secrets.agree_on(proved, name) {
            return None;
        }
        state.last += 1;
        let number = state.last;
        // The insert drops the sender of the previous registration, so that leaf receives the end
        // of its invitations.
        let registration = Registration {
            number,
            invitations: sender,
            round_trip,
        };
        state.registered.insert(name.to_owned(), registration);
        Some((number, receiver))
    }

    /// Removes the registration, if it is still the latest registration of the name.
    pub(super) fn unregister(&self, name: &str, number: u64) {
        let mut state = self.state();
        if state
            .registered
            .get(name)
            .is_some_and(|latest| latest.number == number)
        {
            state.registered.remove(name);
        }
    }

    /// Invites the leaf that is registered under `name`.
    ///
    /// # Errors
    /// [`VisitRefused`].
    pub(super) fn visit(self: &Arc<Self>, name: &str, limit: usize) -> Result<Visit, VisitRefused> {
        let ticket: Ticket = rand::random();
        let mut state = self.state();
        if state.visits >= limit {
            return Err(VisitRefused::TooMany);
        }
        let registered = state.registered.get(name).ok_or(VisitRefused::Nobody)?;
        let round_trip = registered.round_trip;
        registered
            .invitations
            .try_send(ticket)
            .map_err(|_| VisitRefused::NotComing)?;
        let (sender, attended) = oneshot::channel();
        let waiting = Waiting {
            name: name.to_owned(),
            attended: sender,
        };
        state.waiting.insert(ticket, waiting);
        state.visits += 1;
        Ok(Visit {
            attended,
            place: Place {
                meeting: Arc::clone(self),
                ticket,
            },
            round_trip,
        })
    }

    /// Passes the connection of an invited leaf to its visitor. Returns whether the visitor is
    /// still waiting.
    pub(super) fn attend(&self, name: &str, ticket: Ticket, attendant: Attendant) -> bool {
        let mut state = self.state();
        let is_of_name = |waiting: &Waiting| waiting.name == name;
        if !state.waiting.get(&ticket).is_some_and(is_of_name) {
            return false;
        }
        let waiting = state.waiting.remove(&ticket);
        waiting.is_some_and(|waiting| waiting.attended.send(attendant).is_ok())
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

    /// Counts a joined pair.
    pub(super) fn count_met(&self) {
        self.state().met += 1;
    }

    /// Counts forwarded bytes.
    pub(super) fn count_bytes(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// The limiter of connections that have not authenticated.
    pub(crate) fn limiter(&self) -> Arc<HandshakeLimiter> {
        Arc::clone(&self.limiter)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl RendezvousStatus for Meeting {
    fn status(&self) -> Rendezvous {
        let state = self.state();
        let waiting = state.waiting.len();
        Rendezvous {
            names: state.secrets.names() as u64,
            registered: state.registered.keys().cloned().collect(),
            strangers: self.limiter.taken() as u64,
            waiting: waiting as u64,
            meeting: (state.visits - waiting) as u64,
            met: state.met,
            bytes: self.bytes.load(Relaxed),
        }
    }
}
