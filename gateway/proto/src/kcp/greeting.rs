//! The stateless exchange between an acceptor and unknown peers. This module classifies a first
//! datagram and encodes the two possible answers.
//!
//! An answer never causes another answer, even if a forged source address leads it to a second
//! acceptor: [`opening`] does not classify challenges and resets, and acknowledgements alone get no
//! answer.

use super::segment::{Command, Header, Segments};

/// The serial of a challenge. This serial precedes the serial of the first segment.
pub const CHALLENGE: u32 = u32::MAX;
/// The serial of a reset.
pub const RESET: u32 = u32::MAX - 1;

/// The classification of a datagram of an unknown conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    /// The datagram begins a conversation and answers no challenge.
    Begins {
        /// The conversation's number.
        conversation: u32,
    },
    /// The datagram begins a conversation and answers a challenge.
    Answers {
        /// The conversation's number.
        conversation: u32,
        /// The secret that the challenge carried.
        answer: u32,
    },
    /// The datagram belongs to a conversation that has already begun.
    GoesOn {
        /// The conversation's number.
        conversation: u32,
        /// The secret of a window request, which a reset must repeat; `None`: the datagram must not
        /// be answered.
        secret: Option<u64>,
    },
}

/// Classifies a datagram of an unknown conversation. `None`: it is not KCP, or it is an answer of
/// another acceptor.
#[must_use]
pub fn opening(datagram: &[u8]) -> Option<Opening> {
    let (first, _) = Segments(datagram).next()?;
    let conversation = first.conversation;
    let own = Segments(datagram).take_while(|(header, _)| header.conversation == conversation);
    let (mut answer, mut secret, mut begins) = (None, None, false);
    for (header, payload) in own {
        match header.command {
            Command::Push if is_answer(&header, payload) => return None,
            Command::Push => begins = true,
            Command::Ask => {
                begins = true;
                secret.get_or_insert(secret_of_ask(&header));
            }
            Command::Ack if header.serial == CHALLENGE => {
                answer.get_or_insert(header.time);
            }
            Command::Ack | Command::Tell => {}
        }
    }
    // A peer that has received a segment from the acceptor is not beginning a conversation.
    Some(match (first.next, answer) {
        (0, Some(answer)) => Opening::Answers {
            conversation,
            answer,
        },
        (0, None) if begins => Opening::Begins { conversation },
        (0, None) => Opening::GoesOn {
            conversation,
            secret: None,
        },
        _ => Opening::GoesOn {
            conversation,
            secret,
        },
    })
}

/// Whether a segment of payload is a challenge or a reset.
fn is_answer(header: &Header, payload: &[u8]) -> bool {
    payload.is_empty() && [CHALLENGE, RESET].contains(&header.serial)
}

/// Encodes a challenge, which requests proof that the peer receives datagrams at its address. The
/// challenge is no longer than the peer's datagram.
#[must_use]
pub fn challenge(conversation: u32, secret: u32) -> Vec<u8> {
    segment(conversation, CHALLENGE, (secret, 0))
}

/// Encodes a reset, which informs the peer that its connection is unknown. `secret` is the secret
/// of the peer's window request. A stranger that does not see the datagrams does not know it.
#[must_use]
pub fn reset(conversation: u32, secret: u64) -> Vec<u8> {
    segment(conversation, RESET, ((secret >> 32) as u32, secret as u32))
}

/// The secret that a reset repeats.
pub(super) fn secret_of_reset(header: &Header) -> u64 {
    joined(header.time, header.next)
}

/// The time and the serial of a window request. KCP uses neither of them.
pub(super) fn fields_of_ask(secret: u64) -> (u32, u32) {
    ((secret >> 32) as u32, secret as u32)
}

fn secret_of_ask(header: &Header) -> u64 {
    joined(header.time, header.serial)
}

fn joined(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

fn segment(conversation: u32, serial: u32, (time, next): (u32, u32)) -> Vec<u8> {
    let mut bytes = Vec::new();
    let header = Header {
        conversation,
        command: Command::Push,
        window: 128,
        time,
        serial,
        next,
    };
    header.encode(0, &mut bytes);
    bytes
}
