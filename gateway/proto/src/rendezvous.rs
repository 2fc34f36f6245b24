//! The messages between leaf gateways and a rendezvous before a carrier begins (docs/protocol.md,
//! "Rendezvous"). This module is only a codec. The gateway computes the proofs.
//!
//! A message is `type u8 | length u8 | body`, at most [`WORD_BYTES_MAX`] bytes. The decoder
//! allocates no memory before the message is complete.

/// Longest message in bytes.
pub const WORD_BYTES_MAX: usize = 2 + 255;
/// Longest name in bytes.
pub const NAME_BYTES_MAX: usize = 63;
/// First bytes of a greeting's body.
pub const MAGIC: [u8; 8] = *b"MUXMEETS";
/// The protocol version that this crate implements.
pub const VERSION: u8 = 1;

/// Longest text of a refusal in bytes.
const TEXT_BYTES_MAX: usize = 200;
/// Size of a greeting's fixed fields in bytes: magic, version, purpose, ticket and nonce.
const GREETING_FIXED: usize = 8 + 1 + 1 + 16 + 32;

const GREETING: u8 = 0x01;
const CHALLENGE: u8 = 0x02;
const PROOF: u8 = 0x03;
const ACCEPTED: u8 = 0x04;
const REFUSED: u8 = 0x05;
const INVITE: u8 = 0x06;

/// Identifies one meeting. The value comes from a cryptographic random source.
pub type Ticket = [u8; 16];

/// Why a leaf connects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The leaf registers under its name. The connection stays open for invitations.
    Register,
    /// The leaf visits the leaf that is registered under the name.
    Visit,
    /// The leaf meets the visitor of an invitation.
    Attend(Ticket),
}

/// A message of the rendezvous protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Word {
    /// The leaf's first message.
    Greeting {
        /// Why the leaf connects.
        purpose: Purpose,
        /// A number from a cryptographic random source.
        nonce: [u8; 32],
        /// See [`is_name`].
        name: String,
    },
    /// The rendezvous requests a proof for this nonce.
    Challenge([u8; 32]),
    /// The leaf proves that it knows the name's secret.
    Proof([u8; 32]),
    /// The rendezvous proves that it also knows the secret. A registered leaf receives this message
    /// at once. Two leaves that meet receive it once both are connected. The rendezvous then
    /// forwards all bytes between the two leaves.
    Accepted([u8; 32]),
    /// Refuses the leaf.
    Refused {
        /// [`crate::Reason`] as a number.
        code: u8,
        /// A human-readable text.
        reason: String,
    },
    /// Informs a registered leaf that a visitor waits.
    Invite(Ticket),
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

/// Whether `text` can be a name: 1 to 63 lower-case letters, digits, `-`, `_` and `.`.
#[must_use]
pub fn is_name(text: &str) -> bool {
    let may =
        |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_' | b'.');
    (1..=NAME_BYTES_MAX).contains(&text.len()) && text.bytes().all(may)
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
    let possible = match *kind {
        GREETING => GREETING_FIXED + 1..=GREETING_FIXED + NAME_BYTES_MAX,
        CHALLENGE | PROOF | ACCEPTED => 32..=32,
        REFUSED => 1..=1 + TEXT_BYTES_MAX,
        INVITE => 16..=16,
        _ => return Err(DecodeError::Unknown(*kind, *length)),
    };
    if !possible.contains(&usize::from(*length)) {
        return Err(DecodeError::Unknown(*kind, *length));
    }
    let Some(body) = rest.get(..usize::from(*length)) else {
        return Ok(None);
    };
    let bad = DecodeError::BadField(*kind);
    let word = match *kind {
        GREETING => greeting(body)?,
        CHALLENGE => Word::Challenge(body.try_into().map_err(|_| bad)?),
        PROOF => Word::Proof(body.try_into().map_err(|_| bad)?),
        ACCEPTED => Word::Accepted(body.try_into().map_err(|_| bad)?),
        INVITE => Word::Invite(body.try_into().map_err(|_| bad)?),
        _ => {
            let (code, text) = body.split_first().ok_or(bad)?;
            let reason = std::str::from_utf8(text).map_err(|_| bad)?.to_owned();
            Word::Refused {
                code: *code,
                reason,
            }
        }
    };
    Ok(Some((word, 2 + usize::from(*length))))
}

