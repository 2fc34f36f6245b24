//! What is said between an acceptor and those of whom it knows nothing yet, without a state: what a first datagram is,
//! and the two answers to it.

use super::segment::{Command, Header, Segments};

/// The serial of a challenge: that of the segment before the first one.
pub const CHALLENGE: u32 = u32::MAX;
/// The serial of a reset.
pub const RESET: u32 = u32::MAX - 1;

/// What a datagram of an unknown conversation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    /// It begins one, and answers no challenge.
    Begins {
        /// Its number.
        conversation: u32,
    },
    /// It begins one, and answers a challenge.
    Answers {
        /// Its number.
        conversation: u32,
        /// What the challenge said.
        answer: u32,
    },
    /// It goes on with one.
    GoesOn {
        /// Its number.
        conversation: u32,
    },
}

/// Reads a datagram of a conversation that is not known; `None`: it is none of KCP's.
#[must_use]
pub fn opening(datagram: &[u8]) -> Option<Opening> {
    let (first, _) = Segments(datagram).next()?;
    let conversation = first.conversation;
    // Who has had something of the acceptor's is not beginning.
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

/// Has the other end show that it receives where it says it is. No longer than what it answers.
#[must_use]
pub fn challenge(conversation: u32, secret: u32) -> Vec<u8> {
    segment(conversation, CHALLENGE, secret)
}

/// Tells the other end that its connection is not known.
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
