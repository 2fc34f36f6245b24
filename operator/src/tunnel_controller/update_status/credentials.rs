//! The part of the status about keys and certificates, from the created keys and from the gateways'
//! answers. Pure.

use std::collections::BTreeSet;

use k8s_openapi::jiff::Timestamp;
use muxtunnel_codes::Code;
use muxtunnel_crds::condition::CREDENTIALS_VALID;
use muxtunnel_crds::{KeyOrigin, KeyStatus};
use muxtunnel_gateway_config::status::{Certificate, Status};
use muxtunnel_gateway_config::{GatewayKey, Role};

use super::verdicts::{answers, viewpoint};
use super::{files, named};
use crate::conditions::Verdict;
use crate::tunnel_controller::apply::Applied;
use crate::tunnel_controller::build::Certified;
use crate::tunnel_controller::config_file::mounted_key;
use crate::tunnel_controller::end::End;
use crate::tunnel_controller::keyring::OwnKey;
use crate::tunnel_controller::object::Kind;
use crate::tunnel_controller::observe::{Seen, SeenPod};
use crate::tunnel_controller::validate::{ValidatedObject, ValidatedSecurity};

/// When this part of a certificate's lifetime (1/6) is left, the status reports the missing renewal.
const LEFT: i64 = 6;

/// Whether the keys and certificates exist, and whether all gateways use them. `None`: carriers are
/// not secured.
pub(super) fn valid(
    object: &ValidatedObject,
    applied: &Applied,
    seen: &Seen,
    certified: &Certified,
) -> Option<Verdict> {
    let mut secured = object.gateways.values().map(|gateway| &gateway.security);
    let security = secured.find(|own| **own != ValidatedSecurity::None)?;
    let has_certificates = matches!(security, ValidatedSecurity::Certificates { .. });
    Some(verdict(
        object,
        applied,
        seen,
        (certified, has_certificates),
    ))
}

