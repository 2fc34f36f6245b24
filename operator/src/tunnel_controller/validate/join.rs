//! Checks of join bundles: the bundle of this tunnel's exit, and the bundle that its entry uses.
//! Pure.

use muxtunnel_codes::Code;
use muxtunnel_crds::MuxTunnelSpec;

use super::certificates::{Identities, ValidatedCertificates};
use crate::certificates::CertificateError;
use crate::certificates::authority::{Purpose, Seed, Subject, pem};
use crate::certificates::join::Bundle;
use crate::certificates::offer;
use crate::tunnel_controller::dereference::{CertificateFacts, Joined, KnownSeed};
use crate::tunnel_controller::problem::Problem;

/// Checks that the address of the exit that `spec` joins is known.
///
/// # Errors
/// The address is not known.
pub(super) fn leads(spec: &MuxTunnelSpec, joined: &Joined) -> Result<(), Problem> {
    let carrier = spec.carrier.as_ref();
    let is_said =
        carrier.is_some_and(|carrier| carrier.address.is_some() || carrier.rendezvous.is_some());
    if is_said || joined.bundle.address.is_some() {
        return Ok(());
    }
    let secret_name = &joined.secret_name;
    Err(Problem {
        code: Code::JoinBundleInvalid,
        detail: format!(
            "Secret {secret_name} has no key address: set the exit's address by carrier.address or \
             carrier.rendezvous"
        ),
    })
}

/// The exits' offer to remote entries with a valid bundle. `None` in three cases: the tunnel has
/// its own entry, the operator does not issue the certificates, or no bundle of this join
/// generation was published yet.
///
/// # Errors
/// [`CertificateError`].
pub(super) fn offer(
    certificates: &ValidatedCertificates,
    has_entry: bool,
    facts: &CertificateFacts,
) -> Result<Option<String>, CertificateError> {
    let ValidatedCertificates::Managed(identities, subject) = certificates else {
        return Ok(None);
    };
    let published = facts.known.join.as_ref();
    let published = published.filter(|join| join.generation == i64::from(subject.generation));
    let (Some(published), KnownSeed::Known { seed, .. }, false) =
        (published, &facts.seed, has_entry)
    else {
        return Ok(None);
    };
    let now = facts.now;
    let bundle = bundle(published.address.clone(), identities, subject, seed, now)?;
    let holders = subject.published(seed, now)?;
    let signer = subject.signing(seed, Purpose::Exit, now)?;
    Ok(Some(offer::offer(&bundle, &holders, &signer)?))
}

/// The bundle for remote entries.
///
/// # Errors
/// [`CertificateError`].
pub(in crate::tunnel_controller) fn bundle(
    address: Option<String>,
    identities: &Identities,
    subject: &Subject,
    seed: &Seed,
    now: i64,
) -> Result<Bundle, CertificateError> {
    Ok(Bundle {
        address,
        exit_authorities: pem(&subject.trusted(seed, Purpose::Exit, now)?),
        entry_authority: subject.signing(seed, Purpose::Entry, now)?,
        exit_identity: identities.exit.clone(),
        entry_identity: identities.entry.clone(),
    })
}
