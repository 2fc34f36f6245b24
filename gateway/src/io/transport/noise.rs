//! Noise (revision 34) with static keys: 25519, AES-256-GCM, BLAKE2s.
//!
//! The dialler first sends [`PREAMBLE`] and one byte for the pattern; both sides bind these bytes
//! into the handshake. If the dialler permits exactly one peer key, the pattern is IK: only that
//! peer can read the dialler's key. Otherwise the pattern is XX. With a shared secret the patterns
//! are IKpsk2 and XXpsk3.
//!
//! Messages follow, each after its length in 2 bytes, big endian. Messages of the handshake have an
//! empty payload. Later messages carry bytes, and an empty message is the end. Each direction
//! changes its key after [`REKEY_BYTES`] (section 11.3).
//!
//! An attacker can replay the first message of IK, because the responder cannot detect a copy. So
//! the initiator sends one empty message sealed with the new keys. The responder waits for this
//! message before it accepts the connection.

use std::fmt;
use std::io::{Error, ErrorKind, Result};

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use muxtunnel_gateway_config::{self as config, PublicKey, decode_key};
use snow::{Builder, HandshakeState};
use zeroize::Zeroizing;

use super::sealed::{Gather, Next, Opened, Records, Sealed};
use super::{Proof, Side, Standing, Transport, invalid};
use crate::base::files::{Unusable, read_text};
use crate::io::duplex;

/// The first bytes of the dialling side; the last of them is the version. [`IK`] or [`XX`] follows.
const PREAMBLE: [u8; 3] = *b"MN\x02";
const IK: u8 = 1;
const XX: u8 = 2;

const LENGTH_BYTES: usize = 2;
const TAG_BYTES: usize = 16;
const KEY_BYTES: usize = 32;
/// Overhead of a message in bytes: its length field and its tag.
const OVERHEAD_BYTES: usize = LENGTH_BYTES + TAG_BYTES;
/// Maximum number of plain bytes in a message that this side sends. This side accepts up to 65,519
/// bytes.
const PLAIN_BYTES_MAX: usize = 32 << 10;
/// An upper bound for the size of a message of the IK or XX handshake.
const HANDSHAKE_MESSAGE_MAX: usize = 256;
/// Number of plain bytes that are sealed with one key. AES-GCM permits far more; this limit bounds
/// the bytes that a leaked key decrypts.
const REKEY_BYTES: u64 = 1 << 30;

/// The keys of this side, and the permitted keys of the peer.
pub(crate) struct Noise {
    private_key: Zeroizing<[u8; 32]>,
    psk: Option<Zeroizing<[u8; 32]>>,
    peers: Vec<PublicKey>,
}

impl fmt::Debug for Noise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Noise")
            .field("peers", &self.peers)
            .finish_non_exhaustive()
    }
}

impl Noise {
    /// Reads and checks the files.
    ///
    /// # Errors
    /// [`Unusable`]: a file cannot be used.
    pub(crate) fn load(config: &config::Noise) -> std::result::Result<Self, Unusable> {
        let key = |path| decode_key(&read_text(path)?).map_err(|error| Unusable::new(path, error));
        Ok(Self {
            private_key: key(&config.private_key)?,
            psk: config.psk.as_deref().map(key).transpose()?,
            peers: config.peers.clone(),
        })
    }

    /// Performs the handshake over `below`.
    ///
    /// # Errors
    /// The peer has no permitted key, or does not use Noise.
    pub(crate) async fn secure(
        &self,
        below: Box<dyn Transport>,
        side: Side,
    ) -> Result<Box<dyn Transport>> {
        let (mut state, pattern, peer) = match side {
            Side::Dials => self.dial(&*below).await?,
            Side::Accepts => self.accept(&*below).await?,
        };
        let mut records = NoiseRecords::new(&mut state, side)?;
        // With XX, the third message of the handshake has already confirmed the keys.
        match side {
            Side::Dials if pattern == IK => records.confirm(&*below).await?,
            Side::Accepts if pattern == IK => records.await_confirmation(&*below).await?,
            Side::Dials | Side::Accepts => {}
        }
        let proof = Some(Proof::of(peer.to_string()));
        Ok(Sealed::boxed(below, records, proof, &[], Vec::new()))
    }

