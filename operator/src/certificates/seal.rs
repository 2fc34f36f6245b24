//! Sealed texts: what stands where others can read it, and is not for them. Pure.
//!
//! AES-256-GCM-SIV (RFC 8452): the same text under the same key comes out the same each time, so that what did not change
//! is not written again, and no nonce has to be kept. All that this tells is whether two texts are the same.

use aws_lc_rs::aead::{AES_256_GCM_SIV, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Salt};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

/// One key, wiped from memory once it is dropped.
pub struct SealingKey(pub(super) Zeroizing<[u8; 32]>);

impl std::fmt::Debug for SealingKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SealingKey")
    }
}

impl SealingKey {
    /// `text` in base64, to be opened for the same `use_` alone; `None`: the library refuses it, as a text of many
    /// gigabytes.
    #[must_use]
    pub fn seal(&self, use_: &str, text: &[u8]) -> Option<String> {
        let mut sealed = text.to_vec();
        self.key()?
            .seal_in_place_append_tag(nonce(), Aad::from(use_), &mut sealed)
            .ok()?;
        Some(STANDARD.encode(sealed))
    }

    /// What was sealed; `None`: by another key, for another use, or not at all.
    #[must_use]
    pub fn open(&self, use_: &str, sealed: &str) -> Option<Zeroizing<Vec<u8>>> {
        let mut sealed = Zeroizing::new(STANDARD.decode(sealed).ok()?);
        let text = self
            .key()?
            .open_in_place(nonce(), Aad::from(use_), &mut sealed)
            .ok()?;
        Some(Zeroizing::new(text.to_vec()))
    }

    fn key(&self) -> Option<LessSafeKey> {
        let key = UnboundKey::new(&AES_256_GCM_SIV, &*self.0).ok()?;
        Some(LessSafeKey::new(key))
    }
}

/// Always the same: texts that differ are sealed differently all the same (RFC 8452, section 1).
fn nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; 12])
}

/// HKDF-SHA256 (RFC 5869) of `secret`; `None`: the library refuses it.
pub(super) fn derived(salt: &[u8], secret: &[u8], info: &[&[u8]]) -> Option<Zeroizing<[u8; 32]>> {
    struct Bytes32;
    impl KeyType for Bytes32 {
        fn len(&self) -> usize {
            32
        }
    }
    let mut derived = Zeroizing::new([0; 32]);
    let extracted = Salt::new(HKDF_SHA256, salt).extract(secret);
    let expanded = extracted.expand(info, Bytes32).ok()?;
    expanded.fill(&mut *derived).ok()?;
    Some(derived)
}
