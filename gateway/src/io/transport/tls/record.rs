//! Seals and opens records of TLS 1.3 (RFC 8446, section 5). If a record takes plain bytes from
//! several slices, the bytes are copied once before they are sealed. Otherwise they are not copied.
//!
//! The keys come from rustls, which also derives the next keys (section 7.2): on the peer's
//! request, or after [`RECORDS_MAX`] records. Session tickets are ignored. Any other record that is
//! neither payload, an alert nor a key update ends the carrier.

use std::fmt;
use std::io::Result;

use aws_lc_rs::aead::{
    self, AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, UnboundKey,
};
use rustls::client::ClientConnectionData;
use rustls::crypto::cipher::{Iv, Nonce};
use rustls::kernel::KernelConnection;
use rustls::server::ServerConnectionData;
use rustls::{ConnectionTrafficSecrets, Error, ExtractedSecrets};

use super::own_keys::Presented;
use crate::io::key_refusal::KeyRefusal;
use crate::io::transport::invalid;
use crate::io::transport::sealed::{Gather, Next, Opened, Records};

const HEADER_BYTES: usize = 5;
const TAG_BYTES: usize = 16;
/// Maximum payload of a record (section 5.1), and maximum size of a sealed record (section 5.2).
const PLAIN_BYTES_MAX: usize = 1 << 14;
const SEALED_BYTES_MAX: usize = PLAIN_BYTES_MAX + 256;
/// Overhead of a record in bytes: header, content type and tag.
const OVERHEAD_BYTES: usize = HEADER_BYTES + 1 + TAG_BYTES;
/// Number of records that are sealed with one key. AES-GCM permits 2^24.5 full records (section
/// 5.5).
const RECORDS_MAX: u64 = 1 << 24;

const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const APPLICATION_DATA: u8 = 23;
const CLOSE_NOTIFY: [u8; 2] = [1, 0];
const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;
/// A key update that requests no key update of the peer.
const KEY_UPDATE_MESSAGE: [u8; 5] = [KEY_UPDATE, 0, 0, 1, 0];

/// Derives the next keys.
pub(super) trait KeySchedule: Send {
    fn next_to_seal(&mut self) -> std::result::Result<ConnectionTrafficSecrets, Error>;
    fn next_to_open(&mut self) -> std::result::Result<ConnectionTrafficSecrets, Error>;
}

macro_rules! key_schedule {
    ($data:ty) => {
        impl KeySchedule for KernelConnection<$data> {
            fn next_to_seal(&mut self) -> std::result::Result<ConnectionTrafficSecrets, Error> {
                self.update_tx_secret().map(|(_, secrets)| secrets)
            }

            fn next_to_open(&mut self) -> std::result::Result<ConnectionTrafficSecrets, Error> {
                self.update_rx_secret().map(|(_, secrets)| secrets)
            }
        }
    };
}

key_schedule!(ClientConnectionData);
key_schedule!(ServerConnectionData);

/// The key of one direction.
struct Key {
    key: LessSafeKey,
    iv: Iv,
    /// Number of records under this key so far.
    sequence: u64,
}

