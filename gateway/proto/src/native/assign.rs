//! The addresses that the acceptor tells the dialler, once a session.

use super::input::violation;
use super::{NativeSession, SessionCode, Side, State};
use crate::session::{Assignment, Event, SessionError};

/// What is to be told, and whether it was.
#[derive(Debug, Default)]
pub(super) enum Assigning {
    /// Nothing has been said.
    #[default]
    Silent,
    /// It leaves next.
    Due(Assignment),
    /// It has left, or come.
    Said,
}

impl Assigning {
    pub(super) fn is_due(&self) -> bool {
        matches!(self, Self::Due(_))
    }

    /// What leaves now.
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

    /// ASSIGN.
    pub(super) fn handle_assign(&mut self, assignment: Assignment) -> Result<(), SessionError> {
        if let (Side::Dialler, Assigning::Silent) = (self.side, &self.assigning) {
            self.assigning = Assigning::Said;
            self.events.push_back(Event::Assigned(assignment));
            return Ok(());
        }
        let text = "addresses that are not the acceptor's to assign, or are assigned twice";
        Err(violation(SessionCode::ProtocolViolation, text))
    }
}