    /// Whether the key of `proof` is still permitted.
    pub(crate) fn standing(&self, proof: &Proof) -> Standing {
        let key = &proof.identity;
        match self.peers.iter().any(|peer| peer.to_string() == *key) {
            true => Standing::Good,
            false => Standing::Revoked(format!(
                "the peer's public key {key} is no longer in security.peers"
            )),
        }
    }

    async fn dial(&self, below: &dyn Transport) -> Result<(HandshakeState, u8, PublicKey)> {
        let (pattern, known) = match &self.peers[..] {
            [peer] => (IK, Some(peer)),
            _ => (XX, None),
        };
        let [a, b, c] = PREAMBLE;
        let prologue = [a, b, c, pattern];
        let builder = self.builder(pattern, &prologue)?;
        let mut state = match known {
            Some(peer) => builder.remote_public_key(&peer.0).map_err(invalid)?,
            None => builder,
        }
        .build_initiator()
        .map_err(invalid)?;
        let first = message(&mut state)?;
        duplex::write_all(below, &[&prologue[..], &first].concat()).await?;
        Message::read(below).await?.judge(&mut state)?;
        let peer = self.judge(&state)?;
        if !state.is_handshake_finished() {
            let last = message(&mut state)?;
            duplex::write_all(below, &last).await?;
        }
        Ok((state, pattern, peer))
    }

    async fn accept(&self, below: &dyn Transport) -> Result<(HandshakeState, u8, PublicKey)> {
        let mut prologue = [0; PREAMBLE.len() + 1];
        read_exact(below, &mut prologue).await?;
        let [a, b, version, pattern] = prologue;
        if [a, b] != PREAMBLE[..2] || ![IK, XX].contains(&pattern) {
            return Err(invalid("the peer does not use muxgate's Noise handshake"));
        }
        if version != PREAMBLE[2] {
            let known = PREAMBLE[2];
            return Err(invalid(format!(
                "the peer sent version {version} of the Noise handshake, this gateway expects version {known}: \
                 run the same version of muxgate at both ends"
            )));
        }
        // The responder computes nothing for a peer before the peer's first complete message.
        let first = Message::read(below).await?;
        let builder = self.builder(pattern, &prologue)?;
        let mut state = builder.build_responder().map_err(invalid)?;
        first.judge(&mut state)?;
        // With IK, the first message has the peer's key. Other peers get no answer.
        if pattern == IK {
            self.judge(&state)?;
        }
        let answer = message(&mut state)?;
        duplex::write_all(below, &answer).await?;
        if pattern == XX {
            Message::read(below).await?.judge(&mut state)?;
        }
        let peer = self.judge(&state)?;
        Ok((state, pattern, peer))
    }

    fn builder<'a>(&'a self, pattern: u8, prologue: &'a [u8]) -> Result<Builder<'a>> {
        let (name, place) = match pattern {
            IK => ("IK", 2),
            _ => ("XX", 3),
        };
        let modifier = self
            .psk
            .as_ref()
            .map(|_| format!("psk{place}"))
            .unwrap_or_default();
        let name = format!("Noise_{name}{modifier}_25519_AESGCM_BLAKE2s");
        let builder = Builder::new(name.parse().map_err(invalid)?);
        let mut builder = builder
            .local_private_key(&*self.private_key)
            .and_then(|builder| builder.prologue(prologue));
        if let Some(psk) = &self.psk {
            builder = builder.and_then(|builder| builder.psk(place, psk));
        }
        builder.map_err(invalid)
    }

