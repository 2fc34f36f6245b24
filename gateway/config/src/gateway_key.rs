//! Public keys of gateways (Ed25519, RFC 8032) as text: bech32m (BIP 350), with the gateway's role
//! in the prefix.
//!
//! The checksum covers the prefix, so the text of an entry's key never reads as that of an exit. A
//! text has at most one key, and a key has one text for each role. The payload begins with the type
//! of the key, so that other types can follow.

use std::fmt;
use std::str::FromStr;

use bech32::primitives::decode::CheckedHrpstring;
use bech32::{Bech32m, Hrp};

use crate::Role;
use crate::text::by_text;

/// Length of the text of a key, in characters.
pub const KEY_TEXT_LENGTH: usize = 63;
/// Length of a key, in bytes.
pub const KEY_BYTES: usize = 32;
/// The type of an Ed25519 key in the payload.
const ED25519_TYPE: u8 = 1;
/// The encodings of the points of small order, without the sign of x in the last bit: y is 0, 1, -1,
/// or one of the two y of order 8. 0 and 1 have a second encoding each, p and p + 1.
const SMALL_ORDERS: [[u8; KEY_BYTES]; 7] = [
    [0; KEY_BYTES],
    y(1, 0),
    y(0xec, 0xff),
    y(0xed, 0xff),
    y(0xee, 0xff),
    [
        0x26, 0xe8, 0x95, 0x8f, 0xc2, 0xb2, 0x27, 0xb0, 0x45, 0xc3, 0xf4, 0x89, 0xf2, 0xef, 0x98,
        0xf0, 0xd5, 0xdf, 0xac, 0x05, 0xd3, 0xc6, 0x33, 0x39, 0xb1, 0x38, 0x02, 0x88, 0x6d, 0x53,
        0xfc, 0x05,
    ],
    [
        0xc7, 0x17, 0x6a, 0x70, 0x3d, 0x4d, 0xd8, 0x4f, 0xba, 0x3c, 0x0b, 0x76, 0x0d, 0x10, 0x67,
        0x0f, 0x2a, 0x20, 0x53, 0xfa, 0x2c, 0x39, 0xcc, 0xc6, 0x4e, 0xc7, 0xfd, 0x77, 0x92, 0xac,
        0x03, 0x7a,
    ],
];

/// The bytes `first`, 30 times `others`, and the lower seven bits of `others`.
const fn y(first: u8, others: u8) -> [u8; KEY_BYTES] {
    let mut bytes = [others; KEY_BYTES];
    bytes[0] = first;
    bytes[KEY_BYTES - 1] = others & 0x7f;
    bytes
}

impl Role {
    /// The part of the text of a key before the separator `1`.
    #[must_use]
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::Entry => "mte",
            Self::Exit => "mtx",
            Self::Rendezvous => "mtr",
        }
    }

    /// The role with its article, as in an error text.
    #[must_use]
    pub const fn noun(self) -> &'static str {
        match self {
            Self::Entry => "an entry",
            Self::Exit => "an exit",
            Self::Rendezvous => "a rendezvous",
        }
    }
}

/// The public key of a gateway. No value of this type has a point of small order, for which a
/// signature needs no private key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct GatewayKey {
    role: Role,
    bytes: [u8; KEY_BYTES],
}

/// Why a text or bytes are not the key of a gateway. The text is not repeated, because it may be a
/// private key that was pasted by mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GatewayKeyError {
    /// The text does not have the form of a key.
    #[error(
        "not the public key of a gateway: expected {KEY_TEXT_LENGTH} lower-case characters that begin with mte1 (an \
         entry), mtx1 (an exit) or mtr1 (a rendezvous), as `muxgate keygen` prints them"
    )]
    Form,
    /// The text has the form of a key, and its checksum does not match.
    #[error("the checksum is wrong: a character is missing or wrong, so copy the whole text again")]
    Checksum,
    /// The key is not an Ed25519 key.
    #[error(
        "keys of type {0} are not known, only Ed25519 (type 1): use a newer version of muxgate"
    )]
    Type(u8),
    /// The key is a point of small order.
    #[error(
        "a point of small order, to which anyone can sign without a private key: create a key with `muxgate keygen`"
    )]
    SmallOrder,
    /// The key belongs to a gateway of another role.
    #[error("the key of {} ({}1...), but {} ({}1...) is expected here", found.noun(), found.prefix(), expected.noun(), expected.prefix())]
    Role {
        /// The role in the text.
        found: Role,
        /// The role that the field takes.
        expected: Role,
    },
}

