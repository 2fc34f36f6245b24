//! Messages of a kind, a length and as many bytes: the form of what QUIC's control streams and the listeners of HTTP/2 send.
//!
//! A later version may add fields behind the known ones. What the kinds are is each protocol's.

use muxtunnel_proto::{LISTEN_ADDRESS_LENGTH_MAX, Reason, Refusal};

/// The kind and the length.
pub(crate) const HEADER_BYTES: usize = 3;
/// Of the description of a refusal that is sent.
pub(crate) const DESCRIPTION_BYTES_MAX: usize = 256;

/// A peer must not send this.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Malformed {
    #[error("a message of {length} bytes, at most {most} are taken")]
    TooLong { length: usize, most: usize },
    #[error("a message of kind {0} ends too early")]
    TooShort(u8),
    #[error("a text that is not UTF-8")]
    Text,
    #[error("malformed addresses or domains of a network")]
    Assignment,
    #[error(
        "a listener without a number, or an address of more than {LISTEN_ADDRESS_LENGTH_MAX} bytes for one"
    )]
    Listener,
}

/// The kind of a message, and how many bytes follow.
///
/// # Errors
/// More than `most`.
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

/// A message as it is sent; `body` has at most 65,535 bytes.
pub(crate) fn framed(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind];
    bytes.extend(length(body).to_be_bytes());
    bytes.extend(body);
    bytes
}

/// Adds `text`, at most `most` bytes of it.
pub(crate) fn push_text(body: &mut Vec<u8>, text: &str, most: usize) {
    let text = &text[..text.floor_char_boundary(most)];
    body.extend(length(text.as_bytes()).to_be_bytes());
    body.extend(text.as_bytes());
}

/// Adds the class and the description of `refusal`, which is cut at [`DESCRIPTION_BYTES_MAX`].
pub(crate) fn push_refusal(body: &mut Vec<u8>, refusal: &Refusal) {
    let class = u16::try_from(refusal.reason.code()).unwrap_or(u16::MAX);
    body.extend(class.to_be_bytes());
    push_text(body, &refusal.description, DESCRIPTION_BYTES_MAX);
}

fn length(bytes: &[u8]) -> u16 {
    u16::try_from(bytes.len()).unwrap_or(u16::MAX)
}

/// The fields of a message that have not been read.
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

    /// The description is cut at [`DESCRIPTION_BYTES_MAX`].
    pub(crate) fn refusal(&mut self) -> Result<Refusal, Malformed> {
        let reason = Reason::from_code(u16::from_be_bytes(self.array()?).into());
        let text = self.text()?;
        let end = text.floor_char_boundary(DESCRIPTION_BYTES_MAX);
        Ok(Refusal::new(reason, &text[..end]))
    }
}
