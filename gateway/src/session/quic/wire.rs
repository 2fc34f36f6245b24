//! Messages that both ends send before payload on a stream, and on their control streams.
//! docs/protocol.md defines the wire format.
//!
//! Each message has a kind, a length and a body. Bytes after the known fields belong to a later
//! version and are ignored. Unknown kinds that need no answer are also ignored.

use muxtunnel_proto::{
    Assignment, LISTEN_ADDRESS_LENGTH_MAX, ListenId, ListenWord, Priority, Refusal,
    TARGET_LENGTH_MAX,
};

use crate::session::message::{
    self, DESCRIPTION_BYTES_MAX, Fields, HEADER_BYTES, Malformed, push_refusal, push_text,
};

/// Maximum length of an accepted body: the longest target, with room for fields of later versions.
pub(super) const BODY_BYTES_MAX: usize = 2 * TARGET_LENGTH_MAX;
/// Maximum length of a listener's address, in bytes.
const ADDRESS_BYTES_MAX: usize = 256;

/// Length of the mandatory fields of HELLO, in bytes.
#[cfg(any(test, feature = "oracles"))]
const HELLO_BYTES: usize = 5;

/// The protocol's version, in HELLO.
pub(super) const VERSION: u8 = 1;

/// Bit of the features in HELLO: the sender accepts IP packets in datagrams.
const PACKETS: u8 = 1;

const HELLO: u8 = 1;
const GO_AWAY: u8 = 2;
const OPEN: u8 = 3;
const OPENED: u8 = 4;
const REFUSED: u8 = 5;
const LISTEN: u8 = 6;
const LISTENING: u8 = 7;
const UNLISTEN: u8 = 8;
const ASSIGN: u8 = 9;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Message {
    /// The first message on a control stream.
    Hello {
        /// The newest version that the sender supports.
        version: u8,
        /// Number of concurrent streams that the sender takes; 0: the sender takes no streams.
        streams_max: u32,
        /// Whether the sender accepts IP packets.
        packets: bool,
    },
    /// On a control stream: the sender takes no further streams.
    GoAway,
    /// The first message on a stream.
    Open { priority: Priority, target: String },
    /// The answer that grants an open; payload follows the answer.
    Opened {
        /// The address that the peer reached; may be empty.
        address: String,
    },
    /// The answer that refuses an open; nothing follows the answer.
    Refused(Refusal),
    /// On a control stream: a message about a listener.
    Listen(ListenWord),
    /// On the exit's control stream: the addresses and DNS servers that the exit assigns to the
    /// entry.
    Assign(Assignment),
    /// A message kind of a later version.
    Unknown,
}

/// Decodes the kind of a message and the length of its body.
///
/// # Errors
/// The body is too long.
pub(super) fn header(bytes: [u8; HEADER_BYTES]) -> Result<(u8, usize), Malformed> {
    message::header(bytes, BODY_BYTES_MAX)
}

/// Decodes a message with the body `body`.
///
/// # Errors
/// [`Malformed`].
pub(super) fn decode(kind: u8, body: &[u8]) -> Result<Message, Malformed> {
    let mut fields = Fields::new(kind, body);
    Ok(match kind {
        HELLO => Message::Hello {
            version: fields.byte()?,
            streams_max: u32::from_be_bytes(fields.array()?),
            // Older versions omit the features.
            packets: fields.byte().is_ok_and(|features| features & PACKETS != 0),
        },
        GO_AWAY => Message::GoAway,
        OPEN => Message::Open {
            priority: Priority::from_code(fields.byte()?),
            target: fields.text()?.to_owned(),
        },
        OPENED => Message::Opened {
            address: fields.text()?.to_owned(),
        },
        REFUSED => Message::Refused(fields.refusal()?),
        LISTEN => Message::Listen(ListenWord::Listen {
            listen: listener(&mut fields)?,
            priority: Priority::from_code(fields.byte()?),
            address: listen_address(&mut fields)?,
        }),
        LISTENING => Message::Listen(ListenWord::Listening {
            listen: listener(&mut fields)?,
            address: fields.text()?.to_owned(),
        }),
        UNLISTEN => Message::Listen(ListenWord::Unlisten {
            listen: listener(&mut fields)?,
            code: u16::from_be_bytes(fields.array()?).into(),
            reason: fields.text()?.to_owned(),
        }),
        ASSIGN => Message::Assign(Assignment::decode(body).ok_or(Malformed::Assignment)?),
        _ => Message::Unknown,
    })
}

