//! The messages between gateways and a rendezvous before a carrier begins (docs/protocol.md,
//! "Rendezvous"). This module is only a codec.
//!
//! A leaf has a control connection to the rendezvous, which is TLS. A message there is
//! `type u8 | length u8 | body`, at most [`WORD_BYTES_MAX`] bytes. The decoder allocates no memory
//! before the message is complete. Each connection that the rendezvous joins to another begins with
//! an [`opening`] of fixed length.

/// Longest message in bytes.
pub const WORD_BYTES_MAX: usize = 2 + 255;
/// Length of a public key in bytes.
pub const KEY_BYTES: usize = 32;
/// Maximum number of keys of an exit in a visit.
pub const KEYS_MAX: usize = 4;
/// First bytes of an opening. The first byte differs from that of a TLS handshake.
pub const MAGIC: [u8; 8] = *b"MUXMEETS";
/// Length of an opening in bytes.
pub const OPENING_BYTES: usize = 8 + 16;
/// The protocol version that this crate implements.
pub const VERSION: u8 = 1;

/// Longest text of a refusal in bytes.
const TEXT_BYTES_MAX: usize = 200;

const REGISTER: u8 = 0x01;
const VISIT: u8 = 0x02;
const REGISTERED: u8 = 0x03;
const TICKET: u8 = 0x04;
const JOINED: u8 = 0x05;
const REFUSED: u8 = 0x06;

/// The right to one end of one joined connection. The value comes from a cryptographic random
/// source, and is valid once.
pub type Ticket = [u8; 16];

/// A message of a control connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Word {
    /// An exit registers under the key that it has proved. The control connection stays open for
    /// tickets.
    Register,
    /// An entry asks for the exit that has one of these keys, 1..=[`KEYS_MAX`].
    Visit(Vec<[u8; KEY_BYTES]>),
    /// The rendezvous has registered the exit.
    Registered,
    /// The leaf opens a connection with this ticket. A registered exit then has a visitor.
    Ticket(Ticket),
    /// The connections of both leaves are joined.
    Joined,
    /// Refuses the leaf.
    Refused {
        /// [`crate::Reason`] as a number.
        code: u8,
        /// A human-readable text.
        reason: String,
    },
}

/// The bytes are not a valid message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The type is unknown, or a message of this type has another length.
    #[error(
        "message type {0:#04x} of {1} bytes is invalid: is the peer a rendezvous, and is this gateway one of its leaves?"
    )]
    Unknown(u8, u8),
    /// The peer has another protocol version.
    #[error("the peer uses version {0} of the rendezvous protocol, this side uses {VERSION}")]
    Version(u8),
    /// A field is malformed.
    #[error("message type {0:#04x} has an invalid field")]
    BadField(u8),
}

/// Decodes the first message of `bytes`. Returns the message and its length. `None`: the message is
/// incomplete.
///
/// # Errors
/// [`DecodeError`]: the caller must close the connection.
pub fn decode(bytes: &[u8]) -> Result<Option<(Word, usize)>, DecodeError> {
    let [kind, length, rest @ ..] = bytes else {
        return Ok(None);
    };
    let length_of_body = usize::from(*length);
    let is_possible = match *kind {
        REGISTER => length_of_body == 1,
        VISIT => {
            let keys = length_of_body.saturating_sub(1);
            keys % KEY_BYTES == 0 && (1..=KEYS_MAX).contains(&(keys / KEY_BYTES))
        }
        REGISTERED | JOINED => length_of_body == 0,
        TICKET => length_of_body == 16,
        REFUSED => (1..=1 + TEXT_BYTES_MAX).contains(&length_of_body),
        _ => false,
    };
    if !is_possible {
        return Err(DecodeError::Unknown(*kind, *length));
    }
    let Some(body) = rest.get(..length_of_body) else {
        return Ok(None);
    };
    let bad = DecodeError::BadField(*kind);
    let word = match *kind {
        REGISTER => versioned(body, bad).map(|_| Word::Register)?,
        VISIT => {
            let (keys, _) = versioned(body, bad)?.as_chunks();
            Word::Visit(keys.to_vec())
        }
        REGISTERED => Word::Registered,
        JOINED => Word::Joined,
        TICKET => Word::Ticket(body.try_into().map_err(|_| bad)?),
        _ => {
            let (code, text) = body.split_first().ok_or(bad)?;
            let reason = std::str::from_utf8(text).map_err(|_| bad)?.to_owned();
            Word::Refused {
                code: *code,
                reason,
            }
        }
    };
    Ok(Some((word, 2 + length_of_body)))
}

/// The body after its version.
fn versioned(body: &[u8], bad: DecodeError) -> Result<&[u8], DecodeError> {
    match body.split_first() {
        Some((&VERSION, rest)) => Ok(rest),
        Some((version, _)) => Err(DecodeError::Version(*version)),
        None => Err(bad),
    }
}