fn greeting(body: &[u8]) -> Result<Word, DecodeError> {
    let bad = DecodeError::BadField(GREETING);
    let (magic, body) = body.split_first_chunk::<8>().ok_or(bad)?;
    let ([version, purpose], body) = body.split_first_chunk::<2>().ok_or(bad)?;
    let (ticket, body) = body.split_first_chunk::<16>().ok_or(bad)?;
    let (nonce, name) = body.split_first_chunk::<32>().ok_or(bad)?;
    if *magic != MAGIC {
        return Err(bad);
    }
    if *version != VERSION {
        return Err(DecodeError::Version(*version));
    }
    let purpose = match purpose {
        1 if *ticket == [0; 16] => Purpose::Register,
        2 if *ticket == [0; 16] => Purpose::Visit,
        3 => Purpose::Attend(*ticket),
        _ => return Err(bad),
    };
    let name = std::str::from_utf8(name).ok().filter(|name| is_name(name));
    Ok(Word::Greeting {
        purpose,
        nonce: *nonce,
        name: name.ok_or(bad)?.to_owned(),
    })
}

/// Encodes a message. A reason is cut at 200 bytes, a name at [`NAME_BYTES_MAX`].
#[must_use]
pub fn encode(word: &Word) -> Vec<u8> {
    match word {
        Word::Greeting {
            purpose,
            nonce,
            name,
        } => {
            let (purpose, ticket) = match purpose {
                Purpose::Register => (1, [0; 16]),
                Purpose::Visit => (2, [0; 16]),
                Purpose::Attend(ticket) => (3, *ticket),
            };
            let mut body = MAGIC.to_vec();
            body.extend([VERSION, purpose]);
            body.extend(ticket);
            body.extend(nonce);
            body.extend(cut(name, NAME_BYTES_MAX).bytes());
            with_body(GREETING, &body)
        }
        Word::Challenge(nonce) => with_body(CHALLENGE, nonce),
        Word::Proof(proof) => with_body(PROOF, proof),
        Word::Accepted(proof) => with_body(ACCEPTED, proof),
        Word::Invite(ticket) => with_body(INVITE, ticket),
        Word::Refused { code, reason } => {
            let mut body = vec![*code];
            body.extend(cut(reason, TEXT_BYTES_MAX).bytes());
            with_body(REFUSED, &body)
        }
    }
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
        let greeting = |purpose| Word::Greeting {
            purpose,
            nonce: [7; 32],
            name: "db.site-1".to_owned(),
        };
        vec![
            greeting(Purpose::Register),
            greeting(Purpose::Visit),
            greeting(Purpose::Attend([9; 16])),
            Word::Challenge([1; 32]),
            Word::Proof([2; 32]),
            Word::Accepted([3; 32]),
            Word::Invite([4; 16]),
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
        let bytes = encode(&Word::Greeting {
            purpose: Purpose::Visit,
            nonce: [0x11; 32],
            name: "db".to_owned(),
        });
        let mut expected = vec![0x01, 60];
        expected.extend(b"MUXMEETS\x01\x02");
        expected.extend([0; 16]);
        expected.extend([0x11; 32]);
        expected.extend(b"db");
        assert_eq!(bytes, expected);
        assert_eq!(
            encode(&Word::Refused {
                code: 4,
                reason: "who".to_owned()
            }),
            b"\x05\x04\x04who"
        );
    }

    #[test]
    fn what_is_no_word_is_refused_before_its_body_is_there() {
        for bytes in [
            &[0, 1][..],
            &[7, 1],
            &[1, 58],
            &[1, 122],
            &[2, 31],
            &[5, 0],
            &[6, 17],
        ] {
            assert!(decode(bytes).is_err(), "{bytes:?}");
        }
        let good = encode(&words()[0]);
        for (at, byte) in [(2, b'X'), (10, 2), (11, 0), (11, 4), (12, 1), (60, b'A')] {
            let mut bad = good.clone();
            bad[at] = byte;
            assert!(decode(&bad).is_err(), "byte {at}");
        }
    }

    #[test]
    fn names_are_short_and_plain() {
        for name in ["a", "db.site-1_x", &"n".repeat(63)] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", "A", "a b", "ä", "a/b", &"n".repeat(64)] {
            assert!(!is_name(name), "{name}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(Some((word, consumed))) = decode(&bytes) {
                prop_assert!(consumed <= WORD_BYTES_MAX);
                prop_assert_eq!(encode(&word), &bytes[..consumed]);
            }
        }
    }
}