    /// The peer's public key.
    ///
    /// # Errors
    /// The key is not permitted.
    fn judge(&self, state: &HandshakeState) -> Result<PublicKey> {
        let key = state.get_remote_static().unwrap_or_default();
        let peer = self.peers.iter().find(|peer| peer.0 == key);
        peer.copied().ok_or_else(|| {
            let text = match <[u8; 32]>::try_from(key).map(PublicKey) {
                Ok(key) => format!("the peer's public key {key} is not in security.peers"),
                Err(_) => "the peer has no public key".to_owned(),
            };
            Error::new(ErrorKind::PermissionDenied, text)
        })
    }
}

/// Writes the next message of a handshake, with its length in front.
fn message(state: &mut HandshakeState) -> Result<Vec<u8>> {
    let mut bytes = [0; LENGTH_BYTES + HANDSHAKE_MESSAGE_MAX];
    let length = state
        .write_message(&[], &mut bytes[LENGTH_BYTES..])
        .map_err(invalid)?;
    bytes[..LENGTH_BYTES].copy_from_slice(&(length as u16).to_be_bytes());
    Ok(bytes[..LENGTH_BYTES + length].to_vec())
}

/// The peer's next message of a handshake.
struct Message {
    bytes: [u8; HANDSHAKE_MESSAGE_MAX],
    length: usize,
}

impl Message {
    async fn read(below: &dyn Transport) -> Result<Self> {
        let mut length = [0; LENGTH_BYTES];
        read_exact(below, &mut length).await?;
        let length = usize::from(u16::from_be_bytes(length));
        if length > HANDSHAKE_MESSAGE_MAX {
            return Err(invalid(format!(
                "a message of the Noise handshake has {length} bytes, more than {HANDSHAKE_MESSAGE_MAX}"
            )));
        }
        let mut bytes = [0; HANDSHAKE_MESSAGE_MAX];
        read_exact(below, &mut bytes[..length]).await?;
        Ok(Self { bytes, length })
    }

    fn judge(&self, state: &mut HandshakeState) -> Result<()> {
        state
            .read_message(&self.bytes[..self.length], &mut [0; HANDSHAKE_MESSAGE_MAX])
            .map_err(|_| handshake_failed())?;
        Ok(())
    }
}

fn handshake_failed() -> Error {
    let text = "the Noise handshake failed: do both ends have each other's key, and the same psk?";
    Error::new(ErrorKind::PermissionDenied, text)
}

async fn read_exact(below: &dyn Transport, bytes: &mut [u8]) -> Result<()> {
    duplex::read_exact(below, bytes)
        .await
        .map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => super::closed_early(),
            _ => error,
        })
}

/// The key of one direction (section 5.1: CipherState).
struct Key {
    key: LessSafeKey,
    /// Number of messages so far. A change of the key does not reset this number.
    nonce: u64,
    /// Number of plain bytes since the last change of the key.
    bytes: u64,
}

impl Key {
    fn new(key: &[u8]) -> Result<Self> {
        let key = UnboundKey::new(&AES_256_GCM, key)
            .map_err(|_| invalid("a key of the Noise connection is unusable"))?;
        Ok(Self {
            key: LessSafeKey::new(key),
            nonce: 0,
            bytes: 0,
        })
    }

    /// The nonce of the next message (section 12.4): 32 zero bits, then the message's number, big
    /// endian.
    fn nonce(&mut self) -> Result<Nonce> {
        let number = self.nonce;
        // The last number is reserved for the change of keys.
        self.nonce = number
            .checked_add(1)
            .ok_or_else(|| invalid("the message numbers of the Noise connection are used up"))?;
        Ok(nonce(number))
    }

