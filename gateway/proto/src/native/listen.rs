//! Listeners that the dialler asks the acceptor for, both sides of them: asked for, answered, given up.
//!
//! Each state that the peer has to learn of is a dirty one, from which the frame is made when there is
//! room; so nothing queues. Bound: [`LISTENS_MAX`] on each side, what has ended and was not said yet
//! included. Opens nothing: the acceptor's streams name their listener by [`crate::listen_target`].

use std::collections::BTreeMap;

use super::codec::Frame;
use super::input::violation;
use super::{NativeSession, SessionCode, Side, State as SessionState};
use crate::session::{
    Event, LISTEN_ADDRESS_LENGTH_MAX, ListenError, ListenEvent, ListenId, Priority, Reason,
    Refusal, SessionError,
};

/// Most listeners that a session asks for at once.
pub const LISTENS_MAX: usize = 64;
/// The dialler wants no more of it: the code of UNLISTEN.
const GIVEN_UP: u64 = 0;

/// All of a session's.
#[derive(Debug, Default)]
pub(super) struct Listens {
    states: BTreeMap<ListenId, State>,
    /// How many of them the peer has to learn of.
    due: usize,
    /// The last id that was given out, or came.
    last: u32,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    /// The dialler's, to be said.
    AskDue(String, Priority),
    /// Without an answer.
    Asked,
    /// The acceptor's answer, to be said.
    AnswerDue(String),
    Listening,
    /// To be said by either side.
    EndDue(u64, String),
}

impl State {
    const fn is_due(&self) -> bool {
        matches!(
            self,
            Self::AskDue(..) | Self::AnswerDue(_) | Self::EndDue(..)
        )
    }
}

impl Listens {
    pub(super) const fn is_due(&self) -> bool {
        self.due > 0
    }

    /// The next frame that is due.
    pub(super) fn take(&mut self) -> Option<Frame> {
        if self.due == 0 {
            return None;
        }
        let mut states = self.states.iter_mut();
        let (&listen, state) = states.find(|(_, state)| state.is_due())?;
        let next = match state {
            State::AskDue(..) => Some(State::Asked),
            State::AnswerDue(_) => Some(State::Listening),
            State::EndDue(..) | State::Asked | State::Listening => None,
        };
        let frame = match self.set(listen, next)? {
            State::AskDue(address, priority) => Frame::Listen {
                listen,
                priority: priority.code(),
                address,
            },
            State::AnswerDue(address) => Frame::Listening { listen, address },
            State::EndDue(code, reason) => Frame::Unlisten {
                listen,
                code,
                reason,
            },
            State::Asked | State::Listening => return None,
        };
        Some(frame)
    }

    /// Replaces the state, `None`: it is gone. Returns the one before.
    fn set(&mut self, listen: ListenId, state: Option<State>) -> Option<State> {
        let is_due = |state: &Option<State>| state.as_ref().is_some_and(State::is_due);
        self.due += usize::from(is_due(&state));
        let before = match state {
            Some(state) => self.states.insert(listen, state),
            None => self.states.remove(&listen),
        };
        self.due -= usize::from(is_due(&before));
        before
    }

    /// This side does not want it any more, and tells the other one where that knows of it.
    fn end(&mut self, listen: ListenId, code: u64, reason: String) {
        match self.states.get(&listen) {
            // Nobody has heard of it.
            Some(State::AskDue(..)) => drop(self.set(listen, None)),
            Some(State::Asked | State::AnswerDue(_) | State::Listening) => {
                self.set(listen, Some(State::EndDue(code, reason)));
            }
            Some(State::EndDue(..)) | None => {}
        }
    }
}

impl NativeSession {
    pub(super) fn ask_to_listen(
        &mut self,
        address: &str,
        priority: Priority,
    ) -> Result<ListenId, ListenError> {
        if address.is_empty() || address.len() > LISTEN_ADDRESS_LENGTH_MAX {
            return Err(ListenError::AddressTooLong {
                length: address.len(),
            });
        }
        if self.state != SessionState::Ready {
            return Err(ListenError::NotReady);
        }
        if !self.agreed.listen || matches!(self.side, Side::Acceptor(_)) {
            return Err(ListenError::Unsupported);
        }
        if self.listens.states.len() >= LISTENS_MAX {
            return Err(ListenError::TooMany);
        }
        self.listens.last += 1;
        let listen = ListenId(self.listens.last);
        let state = State::AskDue(address.to_owned(), priority);
        self.listens.set(listen, Some(state));
        Ok(listen)
    }

    pub(super) fn give_up(&mut self, listen: ListenId) {
        if matches!(self.side, Side::Dialler) {
            self.listens.end(listen, GIVEN_UP, String::new());
        }
    }

    pub(super) fn answer_listen(&mut self, listen: ListenId, address: &str) {
        if self.listens.states.get(&listen) == Some(&State::Asked) {
            let state = State::AnswerDue(address.to_owned());
            self.listens.set(listen, Some(state));
        }
    }