impl Key {
    fn new(sequence: u64, secrets: ConnectionTrafficSecrets) -> std::result::Result<Self, Error> {
        let (algorithm, key, iv) = match secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (&CHACHA20_POLY1305, key, iv),
            _ => return Err(Error::General("unknown cipher".to_owned())),
        };
        let key = UnboundKey::new(algorithm, key.as_ref()).map_err(|_| Error::EncryptError)?;
        Ok(Self {
            key: LessSafeKey::new(key),
            iv,
            sequence,
        })
    }

    fn nonce(&mut self) -> aead::Nonce {
        let nonce = Nonce::new(&self.iv, self.sequence);
        self.sequence += 1;
        aead::Nonce::assume_unique_for_key(nonce.0)
    }

    /// Seals `content` as a record in `out`. If `content` is `None`, the `length` plain bytes are
    /// already in place.
    fn seal(
        &mut self,
        kind: u8,
        content: Option<&[u8]>,
        length: usize,
        out: &mut [u8],
    ) -> Result<usize> {
        let sealed = (length + 1 + TAG_BYTES) as u16;
        out[..3].copy_from_slice(&[APPLICATION_DATA, 3, 3]);
        out[3..HEADER_BYTES].copy_from_slice(&sealed.to_be_bytes());
        let (header, rest) = out[..OVERHEAD_BYTES + length].split_at_mut(HEADER_BYTES);
        let (body, end) = rest.split_at_mut(length);
        let (nonce, aad) = (self.nonce(), Aad::from(&*header));
        match content {
            Some(content) => {
                let key = &self.key;
                key.seal_out_of_place_scatter(nonce, aad, content, body, &[kind], end)
            }
            None => self
                .key
                .seal_in_place_scatter(nonce, aad, body, &[kind], end),
        }
        .map_err(|_| invalid("a TLS record cannot be sealed"))?;
        Ok(OVERHEAD_BYTES + length)
    }
}

/// Seals and opens the records of one connection.
pub(super) struct TlsRecords {
    sealing: Key,
    opening: Key,
    schedule: Box<dyn KeySchedule>,
    /// Whether the peer requested a new key.
    update: bool,
    /// The public key of this side that the peer may still refuse; `None`: the peer has accepted
    /// this side, or this side has no such key.
    unconfirmed: Option<Presented>,
}

impl fmt::Debug for TlsRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsRecords")
            .field("sealed", &self.sealing.sequence)
            .field("opened", &self.opening.sequence)
            .finish_non_exhaustive()
    }
}

impl TlsRecords {
    pub(super) fn new(
        secrets: ExtractedSecrets,
        schedule: Box<dyn KeySchedule>,
    ) -> std::result::Result<Self, Error> {
        let ((sealed, sealing), (opened, opening)) = (secrets.tx, secrets.rx);
        Ok(Self {
            sealing: Key::new(sealed, sealing)?,
            opening: Key::new(opened, opening)?,
            schedule,
            update: false,
            unconfirmed: None,
        })
    }

    /// Expects that the peer refuses this side's public key by its first record.
    pub(super) fn expect_refusal_of(&mut self, own: Presented) {
        self.unconfirmed = Some(own);
    }

    /// Seals `message` as a record.
    fn say(&mut self, kind: u8, message: &[u8], out: &mut [u8]) -> Result<usize> {
        let length = message.len();
        self.sealing.seal(kind, Some(message), length, out)
    }

    fn update_sealing(&mut self, out: &mut [u8]) -> Result<usize> {
        let length = self.say(HANDSHAKE, &KEY_UPDATE_MESSAGE, out)?;
        let secrets = self.schedule.next_to_seal().map_err(invalid)?;
        self.sealing = Key::new(0, secrets).map_err(invalid)?;
        self.update = false;
        Ok(length)
    }

    /// Handles handshake messages that arrive after the handshake. Each message must be complete in
    /// its record.
    fn take_in(&mut self, mut messages: &[u8]) -> Result<()> {
        while let [kind, a, b, c, rest @ ..] = messages {
            let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
            let Some((message, next)) = rest.split_at_checked(length) else {
                return Err(invalid(
                    "a post-handshake message of TLS is not complete in its record",
                ));
            };
            match (*kind, message) {
                (NEW_SESSION_TICKET, _) => {}
                (KEY_UPDATE, [request @ 0..=1]) if next.is_empty() => {
                    self.update |= *request == 1;
                    let secrets = self.schedule.next_to_open().map_err(invalid)?;
                    self.opening = Key::new(0, secrets).map_err(invalid)?;
                }
                _ => {
                    return Err(invalid(format!(
                        "unexpected post-handshake message of TLS, type {kind}"
                    )));
                }
            }
            messages = next;
        }
        if messages.is_empty() {
            Ok(())
        } else {
            Err(invalid(
                "a post-handshake message of TLS is not complete in its record",
            ))
        }
    }
}