/// Encodes a message. A reason is cut at 200 bytes, and a visit has the first [`KEYS_MAX`] keys.
#[must_use]
pub fn encode(word: &Word) -> Vec<u8> {
    match word {
        Word::Register => with_body(REGISTER, &[VERSION]),
        Word::Visit(keys) => {
            let mut body = vec![VERSION];
            keys.iter().take(KEYS_MAX).for_each(|key| body.extend(key));
            with_body(VISIT, &body)
        }
        Word::Registered => with_body(REGISTERED, &[]),
        Word::Ticket(ticket) => with_body(TICKET, ticket),
        Word::Joined => with_body(JOINED, &[]),
        Word::Refused { code, reason } => {
            let mut body = vec![*code];
            body.extend(cut(reason, TEXT_BYTES_MAX).bytes());
            with_body(REFUSED, &body)
        }
    }
}

/// The first bytes of a connection that the rendezvous joins to another.
#[must_use]
pub fn opening(ticket: &Ticket) -> [u8; OPENING_BYTES] {
    let mut bytes = [0; OPENING_BYTES];
    let (magic, rest) = bytes.split_at_mut(MAGIC.len());
    magic.copy_from_slice(&MAGIC);
    rest.copy_from_slice(ticket);
    bytes
}

/// The ticket of an opening. `None`: the bytes are no opening.
#[must_use]
pub fn ticket_in(opening: &[u8; OPENING_BYTES]) -> Option<Ticket> {
    opening.strip_prefix(&MAGIC)?.try_into().ok()
}

fn with_body(kind: u8, body: &[u8]) -> Vec<u8> {
    debug_assert!(body.len() <= usize::from(u8::MAX));
    let mut out = vec![kind, body.len() as u8];
    out.extend(body);
    out
}

fn cut(text: &str, length_max: usize) -> &str {
    &text[..text.floor_char_boundary(length_max)]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn words() -> Vec<Word> {
        vec![
            Word::Register,
            Word::Visit(vec![[7; 32]]),
            Word::Visit(vec![[7; 32], [8; 32], [9; 32], [10; 32]]),
            Word::Registered,
            Word::Ticket([4; 16]),
            Word::Joined,
            Word::Refused {
                code: 2,
                reason: "no".to_owned(),
            },
        ]
    }

    #[test]
    fn what_is_written_is_read_however_it_is_cut() {
        for word in words() {
            let bytes = encode(&word);
            assert!(bytes.len() <= WORD_BYTES_MAX);
            for end in 0..bytes.len() {
                assert_eq!(decode(&bytes[..end]), Ok(None), "{word:?} at {end}");
            }
            assert_eq!(decode(&bytes), Ok(Some((word, bytes.len()))));
        }
    }

    #[test]
    fn the_bytes_are_those_of_the_specification() {
        let mut visit = vec![0x02, 33, 1];
        visit.extend([0x11; 32]);
        for (word, bytes) in [
            (Word::Register, &b"\x01\x01\x01"[..]),
            (Word::Visit(vec![[0x11; 32]]), &visit),
            (Word::Registered, b"\x03\x00"),
            (
                Word::Ticket(*b"0123456789abcdef"),
                b"\x04\x100123456789abcdef",
            ),
            (Word::Joined, b"\x05\x00"),
            (
                Word::Refused {
                    code: 4,
                    reason: "who".to_owned(),
                },
                b"\x06\x04\x04who",
            ),
        ] {
            assert_eq!(encode(&word), bytes);
        }
        let opening = opening(b"0123456789abcdef");
        assert_eq!(&opening, b"MUXMEETS0123456789abcdef");
        assert_eq!(ticket_in(&opening).as_ref(), Some(b"0123456789abcdef"));
        assert_eq!(ticket_in(b"MUXMEETT0123456789abcdef"), None);
        assert_ne!(opening[0], 0x16, "the first byte of TLS");
    }

    #[test]
    fn what_is_no_word_is_refused_before_its_body_is_there() {
        for bytes in [
            &[0, 1][..],
            &[7, 1],
            &[1, 0],
            &[1, 2],
            &[2, 1],
            &[2, 32],
            &[2, 34],
            &[2, 161],
            &[3, 1],
            &[4, 15],
            &[5, 1],
            &[6, 0],
            &[6, 202],
        ] {
            assert!(decode(bytes).is_err(), "{bytes:?}");
        }
        assert_eq!(decode(&[1, 1, 2]), Err(DecodeError::Version(2)));
        let mut visit = encode(&words()[1]);
        visit[2] = 0;
        assert_eq!(decode(&visit), Err(DecodeError::Version(0)));
        assert_eq!(decode(&[6, 2, 1, 0xff]), Err(DecodeError::BadField(6)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(Some((word, consumed))) = decode(&bytes) {
                prop_assert!(consumed <= WORD_BYTES_MAX);
                prop_assert_eq!(encode(&word), &bytes[..consumed]);
            }
        }

        #[test]
        fn visits_are_read_as_written(keys in prop::collection::vec(any::<[u8; 32]>(), 1..=4)) {
            let word = Word::Visit(keys);
            let bytes = encode(&word);
            prop_assert_eq!(decode(&bytes), Ok(Some((word, bytes.len()))));
        }
    }
}
