//! Listeners that one side asks the other side for.

use super::{Priority, Refusal};

/// Longest address that can be asked to be listened on, bytes.
pub const LISTEN_ADDRESS_LENGTH_MAX: usize = 64;

/// A listener that one side asked the other for, by a number that is used once in a session; at least 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListenId(pub(crate) u32);

impl ListenId {
    /// That of a number on the wire; `None`: it is 0.
    #[must_use]
    pub const fn from_number(number: u32) -> Option<Self> {
        match number {
            0 => None,
            number => Some(Self(number)),
        }
    }

    /// The number, for logs.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }
}

const LISTEN_TARGET: &str = "listen://";

/// What the streams of a listener ask for: who asked to listen knows where they lead.
#[must_use]
pub fn listen_target(listen: ListenId) -> String {
    format!("{LISTEN_TARGET}{}", listen.0)
}

/// The listener whose stream asks for `target`.
#[must_use]
pub fn listen_of_target(target: &str) -> Option<ListenId> {
    let number = target.strip_prefix(LISTEN_TARGET)?;
    let canonical = number.bytes().all(|b| b.is_ascii_digit()) && !number.starts_with('0');
    let listen = number.parse().ok().filter(|_| canonical);
    listen.map(ListenId)
}

/// What a session tells of listeners.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenEvent {
    /// The peer asks this side to listen: answer by `listening` or `end_listen`.
    Asked {
        /// The listener.
        listen: ListenId,
        /// `ADDRESS:PORT` as the peer wrote it.
        address: String,
        /// Of its streams.
        priority: Priority,
    },
    /// The peer does not want it any more, or what it was asked on has ended.
    GivenUp {
        /// The listener.
        listen: ListenId,
    },
    /// The peer listens.
    Listening {
        /// The listener.
        listen: ListenId,
        /// On what, as the peer says it.
        address: String,
    },
    /// The peer does not listen, or not any more; it may be asked again.
    Ended {
        /// The listener.
        listen: ListenId,
        /// Why.
        refusal: Refusal,
    },
}

/// Why a listener could not be asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ListenError {
    /// The hello is not over.
    #[error("the session is not established yet")]
    NotReady,
    /// The protocol has no word for it, or the peer did not agree to it.
    #[error("the other side does not listen for its peers; is it an older version?")]
    Unsupported,
    /// As many as may be are asked for.
    #[error("the session asks for as many listeners as it may")]
    TooMany,
    /// Numbers ascend on a connection, and this one does not.
    #[error("the number of the listener is not above all before it on this connection")]
    NumberUsed,
    /// It would not fit a LISTEN.
    #[error("the address has {length} bytes, 1 to {LISTEN_ADDRESS_LENGTH_MAX} are possible")]
    AddressTooLong {
        /// Bytes.
        length: usize,
    },
}
