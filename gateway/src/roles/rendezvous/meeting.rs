//! Who is registered, who waits for whom, and how many: shared by all workers of a rendezvous.

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use muxtunnel_codes::Code;
use muxtunnel_gateway_config::status::Rendezvous;
use muxtunnel_proto::Reason;
use muxtunnel_proto::rendezvous::Ticket;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, mpsc, oneshot};

use super::secrets::Secrets;
use crate::base::handshake_limiter::{EarlyDrop, HandshakeLimiter, PERMITS_MAX};
use crate::base::telemetry::RendezvousStatus;

/// Invitations of one name that wait to be written.
const INVITATIONS_MAX: usize = 64;

/// All of a rendezvous.
#[derive(Debug)]
pub(crate) struct Meeting {
    /// Connections that have proved nothing yet.
    pub(super) limiter: Arc<HandshakeLimiter>,
    state: Mutex<State>,
    left: Notify,
    /// Passed on since the start, in both directions.
    bytes: AtomicU64,
}

#[derive(Debug)]
struct State {
    secrets: Arc<Secrets>,
    /// By name: the latest registration, and the way of its invitations.
    registered: BTreeMap<String, (u64, mpsc::Sender<Ticket>)>,
    /// Registrations since the beginning.
    last: u64,
    waiting: BTreeMap<Ticket, Waiting>,
    /// Those that wait included.
    visits: usize,
    /// Visits since the beginning that came to a meeting.
    met: u64,
}

/// Somebody who waits for the leaf of a name.
#[derive(Debug)]
struct Waiting {
    name: String,
    attended: oneshot::Sender<Attendant>,
}

/// The connection of a leaf that was invited.
#[derive(Debug)]
pub(super) struct Attendant {
    pub(super) tcp: TcpStream,
    /// What it is told once they meet.
    pub(super) accepted: [u8; 32],
    pub(super) peer: String,
}

/// A visit under way.
pub(super) struct Visit {
    pub(super) attended: oneshot::Receiver<Attendant>,
    pub(super) place: Place,
}

/// Why there is no visit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum VisitRefused {
    #[error(
        "nobody is registered under the name: is its exit up, and does it say that it is registered here?"
    )]
    Nobody,
    #[error("the rendezvous is at its limit of visits: raise limits.carriers there")]
    TooMany,
    #[error("the exit has not come for the visitors before: does it reach this rendezvous?")]
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

/// One visit's place, until it is dropped.
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
            limiter: HandshakeLimiter::new(PERMITS_MAX, EarlyDrop::On),
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

    /// Those in force.
    pub(super) fn secrets(&self) -> Arc<Secrets> {
        Arc::clone(&self.state().secrets)
    }

    /// Has other secrets in force. Meetings go on; registrations under a name whose secret is another one, or
    /// gone, end. Returns how many did.
    pub(super) fn take_over(&self, secrets: Secrets) -> usize {
        let mut state = self.state();
        let before = std::mem::replace(&mut state.secrets, Arc::new(secrets));
        let now = Arc::clone(&state.secrets);
        let registered = state.registered.len();
        // Who is no longer there sees the end of its invitations.
        state
            .registered
            .retain(|name, _| now.agree_on(&before, name));
        registered - state.registered.len()
    }

    /// From now on visitors of `name` are announced here, and nowhere else. Returns the registration's
    /// number; `None`: `proved`, which it was proved with, are not the secrets in force any more.
    pub(super) fn register(
        &self,
        name: &str,
        proved: &Secrets,
    ) -> Option<(u64, mpsc::Receiver<Ticket>)> {
        let (sender, receiver) = mpsc::channel(INVITATIONS_MAX);
        let mut state = self.state();
        if !state.secrets.agree_on(proved, name) {
            return None;
        }
        state.last += 1;
        let number = state.last;
        // The former holder of the name sees the end of its invitations.
        state.registered.insert(name.to_owned(), (number, sender));
        Some((number, receiver))
    }

    /// That registration is over, if it is still the latest.
    pub(super) fn unregister(&self, name: &str, number: u64) {
        let mut state = self.state();
        if state
            .registered
            .get(name)
            .is_some_and(|(latest, _)| *latest == number)
        {
            state.registered.remove(name);
        }
    }

    /// Invites who is registered under `name`.
    ///
    /// # Errors
    /// [`VisitRefused`].
    pub(super) fn visit(self: &Arc<Self>, name: &str, limit: usize) -> Result<Visit, VisitRefused> {
        let ticket: Ticket = rand::random();
        let mut state = self.state();
        if state.visits >= limit {
            return Err(VisitRefused::TooMany);
        }
        let (_, invitations) = state.registered.get(name).ok_or(VisitRefused::Nobody)?;
        invitations
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
        })
    }

    /// Leads who was invited to the visitor. Returns whether one waits.
    pub(super) fn attend(&self, name: &str, ticket: Ticket, attendant: Attendant) -> bool {
        let mut state = self.state();
        let is_of_name = |waiting: &Waiting| waiting.name == name;
        if !state.waiting.get(&ticket).is_some_and(is_of_name) {
            return false;
        }
        let waiting = state.waiting.remove(&ticket);
        waiting.is_some_and(|waiting| waiting.attended.send(attendant).is_ok())
    }

    /// Waits until nobody visits any more.
    pub(super) async fn is_empty(&self) {
        loop {
            let left = self.left.notified();
            if self.state().visits == 0 {
                return;
            }
            left.await;
        }
    }

    /// Two leaves meet.
    pub(super) fn count_met(&self) {
        self.state().met += 1;
    }

    /// So many bytes were passed on.
    pub(super) fn count_bytes(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// Of connections without a proof.
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
