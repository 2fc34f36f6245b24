//! When a certificate is issued, and why. Pure.

use muxtunnel_crds::CertificateStatus;

use super::wanted::Wanted;
use crate::certificates::authority::fingerprint;
use crate::tunnel_controller::end::End;

/// Least time between two issues for pods that wait: the kubelet needs some of it.
const LOST_PAUSE_SECONDS: i64 = 60;
/// Renewals of a tunnel come up to this part of a life before two thirds of it are over, each tunnel's at a time of its
/// own.
const SPREAD: i64 = 20;

/// Why a certificate is issued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// There is none.
    First,
    /// Two thirds of its life are over, or it lives longer than it may.
    Due,
    /// It is for another identity, or by or for authorities that do not count any more.
    Changed,
    /// Pods wait for its Secret, so somebody has deleted that.
    Lost,
}

impl Reason {
    /// For the log.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::First => "there was none",
            Self::Due => "due",
            Self::Changed => "identity or authorities changed",
            Self::Lost => "pods wait for its Secret",
        }
    }
}

/// Why `wanted` has to be issued at `now`, for `life` seconds; `None`: what `record` says is good. `waiting_since`: when
/// the youngest pod was made that waits.
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
    // A pod that waits all the same waits for something else, so it is tried ever more rarely.
    if let Some(made) = waiting_since
        && now - issued_at >= LOST_PAUSE_SECONDS
        && 2 * (now - issued_at) >= now - made
    {
        return Some(Reason::Lost);
    }
    if not_after > now + life + LOST_PAUSE_SECONDS {
        return Some(Reason::Due);
    }
    // Of one that ends with its authority a further one brings nothing.
    let is_last = (now + life).min(wanted.signing().end) <= not_after;
    (now >= due(uid, issued_at, not_after) && !is_last).then_some(Reason::Due)
}

/// Whether what `record` says was issued by another seed than `wanted`. Only an exit's certificate tells: a revocation
/// changes the authority of entries.
#[must_use]
pub(super) fn is_of_another_seed(record: Option<&CertificateStatus>, wanted: &Wanted<'_>) -> bool {
    let authority = record.and_then(|record| record.authority.as_ref());
    wanted.end == End::Exit && authority.is_some_and(|known| !wanted.accepted.contains(known))
}

/// When a certificate is renewed: once two thirds of its life are over, or a little before, by chance of its tunnel's UID.
#[must_use]
pub fn due(uid: &str, issued_at: i64, not_after: i64) -> i64 {
    let life = (not_after - issued_at).max(0);
    let digits = &fingerprint(uid.as_bytes())[..8];
    let number = i64::from_str_radix(digits, 16).unwrap_or_default();
    issued_at + life / 3 * 2 - number % (life / SPREAD).max(1)
}
