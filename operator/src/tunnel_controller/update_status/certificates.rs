//! The certificates' part of the status, from the issued certificates and from the gateways'
//! answers. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use muxtunnel_codes::Code;
use muxtunnel_crds::{CertificateStatus, CertificatesStatus, tunnel_condition::CERTIFICATES_VALID};
use muxtunnel_gateway_config::status::Certificate;

use super::files;
use super::verdicts::answers;
use crate::certificates::join::date;
use crate::conditions::Verdict;
use crate::tunnel_controller::build::Certified;
use crate::tunnel_controller::end::End;
use crate::tunnel_controller::observe::Seen;
use crate::tunnel_controller::validate::{
    ValidatedCertificates, ValidatedSecurity, ValidatedTunnel,
};

/// Longest time, in seconds, until a gateway uses a new certificate. If a sixth of the
/// certificate's lifetime is shorter, the sixth applies.
const TAKEN_OVER_SECONDS_MAX: i64 = 300;
/// When this part of the lifetime (1/6) is left, the status reports the missing renewal.
const LEFT: i64 = 6;

/// Whether all gateways use valid certificates, and whether these are the newest certificates.
pub(super) fn valid(tunnel: &ValidatedTunnel, seen: &Seen, certified: &Certified) -> Verdict {
    let no = |code, detail: String| Verdict::no(CERTIFICATES_VALID, code, detail);
    if tunnel.certificates == ValidatedCertificates::None {
        return no(Code::NotRequested, String::new());
    }
    if let Some(problem) = &certified.problem {
        return no(problem.code, problem.detail.clone());
    }
    let (mut answered, mut unknown, mut late) = (false, None, None);
    for (end, record) in records(certified) {
        for (pod, status) in answers(seen, end) {
            answered = true;
            if let Some(what) = files::rejected_credentials(status) {
                return no(Code::FileRejected, format!("pod {}: {what}", pod.name));
            }
            if !files::are_known(status) {
                unknown.get_or_insert((&pod.name, &status.version));
            }
            // A gateway of an older version does not report its certificate.
            let Some(shown) = &status.certificate else {
                continue;
            };
            if let Some((code, what)) = fault(shown, record, certified.now) {
                let found = no(code, format!("pod {}: {what}", pod.name));
                match code {
                    Code::CertificateExpired => return found,
                    _ => drop(late.get_or_insert(found)),
                }
            }
        }
    }
    if let Some(found) = late {
        return found;
    }
    if let Some((until, renewed_by)) = certified.joined_until
        && certified.now >= renewed_by
    {
        let why = certified.not_renewed.as_deref();
        let detail = format!(
            "the join bundle expires at {}, and no newer bundle has arrived through the tunnel: {}. If no newer bundle \
             arrives, copy the newer bundle that the exit's operator has published",
            date(until),
            why.unwrap_or("the exit offers no newer bundle yet")
        );
        return Verdict {
            detail,
            ..Verdict::yes(CERTIFICATES_VALID, Code::CertificateExpiring)
        };
    }
    if let Some((pod, version)) = unknown {
        let detail = format!(
            "pod {pod} has version {version}, which does not report whether its files are in force"
        );
        return Verdict::unknown(CERTIFICATES_VALID, Code::CertificatePending, detail);
    }
    match tunnel.certificates {
        ValidatedCertificates::Managed(..) | ValidatedCertificates::Joined(_) => {
            Verdict::yes(CERTIFICATES_VALID, Code::CertificatesIssued)
        }
        _ if answered => Verdict::yes(CERTIFICATES_VALID, Code::CertificatesProvided),
        _ => {
            let detail = "no gateway answers yet";
            Verdict::unknown(CERTIFICATES_VALID, Code::CertificatePending, detail)
        }
    }
}

fn records(certified: &Certified) -> [(End, Option<&CertificateStatus>); 2] {
    let status = &certified.status;
    [
        (End::Exit, status.exit.as_ref()),
        (End::Entry, status.entry.as_ref()),
    ]
}

/// The problem of the certificate that a gateway uses. `record`: the newest certificate, if it is
/// known.
fn fault(
    shown: &Certificate,
    record: Option<&CertificateStatus>,
    now: i64,
) -> Option<(Code, String)> {
    let (begin, end) = (seconds(&shown.not_before)?, seconds(&shown.not_after)?);
    if end <= now {
        let what = format!("its certificate expired at {}", shown.not_after);
        return Some((Code::CertificateExpired, what));
    }
    let issued_at = record.and_then(|record| Some(record.issued_at.as_ref()?.0.as_second()));
    let newest = record.and_then(|record| Some((record.fingerprint.as_ref()?, issued_at?)));
    // A certificate is valid from a time before its issue, because clocks may be behind.
    let issued =
        record.and_then(|record| Some(record.not_after.as_ref()?.0.as_second() - issued_at?));
    let life = issued.unwrap_or(end - begin);
    if let Some((fingerprint, issued_at)) = newest
        && *fingerprint != shown.fingerprint
        && now - issued_at > TAKEN_OVER_SECONDS_MAX.min(life / LEFT)
    {
        let what = format!(
            "still presents a certificate that expires at {}, although a newer certificate was issued at {}",
            shown.not_after,
            date(issued_at)
        );
        return Some((Code::CertificatePending, what));
    }
    (end - now < life / LEFT).then(|| {
        let what = format!("its certificate expires at {}", shown.not_after);
        (Code::CertificateExpiring, what)
    })
}

fn seconds(date: &str) -> Option<i64> {
    date.parse::<Timestamp>().ok().map(Timestamp::as_second)
}

/// The status of certificates: the issued certificates, or otherwise the gateways' certificate that
/// expires first.
pub(super) fn facts(
    tunnel: &ValidatedTunnel,
    seen: &Seen,
    certified: &Certified,
) -> Option<CertificatesStatus> {
    let shown = |end: End| {
        let gateway = end.gateway(tunnel)?;
        let ValidatedSecurity::MutualTls { secret, .. } = &gateway.security else {
            return None;
        };
        let shown = answers(seen, end).filter_map(|(_, status)| status.certificate.as_ref());
        let first = shown.min_by_key(|shown| seconds(&shown.not_after));
        let identities = tunnel.certificates.identities();
        Some(CertificateStatus {
            secret_name: secret.clone(),
            identity: identities.map(|own| match end {
                End::Entry => own.entry.clone(),
                _ => own.exit.clone(),
            }),
            not_after: first
                .and_then(|shown| shown.not_after.parse::<Timestamp>().ok())
                .map(Time),
            fingerprint: first.map(|shown| shown.fingerprint.clone()),
            ..CertificateStatus::default()
        })
    };
    let status = match tunnel.certificates {
        ValidatedCertificates::None => {
            let left = certified.status.emptied();
            return (left != CertificatesStatus::default()).then_some(left);
        }
        ValidatedCertificates::Managed(..) | ValidatedCertificates::Joined(_) => {
            certified.status.clone()
        }
        ValidatedCertificates::Provided | ValidatedCertificates::Issued(..) => CertificatesStatus {
            entry: shown(End::Entry),
            exit: shown(End::Exit),
            ..certified.status.emptied()
        },
    };
    Some(status)
}
