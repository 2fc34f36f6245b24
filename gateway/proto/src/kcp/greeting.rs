//! The stateless exchange between an acceptor and unknown peers. This module classifies a first
//! datagram and encodes the two possible answers.

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
    },
}

/// Classifies a datagram of an unknown conversation. `None`: it is not KCP.
#[must_use]
pub fn opening(datagram: &[u8]) -> Option<Opening> {
    let (first, _) = Segments(datagram).next()?;
    let conversation = first.conversation;
    // A peer that has received a segment from the acceptor is not beginning a conversation.
    if first.next != 0 {
        return Some(Opening::GoesOn { conversation });
    }
    let mut own = Segments(datagram)
        .map(|(header, _)| header)
        .take_while(|header| header.conversation == conversation);
    let answers = |header: &Header| header.command == Command::Ack && header.serial == CHALLENGE;
    Some(match own.find(answers) {
        Some(header) => Opening::Answers {
            conversation,
            answer: header.time,
        },
        None => Opening::Begins { conversation },
    })
}

/// Encodes a challenge, which requests proof that the peer receives datagrams at its address. The
/// challenge is no longer than the peer's datagram.
#[must_use]
pub fn challenge(conversation: u32, secret: u32) -> Vec<u8> {
    segment(conversation, CHALLENGE, secret)
}

/// Encodes a reset, which informs the peer that its connection is unknown.
#[must_use]
pub fn reset(conversation: u32) -> Vec<u8> {
    segment(conversation, RESET, 0)
}

fn segment(conversation: u32, serial: u32, time: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    let header = Header {
        conversation,
        command: Command::Push,
        window: 128,
        time,
        serial,
        next: 0,
    };
    header.encode(0, &mut bytes);
    bytes
}