fn verdict(
    object: &ValidatedObject,
    applied: &Applied,
    seen: &Seen,
    (certified, has_certificates): (&Certified, bool),
) -> Verdict {
    let no = |code, detail: String| Verdict::no(CREDENTIALS_VALID, code, detail);
    if let Some(problem) = &certified.problem {
        return no(problem.code, problem.detail.clone());
    }
    if let Some((code, lost)) = lost(object, &certified.keys) {
        return no(code, lost);
    }
    let (mut answered, mut unknown, mut late) = (false, None, None);
    for end in End::ALL {
        for (pod, status) in answers(seen, end) {
            answered = true;
            if let Some(what) = files::rejected_credentials(status) {
                return no(Code::FileRejected, format!("pod {}: {what}", pod.name));
            }
            // A pod of an earlier template has the keys of that template.
            let is_current = is_of_current_template(object, applied, pod);
            let mismatch = mismatch(&certified.keys, status).filter(|_| is_current);
            if let Some(what) = mismatch {
                return no(Code::KeyMismatch, format!("pod {}: {what}", pod.name));
            }
            if !files::are_known(status) {
                unknown.get_or_insert((&pod.name, &status.version));
            }
            // A gateway of an older version does not report its certificate.
            let Some(shown) = &status.certificate else {
                continue;
            };
            if let Some((code, what)) = fault(shown, certified.now) {
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
    let pending = match has_certificates {
        true => Code::CertificatePending,
        false => Code::KeyPending,
    };
    if let Some((pod, version)) = unknown {
        let detail = format!(
            "pod {pod} has version {version}, which does not report whether its files are in force"
        );
        return Verdict::unknown(CREDENTIALS_VALID, pending, detail);
    }
    let keys = keys(object, applied, &certified.keys, seen);
    if let Some(unreported) = keys.iter().find(|key| key.public_key.is_none()) {
        let (name, origin) = (&unreported.secret_name, unreported.origin);
        let detail = match origin {
            KeyOrigin::Provided => format!(
                "the gateways have not reported one public key of Secret {name} yet: its data key `key` needs a private \
                 key (Ed25519, PKCS #8 in PEM)"
            ),
            KeyOrigin::Created | KeyOrigin::Found => format!(
                "Secret {name} existed before, and no gateway has reported its public key yet"
            ),
        };
        return Verdict::unknown(CREDENTIALS_VALID, pending, detail);
    }
    let are_provided = keys.iter().any(|key| key.origin == KeyOrigin::Provided);
    match (has_certificates, answered) {
        (false, _) if are_provided => Verdict::yes(CREDENTIALS_VALID, Code::KeysProvided),
        (false, _) => Verdict::yes(CREDENTIALS_VALID, Code::KeysCreated),
        (true, true) => Verdict::yes(CREDENTIALS_VALID, Code::CertificatesProvided),
        (true, false) => Verdict::unknown(CREDENTIALS_VALID, pending, "no gateway answers yet"),
    }
}

/// Whether the pod mounts the configuration of its Deployment's present template.
fn is_of_current_template(object: &ValidatedObject, applied: &Applied, pod: &SeenPod) -> bool {
    let name = object.child(pod.end);
    let deployment = named(&applied.deployments, &name);
    let spec = deployment.and_then(|deployment| deployment.spec.as_ref());
    let template = spec.and_then(|spec| spec.template.spec.as_ref());
    let key = template.and_then(|template| mounted_key(template, &name));
    key == pod.config.as_deref()
}

/// A sentence about the first lost key, and its remedies.
fn lost(object: &ValidatedObject, keys: &[OwnKey]) -> Option<(Code, String)> {
    let lost = keys.iter().find(|key| key.is_lost)?;
    let name = &lost.status.secret_name;
    let Some(generation) = lost.status.generation else {
        let detail = format!(
            "Secret {name} of key.secretRefs does not exist. Running gateways keep the key in memory, and new pods wait for \
             the Secret. Create the Secret with a private key (Ed25519, PKCS #8 in PEM) in its data key `key`, or correct \
             key.secretRefs"
        );
        return Some((Code::KeySecretMissing, detail));
    };
    let newest = keys.iter().filter_map(|key| key.status.generation).max()?;
    let other = match object.kind() {
        Kind::Tunnel => "the MuxPeers at the exits of connect",
        Kind::Exit => "connect[].publicKeys of its entries",
        Kind::Rendezvous => "rendezvous.publicKeys of its members",
    };
    let detail = format!(
        "Secret {name} with the key of generation {generation} does not exist. Running gateways keep the key in memory, and \
         new pods wait for it. Restore the Secret, or set key.generations to [{}] and add the new key in \
         status.publicKeys to {other}",
        newest + 1
    );
    Some((Code::KeyLost, detail))
}

/// How the keys that a gateway reports differ from those that the operator created. The gateway's
/// report never replaces a known key, because the admin port is not authenticated.
fn mismatch(keys: &[OwnKey], status: &Status) -> Option<String> {
    let reported = &status.public_keys;
    // A gateway with an older template has fewer keys.
    let unknown = |key: &&OwnKey| {
        let status = &key.status;
        let public = status.public_key.as_ref();
        // The content of an own Secret may change.
        status.origin != KeyOrigin::Provided
            && public.is_some_and(|public| !reported.contains(public))
    };
    if keys.is_empty() || reported.is_empty() || !keys.iter().all(|key| unknown(&key)) {
        return None;
    }
    let key = keys.first()?;
    Some(format!(
        "the gateway has the public key {}, and the operator created Secret {} with another one: somebody replaced the \
         Secret. If that is intended, set key.generations to the next number",
        reported.join(", "),
        key.status.secret_name
    ))
}

/// The key pairs for the status. A Secret that existed before has the public key that all answering
/// gateways report.
pub(super) fn keys(
    object: &ValidatedObject,
    applied: &Applied,
    keys: &[OwnKey],
    seen: &Seen,
) -> Vec<KeyStatus> {
    let role = viewpoint(object);
    let provided = keys
        .iter()
        .filter(|key| key.status.origin == KeyOrigin::Provided);
    if provided.count() > 0 {
        let reported = reported(object, applied, (keys.len(), role), seen);
        // The gateways read changed content one after the other. Until all agree, the last keys stay.
        let mut reported = reported.unwrap_or_default().into_iter();
        let keys = keys.iter().map(|key| {
            let known = key.status.public_key.clone();
            KeyStatus {
                public_key: reported.next().or(known),
                ..key.status.clone()
            }
        });
        return keys.collect();
    }
    let known: BTreeSet<_> = keys
        .iter()
        .filter_map(|key| key.status.public_key.as_ref())
        .collect();
    let answers = || End::ALL.into_iter().flat_map(|end| answers(seen, end));
    // The other keys that each gateway reports, oldest first.
    let others = answers().map(|(_, status)| {
        let others = status.public_keys.iter().rev();
        others
            .filter(|key| !known.contains(key))
            .collect::<Vec<_>>()
    });
    let others: BTreeSet<Vec<_>> = others.collect();
    let agreed = match others.len() {
        1 => others.into_iter().next().unwrap_or_default(),
        _ => Vec::new(),
    };
    let found = keys.iter().filter(|key| key.status.public_key.is_none());
    let is_whole = found.count() == agreed.len();
    let mut agreed = agreed.into_iter();
    let keys = keys.iter().map(|key| {
        let mut status = key.status.clone();
        if status.public_key.is_none() && status.origin == KeyOrigin::Found && is_whole {
            // The report may be false, so it must at least be a key of this role.
            let reported = agreed.next();
            let reported = reported.filter(|key| GatewayKey::of_role(key, role).is_ok());
            status.public_key = reported.cloned();
        }
        status
    });
    keys.collect()
}

/// The keys that all answering gateways of the present template report, the newest last. `None`: they
/// do not agree, or report anything but `count` keys of `role`.
fn reported(
    object: &ValidatedObject,
    applied: &Applied,
    (count, role): (usize, Role),
    seen: &Seen,
) -> Option<Vec<String>> {
    let answers = End::ALL.into_iter().flat_map(|end| answers(seen, end));
    let current = answers.filter(|(pod, _)| is_of_current_template(object, applied, pod));
    let reports: BTreeSet<_> = current.map(|(_, status)| &status.public_keys).collect();
    let [report] = reports.into_iter().collect::<Vec<_>>()[..] else {
        return None;
    };
    let is_whole =
        report.len() == count && (report.iter()).all(|key| GatewayKey::of_role(key, role).is_ok());
    is_whole.then(|| report.iter().rev().cloned().collect())
}

/// The problem of the certificate that a gateway uses.
fn fault(shown: &Certificate, now: i64) -> Option<(Code, String)> {
    let (begin, end) = (seconds(&shown.not_before)?, seconds(&shown.not_after)?);
    if end <= now {
        let what = format!("its certificate expired at {}", shown.not_after);
        return Some((Code::CertificateExpired, what));
    }
    (end - now < (end - begin) / LEFT).then(|| {
        let what = format!("its certificate expires at {}", shown.not_after);
        (Code::CertificateExpiring, what)
    })
}

fn seconds(date: &str) -> Option<i64> {
    date.parse::<Timestamp>().ok().map(Timestamp::as_second)
}
