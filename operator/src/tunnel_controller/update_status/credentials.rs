//! The part of the status about keys and certificates, from the created keys and from the gateways'
//! answers. Pure.

use std::collections::BTreeSet;

use k8s_openapi::jiff::Timestamp;
use muxtunnel_codes::Code;
use muxtunnel_crds::condition::CREDENTIALS_VALID;
use muxtunnel_crds::{KeyOrigin, KeyStatus};
use muxtunnel_gateway_config::status::{Certificate, Status};
use muxtunnel_gateway_config::{GatewayKey, Role};

use super::files;
use super::verdicts::viewpoint;
use crate::conditions::Verdict;
use crate::tunnel_controller::config_file::mounted_key;
use crate::tunnel_controller::keyring::OwnKey;
use crate::tunnel_controller::object::Kind;
use crate::tunnel_controller::observe::SeenPod;
use crate::tunnel_controller::problem::Problem;
use crate::tunnel_controller::publish::Observation;
use crate::tunnel_controller::validate::{ValidatedObject, ValidatedSecurity};

/// When this part of a certificate's lifetime (1/6) is left, the status reports the missing renewal.
const LEFT: i64 = 6;

/// Whether the keys and certificates exist, and whether all gateways use them. `None`: carriers are
/// not secured.
pub(super) fn valid(facts: &Observation) -> Option<Verdict> {
    let mut secured = facts
        .object
        .gateways
        .values()
        .map(|gateway| &gateway.security);
    let security = secured.find(|own| **own != ValidatedSecurity::None)?;
    if let Some(problem) = problem(facts) {
        return Some(problem.no(CREDENTIALS_VALID));
    }
    let has_certificates = matches!(security, ValidatedSecurity::Certificates { .. });
    let pending = match has_certificates {
        true => Code::CertificatePending,
        false => Code::KeyPending,
    };
    let unknown = |detail| Some(Verdict::unknown(CREDENTIALS_VALID, pending, detail));
    let mut answers = facts.seen.all_answers();
    // A gateway of an older version does not report the state of its files.
    if let Some((pod, status)) = answers.find(|(_, status)| status.files.is_none()) {
        let (pod, version) = (&pod.name, &status.version);
        return unknown(format!(
            "pod {pod} has version {version}, which does not report whether its files are in force"
        ));
    }
    let keys = keys(facts);
    if let Some(unreported) = keys.iter().find(|key| key.public_key.is_none()) {
        let name = &unreported.secret_name;
        return unknown(match unreported.origin {
            KeyOrigin::Provided => format!(
                "the gateways have not reported one public key of Secret {name} yet: its data key `key` needs a private \
                 key (Ed25519, PKCS #8 in PEM)"
            ),
            KeyOrigin::Created | KeyOrigin::Found => format!(
                "Secret {name} existed before, and no gateway has reported its public key yet"
            ),
        });
    }
    if has_certificates && facts.seen.all_answers().next().is_none() {
        return unknown("no gateway answers yet".to_owned());
    }
    let are_provided = keys.iter().any(|key| key.origin == KeyOrigin::Provided);
    let code = match has_certificates {
        true => Code::CertificatesProvided,
        false if are_provided => Code::KeysProvided,
        false => Code::KeysCreated,
    };
    Some(Verdict::yes(CREDENTIALS_VALID, code))
}

/// The first problem of the keys and certificates. A certificate that is about to expire comes last.
fn problem(facts: &Observation) -> Option<Problem> {
    let certified = &facts.certified;
    let known = certified.problem.clone();
    if let Some(problem) = known.or_else(|| lost(&facts.object, &certified.keys)) {
        return Some(problem);
    }
    let mut late = None;
    for (pod, status) in facts.seen.all_answers() {
        let of_pod = |code, what: String| {
            let detail = format!("pod {}: {what}", pod.name);
            Some(Problem::new(code, detail))
        };
        if let Some(what) = files::rejected_credentials(status) {
            return of_pod(Code::FileRejected, what);
        }
        // A pod of an earlier template has the keys of that template.
        let is_current = is_of_current_template(facts, pod);
        if let Some(what) = mismatch(&certified.keys, status).filter(|_| is_current) {
            return of_pod(Code::KeyMismatch, what);
        }
        // A gateway of an older version does not report its certificate.
        let shown = status.certificate.as_ref();
        match shown.and_then(|shown| fault(shown, certified.now)) {
            Some((Code::CertificateExpired, what)) => {
                return of_pod(Code::CertificateExpired, what);
            }
            Some((code, what)) => late = late.or_else(|| of_pod(code, what)),
            None => {}
        }
    }
    late
}

/// Whether the pod mounts the configuration of its Deployment's present template.
fn is_of_current_template(facts: &Observation, pod: &SeenPod) -> bool {
    let spec = facts.deployment(pod.end).and_then(|one| one.spec.as_ref());
    let template = spec.and_then(|spec| spec.template.spec.as_ref());
    let name = facts.object.child(pod.end);
    template.and_then(|template| mounted_key(template, &name)) == pod.config.as_deref()
}

/// The first lost key, and its remedies.
fn lost(object: &ValidatedObject, keys: &[OwnKey]) -> Option<Problem> {
    let lost = keys.iter().find(|key| key.is_lost)?;
    let name = &lost.status.secret_name;
    let Some(generation) = lost.status.generation else {
        let detail = format!(
            "Secret {name} of key.secretRefs does not exist. Running gateways keep the key in memory, and new pods wait for \
             the Secret. Create the Secret with a private key (Ed25519, PKCS #8 in PEM) in its data key `key`, or correct \
             key.secretRefs"
        );
        return Some(Problem::new(Code::KeySecretMissing, detail));
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
    Some(Problem::new(Code::KeyLost, detail))
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
pub(super) fn keys(facts: &Observation) -> Vec<KeyStatus> {
    let (role, keys) = (viewpoint(&facts.object), &facts.certified.keys);
    let mut statuses: Vec<_> = keys.iter().map(|key| key.status.clone()).collect();
    if statuses.iter().any(|key| key.origin == KeyOrigin::Provided) {
        // The gateways read changed content one after the other. Until all agree, the last keys stay.
        let reported = reported(facts, (keys.len(), role)).unwrap_or_default();
        for (status, reported) in statuses.iter_mut().zip(reported) {
            status.public_key = Some(reported);
        }
        return statuses;
    }
    let known: BTreeSet<_> = keys
        .iter()
        .filter_map(|key| key.status.public_key.as_ref())
        .collect();
    // The other keys that each gateway reports, oldest first.
    let others = facts.seen.all_answers().map(|(_, status)| {
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
    let found = statuses.iter_mut().filter(|key| key.public_key.is_none());
    let found: Vec<_> = found.collect();
    if found.len() == agreed.len() {
        for (status, reported) in found.into_iter().zip(agreed) {
            // The report may be false, so it must at least be a key of this role.
            if status.origin == KeyOrigin::Found && GatewayKey::of_role(reported, role).is_ok() {
                status.public_key = Some(reported.clone());
            }
        }
    }
    statuses
}

/// The keys that all answering gateways of the present template report, the newest last. `None`: they
/// do not agree, or report anything but `count` keys of `role`.
fn reported(facts: &Observation, (count, role): (usize, Role)) -> Option<Vec<String>> {
    let current = facts
        .seen
        .all_answers()
        .filter(|(pod, _)| is_of_current_template(facts, pod));
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