    pub(super) fn refuse_listen(&mut self, listen: ListenId, refusal: Refusal) {
        // Zero is the dialler's.
        let code = u64::from(refusal.reason.code()).max(1);
        if matches!(self.side, Side::Acceptor(_)) {
            self.listens.end(listen, code, refusal.description);
        }
    }

    /// LISTEN, LISTENING or UNLISTEN.
    pub(super) fn handle_listen_frame(&mut self, frame: Frame) -> Result<(), SessionError> {
        match (frame, self.side) {
            (
                Frame::Listen {
                    listen,
                    priority,
                    address,
                },
                Side::Acceptor(_),
            ) => self.handle_listen(listen, Priority::from_code(priority), address),
            (Frame::Listening { listen, address }, Side::Dialler) => {
                self.handle_listening(listen, address)
            }
            (
                Frame::Unlisten {
                    listen,
                    code,
                    reason,
                },
                side,
            ) => {
                let by_dialler = matches!(side, Side::Acceptor(_));
                if by_dialler != (code == GIVEN_UP) {
                    let text = format!("listener {}: UNLISTEN of the wrong side", listen.0);
                    return Err(violation(SessionCode::ProtocolViolation, text));
                }
                self.handle_unlisten(listen, code, reason)
            }
            _ => {
                let text = "the side that dials asks for listeners, the other one answers";
                Err(violation(SessionCode::ProtocolViolation, text))
            }
        }
    }

    fn handle_listen(
        &mut self,
        listen: ListenId,
        priority: Priority,
        address: String,
    ) -> Result<(), SessionError> {
        if listen.0 <= self.listens.last {
            let text = format!("listener {} was asked for before", listen.0);
            return Err(violation(SessionCode::ProtocolViolation, text));
        }
        if self.listens.states.len() >= LISTENS_MAX {
            let text = format!("more than {LISTENS_MAX} listeners are asked for");
            return Err(violation(SessionCode::ListenLimitError, text));
        }
        self.listens.last = listen.0;
        self.listens.set(listen, Some(State::Asked));
        if self.departure.has_begun() {
            let text = "this side is shutting down";
            self.refuse_listen(listen, Refusal::new(Reason::General, text));
        } else {
            self.events.push_back(Event::Listen(ListenEvent::Asked {
                listen,
                address,
                priority,
            }));
        }
        Ok(())
    }

    fn handle_listening(&mut self, listen: ListenId, address: String) -> Result<(), SessionError> {
        self.check_asked(listen)?;
        match self.listens.states.get(&listen) {
            Some(State::Asked) => {
                self.listens.set(listen, Some(State::Listening));
                self.events
                    .push_back(Event::Listen(ListenEvent::Listening { listen, address }));
                Ok(())
            }
            // It was given up meanwhile.
            Some(State::EndDue(..)) | None => Ok(()),
            Some(State::AskDue(..) | State::AnswerDue(_) | State::Listening) => {
                let text = format!("listener {} was not to be answered", listen.0);
                Err(violation(SessionCode::ProtocolViolation, text))
            }
        }
    }

    fn handle_unlisten(
        &mut self,
        listen: ListenId,
        code: u64,
        description: String,
    ) -> Result<(), SessionError> {
        self.check_asked(listen)?;
        let before = self.listens.set(listen, None);
        let news = matches!(
            before,
            Some(State::Asked | State::AnswerDue(_) | State::Listening)
        );
        if news && code == GIVEN_UP {
            self.events
                .push_back(Event::Listen(ListenEvent::GivenUp { listen }));
        } else if news {
            let reason = Reason::from_code(u32::try_from(code).unwrap_or(u32::MAX));
            let refusal = Refusal {
                reason,
                description,
            };
            self.events
                .push_back(Event::Listen(ListenEvent::Ended { listen, refusal }));
        }
        Ok(())
    }

    fn check_asked(&self, listen: ListenId) -> Result<(), SessionError> {
        let unsaid = matches!(self.listens.states.get(&listen), Some(State::AskDue(..)));
        if listen.0 > self.listens.last || unsaid {
            let text = format!("listener {} was never asked for", listen.0);
            return Err(violation(SessionCode::ProtocolViolation, text));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_before_it_was_said_is_never_said() {
        let mut listens = Listens::default();
        let ids = [ListenId(1), ListenId(2)];
        for id in ids {
            let ask = State::AskDue("127.0.0.1:80".to_owned(), Priority::Auto);
            listens.set(id, Some(ask));
        }
        listens.end(ids[0], GIVEN_UP, String::new());
        let frame = listens.take();
        assert!(matches!(frame, Some(Frame::Listen { listen, .. }) if listen == ids[1]));
        assert!(!listens.is_due() && listens.take().is_none());
        listens.end(ids[1], GIVEN_UP, String::new());
        assert!(matches!(listens.take(), Some(Frame::Unlisten { .. })));
        assert!(listens.states.is_empty() && !listens.is_due());
    }
}
