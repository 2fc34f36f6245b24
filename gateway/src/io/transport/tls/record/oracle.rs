//! Properties of any records of a peer, for tests and fuzz targets.

use std::io::IoSlice;

use rustls::crypto::cipher::AeadKey;

use super::*;

/// Room for the plain bytes of every record.
const ROOM: usize = SEALED_BYTES_MAX;

/// Keys that follow each other. Both ends of a direction have the same sequence of keys.
struct Counted {
    to_seal: u8,
    to_open: u8,
}

impl KeySchedule for Counted {
    fn next_to_seal(&mut self) -> std::result::Result<ConnectionTrafficSecrets, Error> {
        self.to_seal = self.to_seal.wrapping_add(1);
        Ok(secrets(self.to_seal))
    }

    fn next_to_open(&mut self) -> std::result::Result<ConnectionTrafficSecrets, Error> {
        self.to_open = self.to_open.wrapping_add(1);
        Ok(secrets(self.to_open))
    }
}

fn secrets(number: u8) -> ConnectionTrafficSecrets {
    ConnectionTrafficSecrets::Aes256Gcm {
        key: AeadKey::from([number; 32]),
        iv: Iv::from([number; 12]),
    }
}

fn end() -> TlsRecords {
    let secrets = ExtractedSecrets {
        tx: (0, secrets(0)),
        rx: (0, secrets(0)),
    };
    let schedule = Counted {
        to_seal: 0,
        to_open: 0,
    };
    match TlsRecords::new(secrets, Box::new(schedule)) {
        Ok(records) => records,
        Err(error) => unreachable!("{error}"),
    }
}

/// The steps of the peer. `input` has for each step a kind, a length and bytes.
///
/// Checks that payload arrives unchanged, also after key updates; that a record which is not
/// complete, or for which there is no room, changes nothing; and that nothing that the peer has not
/// sealed is opened.
pub(crate) fn records(mut input: &[u8]) {
    let (mut peer, mut own) = (end(), end());
    while let Some((&[kind, length], rest)) = input.split_first_chunk() {
        let (bytes, rest) = rest.split_at(rest.len().min(length.into()));
        input = rest;
        let mut sealed = vec![0; 64 << 10];
        let step = kind % 4;
        let made = match step {
            0 | 1 => {
                peer.update = step == 1;
                peer.seal(&mut Gather::new(&[IoSlice::new(bytes)]), &mut sealed)
            }
            2 => {
                sealed[..bytes.len()].copy_from_slice(bytes);
                Ok(bytes.len())
            }
            _ => peer.say(kind / 4, bytes, &mut sealed),
        };
        sealed.truncate(made.unwrap_or_default());
        let opened = open(&mut own, &sealed);
        match (step, opened) {
            (0 | 1, Ok(opened)) => assert_eq!(opened, bytes),
            (0 | 1, Err(error)) => unreachable!("a sealed record: {error}"),
            // Bytes that the peer has not sealed: they are incomplete, or end the carrier.
            (2, Ok(opened)) => {
                assert!(opened.is_empty());
                return;
            }
            (_, Ok(opened)) => match inner(kind / 4, bytes) {
                (APPLICATION_DATA, content) => assert_eq!(opened, content),
                // The end, or a key update by hand, after which the peer's records have another
                // key.
                (ALERT | HANDSHAKE, _) => {
                    assert!(opened.is_empty());
                    return;
                }
                other => unreachable!("{other:?}"),
            },
            (_, Err(_)) => return,
        }
    }
}

/// The type and the content of a record with this type and these bytes. A record of the type 0 has
/// padding: its type is the last byte that is not 0 (RFC 8446, section 5.4).
fn inner(kind: u8, bytes: &[u8]) -> (u8, &[u8]) {
    if kind != 0 {
        return (kind, bytes);
    }
    match bytes.iter().rposition(|byte| *byte != 0) {
        Some(last) => (bytes[last], &bytes[..last]),
        None => (0, &[]),
    }
}

/// Opens all records. Stops at the end and at an incomplete record.
fn open(records: &mut TlsRecords, mut sealed: &[u8]) -> Result<Vec<u8>> {
    let mut all = Vec::new();
    let mut plain = vec![0; ROOM];
    loop {
        let before = records.opening.sequence;
        for end in [0, sealed.len() / 2, sealed.len().saturating_sub(1)] {
            if let Ok(Opened::NoRoom { needed }) = records.open(&sealed[..end], &mut []) {
                assert!(needed <= ROOM);
            }
            assert_eq!(records.opening.sequence, before);
        }
        match records.open(sealed, &mut plain)? {
            Opened::Record { consumed, length } => {
                assert!(consumed > HEADER_BYTES && consumed <= sealed.len());
                assert!(length < consumed);
                all.extend_from_slice(&plain[..length]);
                sealed = &sealed[consumed..];
            }
            Opened::NoRoom { needed } => unreachable!("{needed} bytes of room"),
            Opened::Incomplete | Opened::End => return Ok(all),
        }
    }
}
