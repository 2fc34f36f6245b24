//! Decides whether to issue a certificate. Pure.

use muxtunnel_crds::CertificateStatus;

use super::wanted::Wanted;
use crate::certificates::authority::fingerprint;
use crate::tunnel_controller::end::End;

/// Minimum time, in seconds, between two certificates that are issued because pods wait
/// ([`Reason::Lost`]). The kubelet needs part of this time to mount the Secret.
const LOST_PAUSE_SECONDS: i64 = 60;
/// A certificate is renewed when two thirds of its lifetime have passed, or earlier by up to this
/// fraction (1/20) of the lifetime. The exact time differs between tunnels.
const SPREAD: i64 = 20;

/// Why a certificate is issued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// There is no certificate.
    First,
    /// Two thirds of the certificate's lifetime have passed, or the certificate is valid for longer
    /// than the installation now permits.
    Due,
    /// The identity changed, or an authority is no longer valid.
    Changed,
    /// Pods have waited for some time, so the certificate's Secret may have been deleted.
    Lost,
}

impl Reason {
    /// The text for the log.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::First => "there was no certificate",
            Self::Due => "due",
            Self::Changed => "its identity or its authorities changed",
            Self::Lost => "pods wait for its Secret",
        }
    }
}

/// Why `wanted` has to be issued at `now` for `life` seconds. `None` if the certificate in `record`
/// stays in use. `waiting_since` is the creation time of the youngest waiting pod.
#[must_use]
pub(super) fn reason(
    record: Option<&CertificateStatus>,
    wanted: &Wanted<'_>,
    uid: &str,
    (now, life): (i64, i64),
    waiting_since: Option<i64>,
) -> Option<Reason> {
    let record = record.filter(|record| record.secret_name == wanted.secret);
    let times =
        record.and_then(|record| Some((record.issued_at.as_ref()?, record.not_after.as_ref()?)));
    let (Some(record), Some((issued_at, not_after))) = (record, times) else {
        return Some(Reason::First);
    };
    let (issued_at, not_after) = (issued_at.0.as_second(), not_after.0.as_second());
    let is_accepted = |authority: &String| wanted.accepted.contains(authority);
    if record.identity.as_ref() != Some(&wanted.identity)
        || record.trust.as_ref() != Some(&wanted.trust_digest())
        || !record.authority.as_ref().is_some_and(is_accepted)
    {
        return Some(Reason::Changed);
    }
    // A pod that still waits after a new certificate has another problem, so the attempts become
    // less frequent.
    if let Some(made) = waiting_since
        && now - issued_at >= LOST_PAUSE_SECONDS
        && 2 * (now - issued_at) >= now - made
    {
        return Some(Reason::Lost);
    }
    if not_after > now + life + LOST_PAUSE_SECONDS {
        return Some(Reason::Due);
    }
    // If the certificate expires with its authority, a new certificate would not be valid longer.
    let is_last = (now + life).min(wanted.signing().end) <= not_after;
    (now >= due(uid, issued_at, not_after) && !is_last).then_some(Reason::Due)
}

/// Whether the certificate in `record` comes from another seed than `wanted`. Only an exit's
/// certificate reveals another seed: the authority of entries also changes when a user revokes
/// bundles.
#[must_use]
pub(super) fn is_of_another_seed(record: Option<&CertificateStatus>, wanted: &Wanted<'_>) -> bool {
    let authority = record.and_then(|record| record.authority.as_ref());
    wanted.end == End::Exit && authority.is_some_and(|known| !wanted.accepted.contains(known))
}

/// When a certificate is renewed: after two thirds of its lifetime, or a little earlier, depending
/// on the tunnel's UID.
#[must_use]
pub fn due(uid: &str, issued_at: i64, not_after: i64) -> i64 {
    let life = (not_after - issued_at).max(0);
    let digits = &fingerprint(uid.as_bytes())[..8];
    let number = i64::from_str_radix(digits, 16).unwrap_or_default();
    issued_at + life / 3 * 2 - number % (life / SPREAD).max(1)
}