impl GatewayKey {
    /// The key with these bytes.
    ///
    /// # Errors
    /// [`GatewayKeyError::SmallOrder`].
    pub fn new(role: Role, bytes: [u8; KEY_BYTES]) -> Result<Self, GatewayKeyError> {
        match is_of_small_order(&bytes) {
            true => Err(GatewayKeyError::SmallOrder),
            false => Ok(Self { role, bytes }),
        }
    }

    /// Parses the text of a key of `expected`.
    ///
    /// # Errors
    /// [`GatewayKeyError`].
    pub fn of_role(text: &str, expected: Role) -> Result<Self, GatewayKeyError> {
        text.parse::<Self>()?.has_role(expected)
    }

    /// The key, if it belongs to a gateway of role `expected`.
    ///
    /// # Errors
    /// [`GatewayKeyError::Role`].
    pub fn has_role(self, expected: Role) -> Result<Self, GatewayKeyError> {
        match self.role {
            found if found == expected => Ok(self),
            found => Err(GatewayKeyError::Role { found, expected }),
        }
    }

    /// The role of the gateway.
    #[must_use]
    pub const fn role(&self) -> Role {
        self.role
    }

    /// The bytes of the key, which do not depend on the role.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.bytes
    }
}

/// The text of a key with any bytes, for example of the key that an unknown peer presents.
#[must_use]
pub fn key_text(role: Role, bytes: &[u8; KEY_BYTES]) -> String {
    let mut payload = [ED25519_TYPE; 1 + KEY_BYTES];
    payload[1..].copy_from_slice(bytes);
    // The prefix and the length are constant and valid, so encoding does not fail.
    bech32::encode::<Bech32m>(Hrp::parse_unchecked(role.prefix()), &payload).unwrap_or_default()
}

/// The role of the key that `text` begins like.
pub(crate) fn role_of(text: &str) -> Option<Role> {
    let begins = |role: &Role| {
        let rest = text.strip_prefix(role.prefix());
        rest.is_some_and(|rest| rest.starts_with('1'))
    };
    Role::ALL.into_iter().find(begins)
}

/// Whether anyone can sign for the key. A table answers in nanoseconds, so a long list of keys costs
/// its reader nothing.
fn is_of_small_order(bytes: &[u8; KEY_BYTES]) -> bool {
    let mut y = *bytes;
    y[KEY_BYTES - 1] &= 0x7f;
    SMALL_ORDERS.contains(&y)
}

impl FromStr for GatewayKey {
    type Err = GatewayKeyError;

    fn from_str(text: &str) -> Result<Self, GatewayKeyError> {
        let role = role_of(text).filter(|_| text.len() == KEY_TEXT_LENGTH && text.is_ascii());
        let role = role.ok_or(GatewayKeyError::Form)?;
        // `bech32::decode` would also accept the checksum of bech32, which is weaker.
        let checked = CheckedHrpstring::new::<Bech32m>(text);
        let checked = checked.map_err(|_| GatewayKeyError::Checksum)?;
        let payload: Vec<u8> = checked.byte_iter().collect();
        let (kind, bytes) = match payload.split_first() {
            Some((kind, bytes)) => (*kind, bytes.try_into().map_err(|_| GatewayKeyError::Form)?),
            None => return Err(GatewayKeyError::Form),
        };
        if kind != ED25519_TYPE {
            return Err(GatewayKeyError::Type(kind));
        }
        // The last character has a bit that belongs to no byte. The bit must be 0, so that a key has
        // one text.
        if key_text(role, &bytes) != text {
            return Err(GatewayKeyError::Form);
        }
        Self::new(role, bytes)
    }
}

by_text!(GatewayKey);

impl fmt::Display for GatewayKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&key_text(self.role, &self.bytes))
    }
}

#[cfg(test)]
mod tests;