impl Records for TlsRecords {
    fn seal(&mut self, plain: &mut Gather<'_>, out: &mut [u8]) -> Result<usize> {
        let mut written = 0;
        if self.update || self.sealing.sequence >= RECORDS_MAX {
            written = self.update_sealing(out)?;
        }
        while out.len() - written >= OVERHEAD_BYTES + PLAIN_BYTES_MAX {
            let out = &mut out[written..];
            let (content, length) = match plain.next(PLAIN_BYTES_MAX) {
                Next::End => break,
                Next::Whole(content) => (Some(content), content.len()),
                Next::Parts => (
                    None,
                    plain.copy(&mut out[HEADER_BYTES..][..PLAIN_BYTES_MAX]),
                ),
            };
            let key = &mut self.sealing;
            written += key.seal(APPLICATION_DATA, content, length, out)?;
        }
        Ok(written)
    }

    fn open(&mut self, sealed: &[u8], plain: &mut [u8]) -> Result<Opened> {
        let Some((header, rest)) = sealed.split_at_checked(HEADER_BYTES) else {
            return Ok(Opened::Incomplete);
        };
        let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
        if header[0] != APPLICATION_DATA || !(TAG_BYTES + 1..=SEALED_BYTES_MAX).contains(&length) {
            return Err(invalid("the received bytes are not a record of TLS 1.3"));
        }
        if rest.len() < length {
            return Ok(Opened::Incomplete);
        }
        // The content type follows the payload.
        let needed = length - TAG_BYTES;
        let Some(opened) = plain.get_mut(..needed) else {
            return Ok(Opened::NoRoom { needed });
        };
        let (content, tag) = rest[..length].split_at(needed);
        let nonce = self.opening.nonce();
        self.opening
            .key
            .open_separate_gather(nonce, Aad::from(header), content, tag, opened)
            .map_err(|_| invalid("a TLS record was modified in transit"))?;
        let end = opened.iter().rposition(|byte| *byte != 0);
        let end = end.ok_or_else(|| invalid("a TLS record has no content type"))?;
        let mut moved = 0;
        match (opened[end], &opened[..end]) {
            (APPLICATION_DATA, content) => {
                moved = content.len();
                self.unconfirmed = None;
            }
            (ALERT, content) if content == CLOSE_NOTIFY => return Ok(Opened::End),
            (ALERT, [_, alert]) => {
                return Err(match &self.unconfirmed {
                    Some(own) => {
                        let refusal = KeyRefusal::of_alert(*alert, own.key());
                        if let KeyRefusal::ByPeer(_) = refusal {
                            own.refused();
                        }
                        refusal.into_error()
                    }
                    None => invalid(format!("the peer sent TLS alert {alert}")),
                });
            }
            (HANDSHAKE, messages) => self.take_in(messages)?,
            (kind, _) => {
                return Err(invalid(format!(
                    "a TLS record has an unexpected content, type {kind}"
                )));
            }
        }
        Ok(Opened::Record {
            consumed: HEADER_BYTES + length,
            length: moved,
        })
    }

    fn close(&mut self, out: &mut [u8]) -> Result<usize> {
        self.say(ALERT, &CLOSE_NOTIFY, out)
    }
}

#[cfg(any(test, feature = "oracles"))]
pub(crate) mod oracle;

#[cfg(test)]
mod tests {
    use std::io::IoSlice;
    use std::sync::Arc;

    use muxtunnel_testkit::socket::pair;
    use rustls::client::UnbufferedClientConnection;
    use rustls::server::UnbufferedServerConnection;

    use super::super::{handshake, oracle::both};
    use super::*;
    use crate::io::transport::Tcp;

