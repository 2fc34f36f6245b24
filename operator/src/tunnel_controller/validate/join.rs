//! What entries elsewhere join by: the bundle that this tunnel's exit has published, and the one that its entry has. Pure.

use muxtunnel_codes::Code;
use muxtunnel_crds::MuxTunnelSpec;

use super::certificates::{Identities, ValidatedCertificates};
use crate::certificates::CertificateError;
use crate::certificates::authority::{Purpose, Seed, Subject, pem};
use crate::certificates::join::Bundle;
use crate::certificates::offer;
use crate::tunnel_controller::dereference::{CertificateFacts, Joined, KnownSeed};
use crate::tunnel_controller::problem::Problem;

/// Whether it is known where the exit is that `spec` joins by `joined`.
///
/// # Errors
/// It is not.
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
            "Secret {secret_name} has no key address: say where the exit is by carrier.address or \
             carrier.rendezvous"
        ),
    })
}

/// What exits give to entries elsewhere that joined by a bundle that is still good; `None`: there are none, or no
/// bundle was published yet.
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

/// The bundle with which entries elsewhere join.
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