fn listener(fields: &mut Fields<'_>) -> Result<ListenId, Malformed> {
    let number = u32::from_be_bytes(fields.array()?);
    ListenId::from_number(number).ok_or(Malformed::Listener)
}

fn listen_address(fields: &mut Fields<'_>) -> Result<String, Malformed> {
    let address = fields.text()?;
    match address.len() <= LISTEN_ADDRESS_LENGTH_MAX {
        true => Ok(address.to_owned()),
        false => Err(Malformed::Listener),
    }
}

impl Message {
    /// Encodes the message. Texts that exceed their maximum length are cut.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        let kind = match self {
            Self::Hello {
                version,
                streams_max,
                packets,
            } => {
                body.push(*version);
                body.extend(streams_max.to_be_bytes());
                body.extend(packets.then_some(PACKETS));
                HELLO
            }
            Self::GoAway => GO_AWAY,
            Self::Open { priority, target } => {
                body.push(priority.code());
                push_text(&mut body, target, TARGET_LENGTH_MAX);
                OPEN
            }
            Self::Opened { address } => {
                push_text(&mut body, address, TARGET_LENGTH_MAX);
                OPENED
            }
            Self::Refused(refusal) => {
                push_refusal(&mut body, refusal);
                REFUSED
            }
            Self::Listen(word) => push_word(&mut body, word),
            Self::Assign(assignment) => {
                body.extend(assignment.encode());
                ASSIGN
            }
            // This kind is never sent.
            Self::Unknown => u8::MAX,
        };
        message::framed(kind, &body)
    }
}

/// Appends the fields of `word`, and returns its kind.
fn push_word(body: &mut Vec<u8>, word: &ListenWord) -> u8 {
    match word {
        ListenWord::Listen {
            listen,
            priority,
            address,
        } => {
            body.extend(listen.number().to_be_bytes());
            body.push(priority.code());
            push_text(body, address, LISTEN_ADDRESS_LENGTH_MAX);
            LISTEN
        }
        ListenWord::Listening { listen, address } => {
            body.extend(listen.number().to_be_bytes());
            push_text(body, address, ADDRESS_BYTES_MAX);
            LISTENING
        }
        ListenWord::Unlisten {
            listen,
            code,
            reason,
        } => {
            body.extend(listen.number().to_be_bytes());
            body.extend(u16::try_from(*code).unwrap_or(u16::MAX).to_be_bytes());
            push_text(body, reason, DESCRIPTION_BYTES_MAX);
            UNLISTEN
        }
    }
}

/// Panics if a message does not survive a round trip, or if it decodes without all of its bytes.
#[cfg(any(test, feature = "oracles"))]
pub(crate) fn oracle(input: &[u8]) {
    let Some((head, rest)) = input.split_first_chunk() else {
        return;
    };
    let Ok((kind, length)) = header(*head) else {
        return;
    };
    let Some(body) = rest.get(..length) else {
        return;
    };
    let Ok(message) = decode(kind, body) else {
        return;
    };
    if message == Message::Unknown {
        return;
    }
    let written = message.encode();
    let (head, rest) = written.split_at(HEADER_BYTES);
    // The round trip keeps codes, and cuts only a refusal's description.
    assert_eq!(head[0], kind);
    let again = decode(kind, rest);
    match (&message, again) {
        (Message::Open { target, .. } | Message::Opened { address: target }, Ok(again))
            if target.len() > TARGET_LENGTH_MAX =>
        {
            assert!(again != message);
        }
        (
            Message::Listen(ListenWord::Listening { address: text, .. })
            | Message::Listen(ListenWord::Unlisten { reason: text, .. }),
            Ok(again),
        ) if text.len() > DESCRIPTION_BYTES_MAX => assert!(again != message),
        (message, again) => assert_eq!(again.as_ref(), Ok(message)),
    }
    let needed = match message {
        Message::Hello { .. } => HELLO_BYTES,
        // An assignment may have any number of items, so a shorter body may also be valid.
        Message::Assign(_) => 0,
        _ => rest.len(),
    };
    for end in 0..needed {
        assert!(decode(kind, &rest[..end]).is_err(), "{kind} of {end} bytes");
    }
}

