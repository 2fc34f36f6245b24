//! ASSIGN: once per session, the acceptor sends the dialler the addresses that the dialler may use.

use super::input::violation;
use super::{NativeSession, SessionCode, Side, State};
use crate::session::{Assignment, Event, SessionError};

/// State of a session's assignment.
#[derive(Debug, Default)]
pub(super) enum Assigning {
    /// The session has no assignment yet.
    #[default]
    Silent,
    /// The assignment is waiting to be sent.
    Due(Assignment),
    /// The assignment has been sent or received.
    Said,
}

impl Assigning {
    pub(super) fn is_due(&self) -> bool {
        matches!(self, Self::Due(_))
    }

    /// Returns the assignment to send, and marks it as sent.
    pub(super) fn take(&mut self) -> Option<Assignment> {
        if !self.is_due() {
            return None;
        }
        match std::mem::replace(self, Self::Said) {
            Self::Due(assignment) => Some(assignment),
            Self::Silent | Self::Said => None,
        }
    }
}

impl NativeSession {
    pub(super) fn assign_once(&mut self, assignment: &Assignment) -> bool {
        let may = self.state == State::Ready
            && self.agreed.assign
            && matches!(self.side, Side::Acceptor(_))
            && matches!(self.assigning, Assigning::Silent);
        if may {
            self.assigning = Assigning::Due(assignment.clone());
        }
        may
    }

    /// Handles ASSIGN. The frame is valid only on the dialler, and once per session.
    pub(super) fn handle_assign(&mut self, assignment: Assignment) -> Result<(), SessionError> {
        if let (Side::Dialler, Assigning::Silent) = (self.side, &self.assigning) {
            self.assigning = Assigning::Said;
            self.events.push_back(Event::Assigned(assignment));
            return Ok(());
        }
        let text = "only the acceptor may send ASSIGN, and only once";
        Err(violation(SessionCode::ProtocolViolation, text))
    }
}