    /// Counts plain bytes that were sealed or opened. Changes the key when the limit is reached.
    fn count(&mut self, bytes: usize) -> Result<()> {
        self.bytes += bytes as u64;
        if self.bytes < REKEY_BYTES {
            return Ok(());
        }
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        let _tag = self
            .key
            .seal_in_place_separate_tag(nonce(u64::MAX), Aad::empty(), &mut *key)
            .map_err(|_| invalid("the key of the Noise connection cannot be changed"))?;
        *self = Self {
            nonce: self.nonce,
            ..Self::new(&*key)?
        };
        Ok(())
    }
}

fn nonce(number: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[4..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

/// Seals and opens the messages of one connection.
struct NoiseRecords {
    sealing: Key,
    opening: Key,
}

impl fmt::Debug for NoiseRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NoiseRecords")
            .field("sealed", &self.sealing.nonce)
            .field("opened", &self.opening.nonce)
            .finish_non_exhaustive()
    }
}

impl NoiseRecords {
    /// Creates the records with the keys of the handshake (section 5.2: Split).
    fn new(state: &mut HandshakeState, side: Side) -> Result<Self> {
        let (initiator, responder) = state.dangerously_get_raw_split();
        let (initiator, responder) = (Zeroizing::new(initiator), Zeroizing::new(responder));
        let (sealing, opening) = match side {
            Side::Dials => (initiator, responder),
            Side::Accepts => (responder, initiator),
        };
        Ok(Self {
            sealing: Key::new(&*sealing)?,
            opening: Key::new(&*opening)?,
        })
    }

    /// Sends the first message of this direction. The message is empty, and only an end that has
    /// the keys can seal it.
    async fn confirm(&mut self, below: &dyn Transport) -> Result<()> {
        let mut sealed = [0; OVERHEAD_BYTES];
        self.write(Some(&[]), 0, &mut sealed)?;
        duplex::write_all(below, &sealed).await
    }

    /// Waits for the message that the peer sends in [`Self::confirm`].
    async fn await_confirmation(&mut self, below: &dyn Transport) -> Result<()> {
        let mut sealed = [0; OVERHEAD_BYTES];
        read_exact(below, &mut sealed).await?;
        match self.open(&sealed, &mut []) {
            Ok(Opened::End) => Ok(()),
            _ => Err(handshake_failed()),
        }
    }

    /// Seals `plain` as a message in `out`. If `plain` is `None`, the `length` plain bytes are
    /// already in place.
    fn write(&mut self, plain: Option<&[u8]>, length: usize, out: &mut [u8]) -> Result<usize> {
        let end = OVERHEAD_BYTES + length;
        let (header, rest) = out[..end].split_at_mut(LENGTH_BYTES);
        header.copy_from_slice(&((length + TAG_BYTES) as u16).to_be_bytes());
        let (body, tag) = rest.split_at_mut(length);
        let (nonce, aad) = (self.sealing.nonce()?, Aad::empty());
        let key = &self.sealing.key;
        match plain {
            Some(plain) => key.seal_out_of_place_scatter(nonce, aad, plain, body, &[], tag),
            None => key.seal_in_place_scatter(nonce, aad, body, &[], tag),
        }
        .map_err(|_| invalid("a Noise message cannot be sealed"))?;
        self.sealing.count(length)?;
        Ok(end)
    }
}

impl Records for NoiseRecords {
    fn seal(&mut self, plain: &mut Gather<'_>, out: &mut [u8]) -> Result<usize> {
        let mut written = 0;
        while out.len() - written >= OVERHEAD_BYTES + PLAIN_BYTES_MAX {
            let out = &mut out[written..];
            let (content, length) = match plain.next(PLAIN_BYTES_MAX) {
                Next::End => break,
                Next::Whole(content) => (Some(content), content.len()),
                Next::Parts => (
                    None,
                    plain.copy(&mut out[LENGTH_BYTES..][..PLAIN_BYTES_MAX]),
                ),
            };
            written += self.write(content, length, out)?;
        }
        Ok(written)
    }

