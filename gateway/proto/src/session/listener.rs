//! Listeners that one side requests from the other.

use super::{Priority, Refusal};

/// Longest address of a requested listener, in bytes.
pub const LISTEN_ADDRESS_LENGTH_MAX: usize = 64;

/// A listener that one side requested from the other. The number is at least 1 and unique in a
/// session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListenId(pub(crate) u32);

impl ListenId {
    /// The listener with this number on the wire. `None`: the number is 0.
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

/// The target of a listener's streams. The target contains only the listener's number, because the
/// side that requested the listener knows the real target.
#[must_use]
pub fn listen_target(listen: ListenId) -> String {
    format!("{LISTEN_TARGET}{}", listen.0)
}

/// The listener that `target` names.
#[must_use]
pub fn listen_of_target(target: &str) -> Option<ListenId> {
    let number = target.strip_prefix(LISTEN_TARGET)?;
    let canonical = number.bytes().all(|b| b.is_ascii_digit()) && !number.starts_with('0');
    let listen = number.parse().ok().filter(|_| canonical);
    listen.map(ListenId)
}

/// An event of a listener that a session reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenEvent {
    /// The peer requests a listener. The application answers with `listening` or `end_listen`.
    Asked {
        /// The listener.
        listen: ListenId,
        /// `ADDRESS:PORT`, as received.
        address: String,
        /// Priority of the listener's streams.
        priority: Priority,
    },
    /// The peer gave up the listener, or the connection that carried the request has ended.
    GivenUp {
        /// The listener.
        listen: ListenId,
    },
    /// The peer listens.
    Listening {
        /// The listener.
        listen: ListenId,
        /// The address on which the peer listens, as received.
        address: String,
    },
    /// The peer does not listen, or has stopped listening. The application may request the listener
    /// again.
    Ended {
        /// The listener.
        listen: ListenId,
        /// Why the listener ended.
        refusal: Refusal,
    },
}

/// Why a listener could not be requested.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ListenError {
    /// The hello is not complete.
    #[error("the session is not established yet")]
    NotReady,
    /// The protocol or the peer does not support listeners.
    #[error("the peer does not support listeners; is it an older version?")]
    Unsupported,
    /// The session has [`LISTENS_MAX`](super::LISTENS_MAX) listeners.
    #[error("the session has reached its limit of listeners")]
    TooMany,
    /// The number is not greater than all earlier numbers on the connection.
    #[error(
        "the number of the listener is not greater than all earlier listener numbers of this connection"
    )]
    NumberUsed,
    /// The address is too long for a LISTEN.
    #[error("the address has {length} bytes, expected 1 to {LISTEN_ADDRESS_LENGTH_MAX}")]
    AddressTooLong {
        /// Length of the address in bytes.
        length: usize,
    },
}