#[cfg(test)]
mod tests {
    use muxtunnel_proto::Reason;

    use super::*;

    fn read(bytes: &[u8]) -> Result<Message, Malformed> {
        let (head, body) = bytes.split_first_chunk().unwrap();
        let (kind, length) = header(*head)?;
        decode(kind, &body[..length])
    }

    fn one() -> ListenId {
        ListenId::from_number(1).unwrap()
    }

    #[test]
    fn messages_are_read_as_they_were_written() {
        for (message, bytes) in [
            (
                Message::Hello {
                    version: VERSION,
                    streams_max: 10_000,
                    packets: false,
                },
                &b"\x01\0\x05\x01\0\0\x27\x10"[..],
            ),
            (
                Message::Hello {
                    version: VERSION,
                    streams_max: 1,
                    packets: true,
                },
                b"\x01\0\x06\x01\0\0\0\x01\x01",
            ),
            (Message::GoAway, b"\x02\0\0"),
            (
                Message::Open {
                    priority: Priority::Bulk,
                    target: "tcp://web:80".to_owned(),
                },
                b"\x03\0\x0f\x02\0\x0ctcp://web:80",
            ),
            (
                Message::Opened {
                    address: "10.0.0.1:80".to_owned(),
                },
                b"\x04\0\x0d\0\x0b10.0.0.1:80",
            ),
            (
                Message::Refused(Refusal::new(Reason::NotAllowed, "no")),
                b"\x05\0\x06\0\x02\0\x02no",
            ),
            (
                Message::Listen(ListenWord::Listen {
                    listen: one(),
                    priority: Priority::Bulk,
                    address: "[::]:80".to_owned(),
                }),
                b"\x06\0\x0e\0\0\0\x01\x02\0\x07[::]:80",
            ),
            (
                Message::Listen(ListenWord::Listening {
                    listen: one(),
                    address: "[::]:80".to_owned(),
                }),
                b"\x07\0\x0d\0\0\0\x01\0\x07[::]:80",
            ),
            (
                Message::Listen(ListenWord::Unlisten {
                    listen: one(),
                    code: 2,
                    reason: "no".to_owned(),
                }),
                b"\x08\0\x0a\0\0\0\x01\0\x02\0\x02no",
            ),
            (
                Message::Assign(Assignment {
                    addresses: vec!["10.72.0.9".parse().unwrap()],
                    ..Assignment::default()
                }),
                b"\x09\0\x08\0\x01\0\x04\x0a\x48\0\x09",
            ),
        ] {
            assert_eq!(message.encode(), bytes);
            assert_eq!(read(bytes), Ok(message));
            oracle(bytes);
        }
    }

    #[test]
    fn what_a_later_version_says_is_passed_over_and_what_nobody_says_is_refused() {
        assert_eq!(read(b"\x63\0\x02??"), Ok(Message::Unknown));
        assert_eq!(read(b"\x02\0\x02??"), Ok(Message::GoAway));
        let hello = read(b"\x01\0\x07\x01\0\0\0\x01\xfe?").unwrap();
        assert!(matches!(hello, Message::Hello { packets: false, .. }));
        assert_eq!(read(b"\x03\0\x02\0\0"), Err(Malformed::TooShort(3)));
        assert_eq!(read(b"\x07\0\x06\0\0\0\0\0\0"), Err(Malformed::Listener));
        assert_eq!(read(b"\x04\0\x03\0\x01\xff"), Err(Malformed::Text));
        assert_eq!(read(b"\x09\0\x01\0"), Err(Malformed::Assignment));
        let long = Malformed::TooLong {
            length: BODY_BYTES_MAX + 1,
            most: BODY_BYTES_MAX,
        };
        assert_eq!(header([3, 8, 1]), Err(long));
        assert_eq!(header([3, 8, 0]), Ok((3, BODY_BYTES_MAX)));
    }

    #[test]
    fn words_are_cut_between_characters() {
        let words = "ä".repeat(DESCRIPTION_BYTES_MAX);
        let refusal = Refusal::new(Reason::General, words);
        let written = Message::Refused(refusal).encode();
        let Ok(Message::Refused(read)) = read(&written) else {
            panic!("{written:?}");
        };
        assert_eq!(read.description, "ä".repeat(DESCRIPTION_BYTES_MAX / 2));
    }
}
