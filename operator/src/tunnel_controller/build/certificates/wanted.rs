//! The certificates that gateways should have, and their issuers. Pure.

use crate::certificates::CertificateError;
use crate::certificates::authority::{Authority, Purpose, Seed, Subject, fingerprint, pem};
use crate::certificates::join::Bundle;
use crate::tunnel_controller::end::End;
use crate::tunnel_controller::validate::{Identities, ValidatedTunnel};

/// A certificate to issue.
pub(super) struct Wanted<'a> {
    /// The end that uses the certificate.
    pub end: End,
    /// The Secret for the certificate.
    pub secret: String,
    /// The SPIFFE ID.
    pub identity: String,
    /// The authorities of the other end, PEM.
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

    /// SHA-256 of the authorities that the gateway trusts.
    #[must_use]
    pub(super) fn trust_digest(&self) -> String {
        fingerprint(self.trust.as_bytes())
    }
}

/// The side of an end's certificates. The value for a rendezvous is never used, because a
/// rendezvous has no certificates.
#[must_use]
pub(super) const fn purpose(end: End) -> Purpose {
    match end {
        End::Entry => Purpose::Entry,
        End::Exit | End::Rendezvous => Purpose::Exit,
    }
}

/// The certificates that the operator issues with its own authorities, for each end of `valid`.
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

/// A certificate of `end` with `identity`, in the Secret `secret`, signed by an authority of
/// `subject`.
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

/// The certificate that the operator issues for the entry with a bundle.
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

/// A certificate of an entry with `identity`, in the Secret `secret`, signed with `bundle`.
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
