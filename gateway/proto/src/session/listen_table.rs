//! The listeners that the dialler requests from the acceptor. Both sides have a table with the
//! state of each listener.
//!
//! A state that must be sent to the peer is a dirty bit. The table creates the message when the
//! carrier has room, so no queue of messages exists. Bound: [`LISTENS_MAX`] on each side, including
//! listeners whose end has not been sent. The table does not open streams. The acceptor's streams
//! identify their listener by [`crate::listen_target`].

use std::collections::BTreeMap;

use super::{
    LISTEN_ADDRESS_LENGTH_MAX, ListenError, ListenEvent, ListenId, Priority, Reason, Refusal,
};

/// Maximum number of listeners that a session requests at the same time.
pub const LISTENS_MAX: usize = 64;
/// Code of UNLISTEN: the dialler gives up the listener.
const GIVEN_UP: u64 = 0;

/// A message about a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenWord {
    /// The dialler requests the listener.
    Listen {
        /// The listener.
        listen: ListenId,
        /// Priority of the listener's streams.
        priority: Priority,
        /// `ADDRESS:PORT`.
        address: String,
    },
    /// The acceptor listens.
    Listening {
        /// The listener.
        listen: ListenId,
        /// The address that the acceptor listens on.
        address: String,
    },
    /// The listener has ended or was refused.
    Unlisten {
        /// The listener.
        listen: ListenId,
        /// The dialler sends 0. The acceptor sends the number of the reason, as for a refused open.
        code: u64,
        /// The reason as text.
        reason: String,
    },
}

/// A message about listeners that the peer must not send.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ListenViolation {
    /// The peer requested more listeners than a session may have.
    #[error("more than {LISTENS_MAX} listeners were requested")]
    TooMany,
    /// Any other message that this state does not allow.
    #[error("{0}")]
    OutOfPlace(String),
}

/// All listeners that one connection's dialler requests.
#[derive(Debug)]
pub struct ListenTable {
    dials: bool,
    states: BTreeMap<ListenId, State>,
    /// Number of listeners with a message for the peer.
    due: usize,
    /// The last id that this side assigned or received.
    last: u32,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    /// On the dialler: the request must be sent.
    AskDue(String, Priority),
    /// The request has been sent or received, and is not answered yet.
    Asked,
    /// On the acceptor: the answer must be sent.
    AnswerDue(String),
    Listening,
    /// On either side: the end must be sent.
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

impl ListenTable {
    /// An empty table. If `dials`, this side dialled, so it requests the listeners.
    #[must_use]
    pub const fn new(dials: bool) -> Self {
        Self {
            dials,
            states: BTreeMap::new(),
            due: 0,
            last: 0,
        }
    }

    /// Whether [`Self::take`] has a message.
    #[must_use]
    pub const fn is_due(&self) -> bool {
        self.due > 0
    }

    /// The next message for the peer.
    pub fn take(&mut self) -> Option<ListenWord> {
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
        match self.set(listen, next)? {
            State::AskDue(address, priority) => Some(ListenWord::Listen {
                listen,
                priority,
                address,
            }),
            State::AnswerDue(address) => Some(ListenWord::Listening { listen, address }),
            State::EndDue(code, reason) => Some(ListenWord::Unlisten {
                listen,
                code,
                reason,
            }),
            State::Asked | State::Listening => None,
        }
    }

    /// Sets the state, or removes it for `None`. Returns the previous state.
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

    /// Ends the listener on this side. Informs the peer if the peer has received the request.
    fn end(&mut self, listen: ListenId, code: u64, reason: String) {
        match self.states.get(&listen) {
            // The request was never sent, so the peer needs no message.
            Some(State::AskDue(..)) => drop(self.set(listen, None)),
            Some(State::Asked | State::AnswerDue(_) | State::Listening) => {
                self.set(listen, Some(State::EndDue(code, reason)));
            }
            Some(State::EndDue(..)) | None => {}
        }
    }

    /// Requests a listener on `address` with the next number.
    ///
    /// # Errors
    /// [`ListenError`]: no message is sent.
    pub fn ask(&mut self, address: &str, priority: Priority) -> Result<ListenId, ListenError> {
        let next = self.last.checked_add(1).ok_or(ListenError::TooMany)?;
        let listen = ListenId(next);
        self.ask_as(listen, address, priority)?;
        Ok(listen)
    }

    /// Requests a listener on `address` with the number `listen`, which must be greater than all
    /// earlier numbers.
    ///
    /// # Errors
    /// [`ListenError`]: no message is sent.
    pub fn ask_as(
        &mut self,
        listen: ListenId,
        address: &str,
        priority: Priority,
    ) -> Result<(), ListenError> {
        if address.is_empty() || address.len() > LISTEN_ADDRESS_LENGTH_MAX {
            return Err(ListenError::AddressTooLong {
                length: address.len(),
            });
        }
        if !self.dials {
            return Err(ListenError::Unsupported);
        }
        if self.states.len() >= LISTENS_MAX {
            return Err(ListenError::TooMany);
        }
        if listen.0 <= self.last {
            return Err(ListenError::NumberUsed);
        }
        self.last = listen.0;
        let state = State::AskDue(address.to_owned(), priority);
        self.set(listen, Some(state));
        Ok(())
    }

    /// The dialler gives up the listener.
    pub fn give_up(&mut self, listen: ListenId) {
        if self.dials {
            self.end(listen, GIVEN_UP, String::new());
        }
    }

