//! Messages that both ends send on a listener's stream. docs/protocol.md defines the wire format.
//!
//! Each message has a kind, a length and a body. A later version may append fields and add kinds.
//! This version ignores both.

use muxtunnel_proto::Refusal;

use crate::session::message::{Fields, HEADER_BYTES, Malformed, framed, header, push_refusal};

/// Maximum length of an accepted body, with room for fields of later versions.
const BODY_BYTES_MAX: usize = 512;

const ARRIVED: u8 = 1;
const REFUSED: u8 = 2;
const ENDED: u8 = 3;

/// Identifies a connection that arrived at a listener. The token is random, so that no other peer
/// can guess it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Token(pub(super) [u8; 16]);

impl Token {
    pub(super) fn random() -> Self {
        use rand::RngExt;
        Self(rand::rng().random())
    }

    /// The path of the request that accepts the connection.
    pub(super) fn path(self) -> String {
        use std::fmt::Write;
        self.0.iter().fold("/".to_owned(), |mut path, byte| {
            // Writing to a String cannot fail.
            let _ = write!(path, "{byte:02x}");
            path
        })
    }

    /// The token of the connection that a request with this path accepts.
    pub(super) fn of_path(path: &str) -> Option<Self> {
        let digits = path.strip_prefix('/').filter(|digits| digits.len() == 32)?;
        let is_digit = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let token = u128::from_str_radix(digits, 16).ok();
        let token = token.filter(|_| digits.bytes().all(is_digit))?;
        Some(Self(token.to_be_bytes()))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Message {
    /// From the listening side: a connection waits for acceptance.
    Arrived(Token),
    /// From the side that requested the listener: this side refuses the connection.
    Refused(Token, Refusal),
    /// From the listening side: the listener has ended.
    Ended(Refusal),
    /// A message kind of a later version.
    Unknown,
}

pub(super) fn encode(message: &Message) -> Vec<u8> {
    let mut body = Vec::new();
    let kind = match message {
        Message::Arrived(token) => {
            body.extend(token.0);
            ARRIVED
        }
        Message::Refused(token, refusal) => {
            body.extend(token.0);
            push_refusal(&mut body, refusal);
            REFUSED
        }
        Message::Ended(refusal) => {
            push_refusal(&mut body, refusal);
            ENDED
        }
        Message::Unknown => u8::MAX,
    };
    framed(kind, &body)
}

/// Decodes messages from pieces of a stream. The pieces may have any size. The buffer holds at most
/// one message and one piece.
#[derive(Debug, Default)]
pub(super) struct Messages(Vec<u8>);

impl Messages {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// The next message, if it is complete.
    ///
    /// # Errors
    /// [`Malformed`].
    pub(super) fn next(&mut self) -> Result<Option<Message>, Malformed> {
        let Some((head, rest)) = self.0.split_first_chunk() else {
            return Ok(None);
        };
        let (kind, length) = header(*head, BODY_BYTES_MAX)?;
        let Some(body) = rest.get(..length) else {
            return Ok(None);
        };
        let message = decode(kind, body)?;
        self.0.drain(..HEADER_BYTES + length);
        Ok(Some(message))
    }
}

fn decode(kind: u8, body: &[u8]) -> Result<Message, Malformed> {
    let mut fields = Fields::new(kind, body);
    Ok(match kind {
        ARRIVED => Message::Arrived(Token(fields.array()?)),
        REFUSED => Message::Refused(Token(fields.array()?), fields.refusal()?),
        ENDED => Message::Ended(fields.refusal()?),
        _ => Message::Unknown,
    })
}

/// Panics if a message does not survive a round trip, or if the result depends on how the input is
/// split.
#[cfg(any(test, feature = "oracles"))]
pub(in super::super) fn oracle(input: &[u8]) {
    let read_in_pieces = |bytes: usize| {
        let mut messages = Messages::default();
        let mut read = Vec::new();
        for piece in input.chunks(bytes) {
            messages.push(piece);
            loop {
                match messages.next() {
                    Ok(Some(message)) => read.push(message),
                    Ok(None) => break,
                    Err(error) => return (read, Some(error)),
                }
            }
            assert!(messages.0.len() < HEADER_BYTES + BODY_BYTES_MAX);
        }
        (read, None)
    };
    let read = read_in_pieces(input.len().max(1));
    assert_eq!(read, read_in_pieces(1));
    for message in read.0 {
        let mut again = Messages::default();
        again.push(&encode(&message));
        assert_eq!(again.next(), Ok(Some(message)));
    }
    if let Some(token) = std::str::from_utf8(input).ok().and_then(Token::of_path) {
        assert_eq!(token.path().as_bytes(), input);
    }
}

#[cfg(test)]
mod tests {
    use muxtunnel_proto::Reason;

    use super::*;

    #[test]
    fn messages_arrive_as_they_were_sent_and_later_versions_are_ignored() {
        let token = Token([7; 16]);
        let refusal = Refusal::new(Reason::ConnectionRefused, "closed");
        let bytes = [
            encode(&Message::Arrived(token)),
            encode(&Message::Refused(token, refusal.clone())),
            vec![9, 0, 1, 7],
            // The message has one more field than this version defines.
            [vec![3, 0, 11, 0, 5, 0, 6], b"closed!".to_vec()].concat(),
        ];
        assert_eq!(bytes[0][..4], [1, 0, 16, 7]);
        let mut messages = Messages::default();
        messages.push(&bytes.concat());
        for wanted in [
            Message::Arrived(token),
            Message::Refused(token, refusal.clone()),
            Message::Unknown,
            Message::Ended(refusal),
        ] {
            assert_eq!(messages.next(), Ok(Some(wanted)));
        }
        assert_eq!(messages.next(), Ok(None));
    }

    #[test]
    fn what_cannot_be_a_message_is_told() {
        for (bytes, error) in [
            (
                &[1, 2, 1][..],
                Malformed::TooLong {
                    length: 513,
                    most: 512,
                },
            ),
            (&[1, 0, 2, 0, 0], Malformed::TooShort(1)),
            (&[3, 0, 4, 0, 1, 0, 1], Malformed::TooShort(3)),
            (&[3, 0, 5, 0, 1, 0, 1, 0xff], Malformed::Text),
        ] {
            let mut messages = Messages::default();
            messages.push(bytes);
            assert_eq!(messages.next(), Err(error), "{bytes:?}");
        }
    }

    #[test]
    fn a_connection_is_accepted_by_the_path_that_names_it_alone() {
        let token = Token::random();
        assert_eq!(Token::of_path(&token.path()), Some(token));
        for odd in [
            "/",
            "/1",
            "/+0000000000000000000000000000001",
            "/0123456789ABCDEF0123456789abcdef",
            "0123456789abcdef0123456789abcdef0",
        ] {
            assert_eq!(Token::of_path(odd), None, "{odd}");
        }
    }
}
