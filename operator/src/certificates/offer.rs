//! Offers: the current bundle, for remote entries that joined with the current or the previous
//! bundle. This module is pure.
//!
//! The exit's operator seals the bundle for each holder with the key in the holder's bundle, and
//! signs the result as an authority of exits. The exit's gateways pass the offer on through the
//! tunnel, and the entry's operator opens it. Gateways and other readers of the offer see only
//! ciphertext. An attacker who has a bundle can open the offers to the bundle's holders as long as
//! the exit trusts the bundle. The attacker cannot create offers.

use std::collections::BTreeMap;

use aws_lc_rs::signature::{ED25519, UnparsedPublicKey};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::ByteString;
use muxtunnel_gateway_config::OFFER_BYTES_MAX;
use rcgen::SigningKey;
use serde::{Deserialize, Serialize};
use x509_parser::pem::Pem;
use zeroize::Zeroizing;

use super::CertificateError;
use super::authority::Authority;
use super::join::Bundle;
use super::seal::{SealingKey, derived};

/// Context of the sealing, and prefix of the signed text. No certificate begins with this text, so
/// the signature of an offer is never valid for a certificate.
const USE: &str = "muxtunnel.dev/offer/v1";
/// Context of the sealing of a bundle that the entry's operator keeps.
const KEPT: &str = "muxtunnel.dev/kept-bundle/v1";
/// Maximum number of holders in an offer that this operator reads. An exit's operator writes at
/// most two.
const HOLDERS_MAX: usize = 8;

/// The offer for the holders of one bundle.
#[derive(Serialize, Deserialize)]
struct Sealed {
    /// Fingerprint of the authority of entries in the holders' bundle.
    holder: String,
    /// The sealed bundle.
    bundle: String,
    /// Signature of `holder` and `bundle` by an authority of exits.
    signature: String,
}

impl Sealed {
    fn signed(holder: &str, bundle: &str) -> Vec<u8> {
        format!("{USE}\0{holder}\0{bundle}").into_bytes()
    }
}

/// Seals `bundle` for entries that already hold a bundle, once for each authority of entries in
/// `holders`. The holders of a bundle with this authority can open the result. `signer` is an
/// authority of exits. The same input yields the same offer.
///
/// # Errors
/// [`CertificateError`].
pub fn offer(
    bundle: &Bundle,
    holders: &[Authority],
    signer: &Authority,
) -> Result<String, CertificateError> {
    let text = bundle.text();
    let key = signer.key()?;
    let sealed = holders.iter().map(|holder| {
        let refused = || CertificateError::Derive(holder.fingerprint.clone());
        let sealed = holder_key(holder)?.seal(USE, &text).ok_or_else(refused)?;
        let signature = key.sign(&Sealed::signed(&holder.fingerprint, &sealed));
        let signature = signature.map_err(|source| CertificateError::Make {
            subject: signer.fingerprint.clone(),
            source,
        })?;
        Ok(Sealed {
            holder: holder.fingerprint.clone(),
            bundle: sealed,
            signature: STANDARD.encode(signature),
        })
    });
    let sealed: Vec<_> = sealed.collect::<Result<_, CertificateError>>()?;
    // The structure contains only strings, so the serialization cannot fail.
    Ok(serde_json::to_string(&sealed).unwrap_or_default())
}

/// Opens the bundle in `offer` for holders of `own`. Returns `None` if the offered bundle is the
/// same as `own`, or expires earlier.
///
/// # Errors
/// A sentence with the reason, for example that the offer has no bundle for these holders, or that
/// their exit did not sign the offer.
pub fn accept(offer: &str, own: &Bundle) -> Result<Option<Bundle>, String> {
    let unreadable = || "cannot parse the exit's offer of a join bundle".to_owned();
    if offer.len() > OFFER_BYTES_MAX {
        return Err(unreadable());
    }
    let sealed: Vec<Sealed> = serde_json::from_str(offer).map_err(|_| unreadable())?;
    let authority = &own.entry_authority;
    let mut sealed = sealed.into_iter().take(HOLDERS_MAX);
    let ours = sealed.find(|one| one.holder == authority.fingerprint);
    let Some(ours) = ours else {
        return Err(
            "the exit's offer has no bundle for entries that joined with this bundle".to_owned(),
        );
    };
    if !is_by_an_exit(&ours, own) {
        return Err(
            "the exit's offer is not signed by an authority of exits in this bundle".to_owned(),
        );
    }
    let text = holder_key(authority)
        .ok()
        .and_then(|key| key.open(USE, &ours.bundle))
        .ok_or("the exit's offer cannot be decrypted")?;
    let bundle = Bundle::parse(&text)
        .map_err(|problem| format!("the bundle that the exit offers {}", problem.what))?;
    if (&bundle.exit_identity, &bundle.entry_identity) != (&own.exit_identity, &own.entry_identity)
    {
        return Err("the bundle that the exit offers is for another tunnel".to_owned());
    }
    let is_newer = bundle.digest() != own.digest() && bundle.expires() >= own.expires();
    Ok(is_newer.then_some(bundle))
}

fn is_by_an_exit(sealed: &Sealed, own: &Bundle) -> bool {
    let Ok(signature) = STANDARD.decode(&sealed.signature) else {
        return false;
    };
    let message = Sealed::signed(&sealed.holder, &sealed.bundle);
    let authorities = own.exit_authorities.as_bytes();
    Pem::iter_from_buffer(authorities).flatten().any(|pem| {
        pem.parse_x509().is_ok_and(|certificate| {
            let key = &certificate.public_key().subject_public_key.data;
            let key = UnparsedPublicKey::new(&ED25519, key);
            key.verify(&message, &signature).is_ok()
        })
    })
}

/// Derives the sealing key from the key in the holders' bundle.
fn holder_key(holder: &Authority) -> Result<SealingKey, CertificateError> {
    let (key, of) = (holder.key()?, holder.fingerprint.as_bytes());
    derived(USE.as_bytes(), key.serialized_der(), &[of])
        .map(SealingKey)
        .ok_or_else(|| CertificateError::Derive(holder.fingerprint.clone()))
}

/// A bundle from an offer, in the form that the entry's operator stores.
#[derive(Serialize, Deserialize)]
pub struct Kept {
    /// Digest of the copied bundle that this bundle replaces. If a user copies another bundle, this
    /// bundle becomes invalid.
    copy: String,
    /// The data of the bundle.
    bundle: BTreeMap<String, ByteString>,
}

impl Kept {
    /// Seals the bundle that replaces `copy`, with `key`. The same input yields the same text.
    /// Returns `None` if the library rejects the input.
    #[must_use]
    pub fn seal(key: &SealingKey, copy: &str, bundle: &Bundle) -> Option<String> {
        let kept = Self {
            copy: copy.to_owned(),
            bundle: bundle.data(),
        };
        let text = Zeroizing::new(serde_json::to_vec(&kept).ok()?);
        key.seal(KEPT, &text)
    }

    /// Opens the bundle that replaces `copy`. Returns `None` if the bundle replaces another copy,
    /// or if another key sealed it.
    #[must_use]
    pub fn open(key: &SealingKey, copy: &str, sealed: &str) -> Option<Bundle> {
        let text = key.open(KEPT, sealed)?;
        let kept: Self = serde_json::from_slice(&text).ok()?;
        (kept.copy == copy).then(|| Bundle::of(&kept.bundle).ok())?
    }
}
