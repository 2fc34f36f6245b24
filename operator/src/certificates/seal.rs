//! Sealed (encrypted) texts: secrets in objects that other users can read. This module is pure.
//!
//! The cipher is AES-256-GCM-SIV (RFC 8452). The same text under the same key yields the same
//! ciphertext, so unchanged objects are not written again, and no nonce has to be stored. A reader
//! can only detect whether two texts are equal.

use aws_lc_rs::aead::{AES_256_GCM_SIV, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Salt};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

/// A sealing key. The key's memory is wiped on drop.
pub struct SealingKey(pub(super) Zeroizing<[u8; 32]>);

impl std::fmt::Debug for SealingKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SealingKey")
    }
}

impl SealingKey {
    /// Seals `text`, in base64. Only [`Self::open`] with the same `use_` opens the result. Returns
    /// `None` if the text is too long for the library (many gigabytes).
    #[must_use]
    pub fn seal(&self, use_: &str, text: &[u8]) -> Option<String> {
        let mut sealed = text.to_vec();
        self.key()?
            .seal_in_place_append_tag(nonce(), Aad::from(use_), &mut sealed)
            .ok()?;
        Some(STANDARD.encode(sealed))
    }

    /// Opens a sealed text. Returns `None` if another key or another use sealed the text, or if
    /// `text` is not a sealed text.
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

/// A constant nonce. The ciphertexts of different texts still differ (RFC 8452, section 1).
fn nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; 12])
}

/// HKDF-SHA256 (RFC 5869) of `secret`. `None` if the library rejects the input.
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
