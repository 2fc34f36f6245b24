//! Offers: how the present bundle comes to entries elsewhere that joined by it, or by the one before. Pure.
//!
//! The exit's operator seals it for each of them with the key that is in their bundle, and signs that as an authority of
//! exits. Its gateways hand the offer out through the tunnel; the entry's operator opens it. Gateways and other readers
//! of the offer see ciphertext. Who finds a bundle can open what is offered to its holders for as long as the exit
//! trusts it, and can make no offer.

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

/// What an offer is sealed for; it is also before all that is signed, which no certificate begins with.
const USE: &str = "muxtunnel.dev/offer/v1";
/// What a kept bundle is sealed for.
const KEPT: &str = "muxtunnel.dev/kept-bundle/v1";
/// Most holders of an offer that is read: there are two at most.
const HOLDERS_MAX: usize = 8;

/// One for the holders of one bundle.
#[derive(Serialize, Deserialize)]
struct Sealed {
    /// Fingerprint of the authority of entries in their bundle.
    holder: String,
    /// The bundle that is offered.
    bundle: String,
    /// By an authority of exits, of both.
    signature: String,
}

impl Sealed {
    fn signed(holder: &str, bundle: &str) -> Vec<u8> {
        format!("{USE}\0{holder}\0{bundle}").into_bytes()
    }
}

/// `bundle` for those who have a bundle with one of `holders`, signed by `signer`, an authority of exits. The same each
/// time.
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
    // Texts alone: nothing of it is refused.
    Ok(serde_json::to_string(&sealed).unwrap_or_default())
}

/// The bundle in `offer` for holders of `own`; `None`: it is the one that they have.
///
/// # Errors
/// A sentence: there is none for them, or not by their exit.
pub fn accept(offer: &str, own: &Bundle) -> Result<Option<Bundle>, String> {
    let unreadable = || "what the exit offers is no offer of bundles".to_owned();
    if offer.len() > OFFER_BYTES_MAX {
        return Err(unreadable());
    }
    let sealed: Vec<Sealed> = serde_json::from_str(offer).map_err(|_| unreadable())?;
    let authority = &own.entry_authority;
    let mut sealed = sealed.into_iter().take(HOLDERS_MAX);
    let ours = sealed.find(|one| one.holder == authority.fingerprint);
    let Some(ours) = ours else {
        return Err("the exit offers none to holders of this one".to_owned());
    };
    if !is_by_an_exit(&ours, own) {
        return Err("what the exit offers is not signed by an authority of exits".to_owned());
    }
    let text = holder_key(authority)
        .ok()
        .and_then(|key| key.open(USE, &ours.bundle))
        .ok_or("what the exit offers cannot be opened")?;
    let bundle =
        Bundle::parse(&text).map_err(|problem| format!("what the exit offers {}", problem.what))?;
    if (&bundle.exit_identity, &bundle.entry_identity) != (&own.exit_identity, &own.entry_identity)
    {
        return Err("what the exit offers is for another tunnel".to_owned());
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

/// From the key that holders have.
fn holder_key(holder: &Authority) -> Result<SealingKey, CertificateError> {
    let (key, of) = (holder.key()?, holder.fingerprint.as_bytes());
    derived(USE.as_bytes(), key.serialized_der(), &[of])
        .map(SealingKey)
        .ok_or_else(|| CertificateError::Derive(holder.fingerprint.clone()))
}

/// A bundle that came by an offer, as an entry's operator keeps it.
#[derive(Serialize, Deserialize)]
pub struct Kept {
    /// Digest of the copied bundle that it follows: with another copy it does not count.
    copy: String,
    /// Its data.
    bundle: BTreeMap<String, ByteString>,
}

impl Kept {
    /// The bundle that follows `copy`, sealed by `key`. The same each time; `None`: the library refuses it.
    #[must_use]
    pub fn seal(key: &SealingKey, copy: &str, bundle: &Bundle) -> Option<String> {
        let kept = Self {
            copy: copy.to_owned(),
            bundle: bundle.data(),
        };
        let text = Zeroizing::new(serde_json::to_vec(&kept).ok()?);
        key.seal(KEPT, &text)
    }

    /// The bundle that follows `copy`; `None`: it follows another one, or was not sealed by `key`.
    #[must_use]
    pub fn open(key: &SealingKey, copy: &str, sealed: &str) -> Option<Bundle> {
        let text = key.open(KEPT, sealed)?;
        let kept: Self = serde_json::from_slice(&text).ok()?;
        (kept.copy == copy).then(|| Bundle::of(&kept.bundle).ok())?
    }
}
