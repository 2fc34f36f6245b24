//! Listeners that the dialler requests of the acceptor, both sides of them: requested, answered, given up.
//!
//! Each state that the peer has to learn of is a dirty one, from which the word is made when there is
//! room; so nothing queues. Bound: [`LISTENS_MAX`] on each side, what has ended and was not said yet
//! included. Opens nothing: the acceptor's streams name their listener by [`crate::listen_target`].

use std::collections::BTreeMap;

use super::{
    LISTEN_ADDRESS_LENGTH_MAX, ListenError, ListenEvent, ListenId, Priority, Reason, Refusal,
};

/// Most listeners that a session asks for at once.
pub const LISTENS_MAX: usize = 64;
/// The dialler wants no more of it: the code of UNLISTEN.
const GIVEN_UP: u64 = 0;

/// What one side says of a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenWord {
    /// The dialler asks for it.
    Listen {
        /// The listener.
        listen: ListenId,
        /// Of its streams.
        priority: Priority,
        /// `ADDRESS:PORT`.
        address: String,
    },
    /// The acceptor listens.
    Listening {
        /// The listener.
        listen: ListenId,
        /// On what.
        address: String,
    },
    /// It is over, or does not begin.
    Unlisten {
        /// The listener.
        listen: ListenId,
        /// 0 of the dialler's, else why, as of a refused open.
        code: u64,
        /// Why, in words.
        reason: String,
    },
}

/// What a peer must not say of listeners.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ListenViolation {
    /// More than a session may ask for.
    #[error("more than {LISTENS_MAX} listeners are asked for")]
    TooMany,
    /// Anything else.
    #[error("{0}")]
    OutOfPlace(String),
}

/// All listeners that are requested on one connection.
#[derive(Debug)]
pub struct ListenTable {
    dials: bool,
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

impl ListenTable {
    /// None yet; `dials`: of the side that asks.
    #[must_use]
    pub const fn new(dials: bool) -> Self {
        Self {
            dials,
            states: BTreeMap::new(),
            due: 0,
            last: 0,
        }
    }

    /// Whether [`Self::take`] has a word.
    #[must_use]
    pub const fn is_due(&self) -> bool {
        self.due > 0
    }

    /// The next word for the peer.
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

    /// Asks for a listener on `address` by the next number.
    ///
    /// # Errors
    /// [`ListenError`]: nothing is said.
    pub fn ask(&mut self, address: &str, priority: Priority) -> Result<ListenId, ListenError> {
        let next = self.last.checked_add(1).ok_or(ListenError::TooMany)?;
        let listen = ListenId(next);
        self.ask_as(listen, address, priority)?;
        Ok(listen)
    }

    /// Asks for a listener on `address` by a number above all before.
    ///
    /// # Errors
    /// [`ListenError`]: nothing is said.
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

    /// The dialler wants no more of it.
    pub fn give_up(&mut self, listen: ListenId) {
        if self.dials {
            self.end(listen, GIVEN_UP, String::new());
        }
    }

    /// The acceptor listens.
    pub fn answer(&mut self, listen: ListenId, address: &str) {
        if self.states.get(&listen) == Some(&State::Asked) {
            let state = State::AnswerDue(address.to_owned());
            self.set(listen, Some(state));
        }
    }

    /// The acceptor does not listen, or not any more.
    pub fn refuse(&mut self, listen: ListenId, refusal: Refusal) {
        // Zero is the dialler's.
        let code = u64::from(refusal.reason.code()).max(1);
        if !self.dials {
            self.end(listen, code, refusal.description);
        }
    }

    /// What the peer says. `leaves`: this side takes no more of them.
    ///
    /// # Errors
    /// It must not say that.
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
                    let text = format!("listener {}: UNLISTEN of the wrong side", listen.0);
                    return Err(ListenViolation::OutOfPlace(text));
                }
                self.hear_unlisten(listen, code, reason)
            }
            _ => {
                let text = "the side that dials asks for listeners, the other one answers";
                Err(ListenViolation::OutOfPlace(text.to_owned()))
            }
        }
    }

    fn hear_listen(&mut self, listen: ListenId) -> Result<(), ListenViolation> {
        if listen.0 <= self.last {
            let text = format!("listener {} was asked for before", listen.0);
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
            // It was given up meanwhile.
            Some(State::EndDue(..)) | None => Ok(None),
            Some(State::AskDue(..) | State::AnswerDue(_) | State::Listening) => {
                let text = format!("listener {} was not to be answered", listen.0);
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
            let text = format!("listener {} was never asked for", listen.0);
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
