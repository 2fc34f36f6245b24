//! The certificates that gateways should have, and who signs them. Pure.

use crate::certificates::CertificateError;
use crate::certificates::authority::{Authority, Purpose, Seed, Subject, fingerprint, pem};
use crate::certificates::join::Bundle;
use crate::tunnel_controller::end::End;
use crate::tunnel_controller::validate::{Identities, ValidatedTunnel};

/// A certificate as it should be.
pub(super) struct Wanted<'a> {
    /// Whose it is.
    pub end: End,
    /// The Secret for it.
    pub secret: String,
    /// The SPIFFE ID in it.
    pub identity: String,
    /// The authorities of the other end, in PEM.
    pub trust: String,
    signer: Signer<'a>,
    /// Fingerprints of the authorities that the other end trusts.
    pub(super) accepted: Vec<String>,
}

enum Signer<'a> {
    Derived(Box<Authority>),
    Bundled(&'a Authority),
}

impl Wanted<'_> {
    /// The authority that signs.
    #[must_use]
    pub(super) fn signing(&self) -> &Authority {
        match &self.signer {
            Signer::Derived(authority) => authority,
            Signer::Bundled(authority) => authority,
        }
    }

    /// SHA-256 of what the gateway trusts.
    #[must_use]
    pub(super) fn trust_digest(&self) -> String {
        fingerprint(self.trust.as_bytes())
    }
}

/// The side whose certificates an end has. A rendezvous has none.
#[must_use]
pub(super) const fn purpose(end: End) -> Purpose {
    match end {
        End::Entry => Purpose::Entry,
        End::Exit | End::Rendezvous => Purpose::Exit,
    }
}

/// What the operator issues of its own authorities, for each end of `valid`.
///
/// # Errors
/// [`CertificateError`].
pub(super) fn managed(
    valid: &ValidatedTunnel,
    identities: &Identities,
    subject: &Subject,
    seed: &Seed,
    now: i64,
) -> Result<Vec<Wanted<'static>>, CertificateError> {
    let ends = [
        (End::Exit, &identities.exit),
        (End::Entry, &identities.entry),
    ];
    ends.into_iter()
        .filter(|(end, ..)| end.gateway(valid).is_some())
        .map(|(end, identity)| {
            let secret = valid.certificates.secret(&valid.name, end.component());
            derived(end, (secret, identity.clone()), subject, seed, now)
        })
        .collect()
}

/// A certificate of `end` with `identity`, in `secret`, by an authority of `subject`.
///
/// # Errors
/// [`CertificateError`].
pub(super) fn derived(
    end: End,
    (secret, identity): (String, String),
    subject: &Subject,
    seed: &Seed,
    now: i64,
) -> Result<Wanted<'static>, CertificateError> {
    let own = purpose(end);
    let other = match own {
        Purpose::Entry => Purpose::Exit,
        Purpose::Exit => Purpose::Entry,
    };
    let accepted = subject.trusted(seed, own, now)?;
    Ok(Wanted {
        end,
        secret,
        identity,
        trust: pem(&subject.trusted(seed, other, now)?),
        signer: Signer::Derived(Box::new(subject.signing(seed, own, now)?)),
        accepted: accepted.into_iter().map(|one| one.fingerprint).collect(),
    })
}

/// What the operator issues for the entry, by a bundle.
#[must_use]
pub(super) fn joined<'a>(
    valid: &ValidatedTunnel,
    identities: &Identities,
    bundle: &'a Bundle,
) -> Wanted<'a> {
    let secret = valid
        .certificates
        .secret(&valid.name, End::Entry.component());
    bundled((secret, identities.entry.clone()), bundle)
}

/// A certificate of an entry with `identity`, in `secret`, by `bundle`.
#[must_use]
pub(super) fn bundled((secret, identity): (String, String), bundle: &Bundle) -> Wanted<'_> {
    Wanted {
        end: End::Entry,
        secret,
        identity,
        trust: bundle.exit_authorities.clone(),
        accepted: vec![bundle.entry_authority.fingerprint.clone()],
        signer: Signer::Bundled(&bundle.entry_authority),
    }
}
