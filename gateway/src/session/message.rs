//! Messages that consist of a kind, a length and a body. QUIC's control streams and the listeners
//! of HTTP/2 use these messages.
//!
//! A later version may append fields to the known fields. Each protocol defines its own kinds.

use muxtunnel_proto::{LISTEN_ADDRESS_LENGTH_MAX, Reason, Refusal};

/// Length of the kind and the length field, in bytes.
pub(crate) const HEADER_BYTES: usize = 3;
/// Maximum length of the description of a sent refusal, in bytes.
pub(crate) const DESCRIPTION_BYTES_MAX: usize = 256;

/// A message that a peer must not send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Malformed {
    #[error("a message of {length} bytes exceeds the maximum of {most}")]
    TooLong { length: usize, most: usize },
    #[error("a message of kind {0} ends too early")]
    TooShort(u8),
    #[error("a text in a message is not UTF-8")]
    Text,
    #[error("ASSIGN has malformed or too many addresses or domains")]
    Assignment,
    #[error(
        "a message names a listener without a number, or with an address of more than {LISTEN_ADDRESS_LENGTH_MAX} bytes"
    )]
    Listener,
}

/// Decodes the kind of a message and the number of bytes that follow.
///
/// # Errors
/// The length exceeds `most`.
pub(crate) fn header(
    [kind, high, low]: [u8; HEADER_BYTES],
    most: usize,
) -> Result<(u8, usize), Malformed> {
    let length = usize::from(u16::from_be_bytes([high, low]));
    match length <= most {
        true => Ok((kind, length)),
        false => Err(Malformed::TooLong { length, most }),
    }
}

/// Encodes a message; `body` has at most 65,535 bytes.
pub(crate) fn framed(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind];
    bytes.extend(length(body).to_be_bytes());
    bytes.extend(body);
    bytes
}

/// Appends `text`, cut at `most` bytes.
pub(crate) fn push_text(body: &mut Vec<u8>, text: &str, most: usize) {
    let text = &text[..text.floor_char_boundary(most)];
    body.extend(length(text.as_bytes()).to_be_bytes());
    body.extend(text.as_bytes());
}

/// Appends the class and the description of `refusal`. The description is cut at
/// [`DESCRIPTION_BYTES_MAX`].
pub(crate) fn push_refusal(body: &mut Vec<u8>, refusal: &Refusal) {
    let class = u16::try_from(refusal.reason.code()).unwrap_or(u16::MAX);
    body.extend(class.to_be_bytes());
    push_text(body, &refusal.description, DESCRIPTION_BYTES_MAX);
}

fn length(bytes: &[u8]) -> u16 {
    u16::try_from(bytes.len()).unwrap_or(u16::MAX)
}

/// The unread fields of a message.
pub(crate) struct Fields<'a> {
    kind: u8,
    left: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(crate) const fn new(kind: u8, body: &'a [u8]) -> Self {
        Self { kind, left: body }
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let split = self.left.split_first_chunk();
        let (first, rest) = split.ok_or(Malformed::TooShort(self.kind))?;
        self.left = rest;
        Ok(*first)
    }

    pub(crate) fn byte(&mut self) -> Result<u8, Malformed> {
        let [byte] = self.array()?;
        Ok(byte)
    }

    pub(crate) fn text(&mut self) -> Result<&'a str, Malformed> {
        let length = u16::from_be_bytes(self.array()?).into();
        let split = self.left.split_at_checked(length);
        let (text, rest) = split.ok_or(Malformed::TooShort(self.kind))?;
        self.left = rest;
        std::str::from_utf8(text).map_err(|_| Malformed::Text)
    }

    /// Cuts the description at [`DESCRIPTION_BYTES_MAX`].
    pub(crate) fn refusal(&mut self) -> Result<Refusal, Malformed> {
        let reason = Reason::from_code(u16::from_be_bytes(self.array()?).into());
        let text = self.text()?;
        let end = text.floor_char_boundary(DESCRIPTION_BYTES_MAX);
        Ok(Refusal::new(reason, &text[..end]))
    }
}