    /// The records of a client and a server after their handshake.
    async fn records() -> (TlsRecords, TlsRecords) {
        let (client, server) = both();
        let (near, far) = pair().await;
        let (near, far) = (Tcp::boxed(near), Tcp::boxed(far));
        let (config, name) = client.client();
        let client = UnbufferedClientConnection::new(config, name).unwrap();
        let server = UnbufferedServerConnection::new(Arc::clone(&server.servers.carrier)).unwrap();
        let (near, far) = tokio::join!(
            handshake::run(&*near, client),
            handshake::run(&*far, server)
        );
        (near.unwrap().records, far.unwrap().records)
    }

    fn seal(records: &mut TlsRecords, plain: &[u8]) -> Vec<u8> {
        let mut out = vec![0; 64 << 10];
        let slices = [IoSlice::new(plain)];
        let length = records.seal(&mut Gather::new(&slices), &mut out).unwrap();
        out.truncate(length);
        out
    }

    fn open(records: &mut TlsRecords, mut sealed: &[u8]) -> Result<Vec<u8>> {
        let mut all = Vec::new();
        let mut plain = vec![0; PLAIN_BYTES_MAX + 1];
        while let Opened::Record { consumed, length } = records.open(sealed, &mut plain)? {
            all.extend_from_slice(&plain[..length]);
            sealed = &sealed[consumed..];
        }
        Ok(all)
    }

    fn carries(from: &mut TlsRecords, to: &mut TlsRecords, plain: &[u8]) {
        let sealed = seal(from, plain);
        assert_eq!(open(to, &sealed).unwrap(), plain);
    }

    #[tokio::test]
    async fn keys_change_at_their_limit_and_when_the_other_end_asks() {
        let (mut client, mut server) = records().await;
        carries(&mut client, &mut server, &[1; 40_000]);
        client.sealing.sequence = RECORDS_MAX;
        server.opening.sequence = RECORDS_MAX;
        carries(&mut client, &mut server, b"with a new key");
        assert_eq!((client.sealing.sequence, server.opening.sequence), (1, 1));
        carries(&mut client, &mut server, b"and on");
        let mut out = vec![0; 100];
        let request = [KEY_UPDATE, 0, 0, 1, 1];
        let length = client.say(HANDSHAKE, &request, &mut out).unwrap();
        client.sealing = Key::new(0, client.schedule.next_to_seal().unwrap()).unwrap();
        assert_eq!(open(&mut server, &out[..length]).unwrap(), b"");
        carries(&mut client, &mut server, b"requested");
        carries(&mut server, &mut client, b"answered");
        assert_eq!(server.sealing.sequence, 1);
    }

    #[tokio::test]
    async fn what_was_changed_moved_or_said_twice_is_refused() {
        let (mut client, mut server) = records().await;
        for at in [0, 4, HEADER_BYTES, HEADER_BYTES + 5] {
            let (mut client, mut server) = records().await;
            let mut sealed = seal(&mut client, b"hello");
            sealed[at] ^= 1;
            sealed.resize(1 << 10, 0);
            assert!(open(&mut server, &sealed).is_err(), "{at}");
        }
        let sealed = seal(&mut client, b"once");
        let again = sealed.clone();
        assert_eq!(open(&mut server, &sealed).unwrap(), b"once");
        assert!(open(&mut server, &again).is_err());
    }

    #[tokio::test]
    async fn the_end_is_told_and_so_is_an_alert() {
        let (mut client, mut server) = records().await;
        let mut out = vec![0; 100];
        let length = client.say(ALERT, &[2, 40], &mut out).unwrap();
        let error = server.open(&out[..length], &mut [0; 100]).unwrap_err();
        assert_eq!(error.to_string(), "the peer sent TLS alert 40");
        let (mut client, mut server) = records().await;
        let length = client.close(&mut out).unwrap();
        let end = server.open(&out[..length], &mut [0; 100]).unwrap();
        assert_eq!(end, Opened::End);
    }
}