    /// Answers that the acceptor listens on `address`.
    pub fn answer(&mut self, listen: ListenId, address: &str) {
        if self.states.get(&listen) == Some(&State::Asked) {
            let state = State::AnswerDue(address.to_owned());
            self.set(listen, Some(state));
        }
    }

    /// Reports that the acceptor does not listen, or has stopped listening.
    pub fn refuse(&mut self, listen: ListenId, refusal: Refusal) {
        // Code 0 is reserved for the dialler.
        let code = u64::from(refusal.reason.code()).max(1);
        if !self.dials {
            self.end(listen, code, refusal.description);
        }
    }

    /// Handles a message from the peer. If `leaves`, this side is shutting down and refuses
    /// requests.
    ///
    /// # Errors
    /// [`ListenViolation`]: the peer must not send this message now.
    pub fn hear(
        &mut self,
        word: ListenWord,
        leaves: bool,
    ) -> Result<Option<ListenEvent>, ListenViolation> {
        match (word, self.dials) {
            (
                ListenWord::Listen {
                    listen,
                    priority,
                    address,
                },
                false,
            ) => {
                self.hear_listen(listen)?;
                if leaves {
                    let text = "this side is shutting down";
                    self.refuse(listen, Refusal::new(Reason::General, text));
                    return Ok(None);
                }
                Ok(Some(ListenEvent::Asked {
                    listen,
                    address,
                    priority,
                }))
            }
            (ListenWord::Listening { listen, address }, true) => {
                self.hear_listening(listen, address)
            }
            (
                ListenWord::Unlisten {
                    listen,
                    code,
                    reason,
                },
                dials,
            ) => {
                if dials == (code == GIVEN_UP) {
                    let text = format!(
                        "listener {}: UNLISTEN with code {code}, but the dialler must send {GIVEN_UP}, and the acceptor another code",
                        listen.0
                    );
                    return Err(ListenViolation::OutOfPlace(text));
                }
                self.hear_unlisten(listen, code, reason)
            }
            _ => {
                let text = "only the dialler requests listeners, and only the acceptor answers";
                Err(ListenViolation::OutOfPlace(text.to_owned()))
            }
        }
    }

    fn hear_listen(&mut self, listen: ListenId) -> Result<(), ListenViolation> {
        if listen.0 <= self.last {
            let text = format!("listener {} was requested before", listen.0);
            return Err(ListenViolation::OutOfPlace(text));
        }
        if self.states.len() >= LISTENS_MAX {
            return Err(ListenViolation::TooMany);
        }
        self.last = listen.0;
        self.set(listen, Some(State::Asked));
        Ok(())
    }

    fn hear_listening(
        &mut self,
        listen: ListenId,
        address: String,
    ) -> Result<Option<ListenEvent>, ListenViolation> {
        self.check_asked(listen)?;
        match self.states.get(&listen) {
            Some(State::Asked) => {
                self.set(listen, Some(State::Listening));
                Ok(Some(ListenEvent::Listening { listen, address }))
            }
            // The dialler gave up the listener in the meantime.
            Some(State::EndDue(..)) | None => Ok(None),
            Some(State::AskDue(..) | State::AnswerDue(_) | State::Listening) => {
                let text = format!("listener {} has no open request", listen.0);
                Err(ListenViolation::OutOfPlace(text))
            }
        }
    }

    fn hear_unlisten(
        &mut self,
        listen: ListenId,
        code: u64,
        description: String,
    ) -> Result<Option<ListenEvent>, ListenViolation> {
        self.check_asked(listen)?;
        let before = self.set(listen, None);
        let is_news = matches!(
            before,
            Some(State::Asked | State::AnswerDue(_) | State::Listening)
        );
        Ok(is_news.then(|| match code {
            GIVEN_UP => ListenEvent::GivenUp { listen },
            code => {
                let reason = Reason::from_code(u32::try_from(code).unwrap_or(u32::MAX));
                let refusal = Refusal {
                    reason,
                    description,
                };
                ListenEvent::Ended { listen, refusal }
            }
        }))
    }

    fn check_asked(&self, listen: ListenId) -> Result<(), ListenViolation> {
        let unsaid = matches!(self.states.get(&listen), Some(State::AskDue(..)));
        if listen.0 > self.last || unsaid {
            let text = format!("listener {} was never requested", listen.0);
            return Err(ListenViolation::OutOfPlace(text));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_ascend_on_a_connection() {
        let mut listens = ListenTable::new(true);
        let ask = |listens: &mut ListenTable, number| {
            listens.ask_as(ListenId(number), "127.0.0.1:80", Priority::Auto)
        };
        assert_eq!(ask(&mut listens, 3), Ok(()));
        for used in [3, 1] {
            assert_eq!(ask(&mut listens, used), Err(ListenError::NumberUsed));
        }
        assert_eq!(ask(&mut listens, u32::MAX), Ok(()));
        let next = listens.ask("127.0.0.1:80", Priority::Auto);
        assert_eq!(next, Err(ListenError::TooMany));
    }

    #[test]
    fn what_ends_before_it_was_said_is_never_said() {
        let mut listens = ListenTable::new(true);
        let ids = [(); 2].map(|()| listens.ask("127.0.0.1:80", Priority::Auto).unwrap());
        listens.give_up(ids[0]);
        let word = listens.take();
        assert!(matches!(word, Some(ListenWord::Listen { listen, .. }) if listen == ids[1]));
        assert!(!listens.is_due() && listens.take().is_none());
        listens.give_up(ids[1]);
        assert!(matches!(listens.take(), Some(ListenWord::Unlisten { .. })));
        assert!(listens.states.is_empty() && !listens.is_due());
    }
}