    fn open(&mut self, sealed: &[u8], plain: &mut [u8]) -> Result<Opened> {
        let Some((header, rest)) = sealed.split_first_chunk::<LENGTH_BYTES>() else {
            return Ok(Opened::Incomplete);
        };
        let length = usize::from(u16::from_be_bytes(*header));
        let Some(needed) = length.checked_sub(TAG_BYTES) else {
            return Err(invalid(format!(
                "a Noise message has {length} bytes, fewer than its tag of {TAG_BYTES}"
            )));
        };
        if rest.len() < length {
            return Ok(Opened::Incomplete);
        }
        let Some(opened) = plain.get_mut(..needed) else {
            return Ok(Opened::NoRoom { needed });
        };
        let (content, tag) = rest[..length].split_at(needed);
        let nonce = self.opening.nonce()?;
        self.opening
            .key
            .open_separate_gather(nonce, Aad::empty(), content, tag, opened)
            .map_err(|_| invalid("a Noise message was modified in transit"))?;
        if needed == 0 {
            return Ok(Opened::End);
        }
        self.opening.count(needed)?;
        Ok(Opened::Record {
            consumed: LENGTH_BYTES + length,
            length: needed,
        })
    }

    fn close(&mut self, out: &mut [u8]) -> Result<usize> {
        self.write(Some(&[]), 0, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records() -> (NoiseRecords, NoiseRecords) {
        let builder = || Builder::new("Noise_NN_25519_AESGCM_BLAKE2s".parse().unwrap());
        let mut near = builder().build_initiator().unwrap();
        let mut far = builder().build_responder().unwrap();
        let first = message(&mut near).unwrap();
        far.read_message(&first[LENGTH_BYTES..], &mut [0; 256])
            .unwrap();
        let second = message(&mut far).unwrap();
        near.read_message(&second[LENGTH_BYTES..], &mut [0; 256])
            .unwrap();
        (
            NoiseRecords::new(&mut near, Side::Dials).unwrap(),
            NoiseRecords::new(&mut far, Side::Accepts).unwrap(),
        )
    }

    fn carries(from: &mut NoiseRecords, to: &mut NoiseRecords, plain: &[u8]) {
        use std::io::IoSlice;
        let (first, rest) = plain.split_at(plain.len() / 3);
        let slices = [IoSlice::new(first), IoSlice::new(&[]), IoSlice::new(rest)];
        let mut sealed = vec![0; 1 << 20];
        let mut gather = Gather::new(&slices);
        let length = from.seal(&mut gather, &mut sealed).unwrap();
        let (mut all, mut at, mut room) = (Vec::new(), 0, vec![0; 1 << 16]);
        while let Opened::Record { consumed, length } =
            to.open(&sealed[at..length], &mut room).unwrap()
        {
            all.extend_from_slice(&room[..length]);
            at += consumed;
        }
        assert!(all == plain);
    }

    #[test]
    fn keys_change_after_so_many_bytes_at_both_ends() {
        let (mut near, mut far) = records();
        carries(&mut near, &mut far, &[7; 200_000]);
        near.sealing.bytes = REKEY_BYTES - 1;
        carries(&mut near, &mut far, b"the last one");
        // The peer has counted fewer bytes and still has the old key.
        let mut sealed = [0; 100];
        near.write(Some(b"unreadable"), 10, &mut sealed).unwrap();
        assert!(far.open(&sealed, &mut [0; 100]).is_err());
        let (mut near, mut far) = records();
        (near.sealing.bytes, far.opening.bytes) = (REKEY_BYTES - 1, REKEY_BYTES - 1);
        carries(&mut near, &mut far, b"the last one");
        carries(&mut near, &mut far, b"with another key");
        carries(&mut far, &mut near, b"which is of one direction");
    }

    #[test]
    fn an_empty_message_is_the_end() {
        let (mut near, mut far) = records();
        let mut sealed = [0; 100];
        let length = near.close(&mut sealed).unwrap();
        let end = far.open(&sealed[..length], &mut []).unwrap();
        assert_eq!(end, Opened::End);
    }
}
