//! The frames of listeners that the dialler requests from the acceptor. [`crate::ListenTable`] has
//! their state.

use super::codec::Frame;
use super::input::violation;
use super::{NativeSession, SessionCode, State};
use crate::session::{
    Event, ListenError, ListenId, ListenViolation, ListenWord, Priority, SessionError,
};

impl From<ListenWord> for Frame {
    fn from(word: ListenWord) -> Self {
        match word {
            ListenWord::Listen {
                listen,
                priority,
                address,
            } => Self::Listen {
                listen,
                priority: priority.code(),
                address,
            },
            ListenWord::Listening { listen, address } => Self::Listening { listen, address },
            ListenWord::Unlisten {
                listen,
                code,
                reason,
            } => Self::Unlisten {
                listen,
                code,
                reason,
            },
        }
    }
}

/// The listener message in a frame. `None`: the frame is not about a listener.
fn word(frame: Frame) -> Option<ListenWord> {
    match frame {
        Frame::Listen {
            listen,
            priority,
            address,
        } => Some(ListenWord::Listen {
            listen,
            priority: Priority::from_code(priority),
            address,
        }),
        Frame::Listening { listen, address } => Some(ListenWord::Listening { listen, address }),
        Frame::Unlisten {
            listen,
            code,
            reason,
        } => Some(ListenWord::Unlisten {
            listen,
            code,
            reason,
        }),
        _ => None,
    }
}

impl NativeSession {
    pub(super) fn ask_to_listen(
        &mut self,
        address: &str,
        priority: Priority,
    ) -> Result<ListenId, ListenError> {
        if self.state != State::Ready {
            return Err(ListenError::NotReady);
        }
        if !self.agreed.listen {
            return Err(ListenError::Unsupported);
        }
        self.listens.ask(address, priority)
    }

    /// Handles LISTEN, LISTENING or UNLISTEN.
    pub(super) fn handle_listen_frame(&mut self, frame: Frame) -> Result<(), SessionError> {
        let Some(word) = word(frame) else {
            return Ok(());
        };
        let leaves = self.departure.has_begun();
        let event = self.listens.hear(word, leaves).map_err(|error| {
            let code = match error {
                ListenViolation::TooMany => SessionCode::ListenLimitError,
                ListenViolation::OutOfPlace(_) => SessionCode::ProtocolViolation,
            };
            violation(code, error)
        })?;
        self.events.extend(event.map(Event::Listen));
        Ok(())
    }
}
