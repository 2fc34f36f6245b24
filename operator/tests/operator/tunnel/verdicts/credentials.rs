//! The condition `CredentialsValid`, and the keys in the status.

use muxtunnel_crds::{KeyOrigin, KeyStatus};
use muxtunnel_gateway_config::status::Certificate;

use super::*;
use crate::fixtures::tunnel::date;

/// A gateway's certificate. It is valid from one hour before [`NOW`], for two hours and `more`
/// seconds.
fn shown(fingerprint: &str, more: i64) -> Certificate {
    Certificate {
        fingerprint: fingerprint.to_owned(),
        not_before: date(NOW - 3600),
        not_after: date(NOW + 3600 + more),
    }
}

/// A tunnel whose keys the operator created.
fn managed() -> Case {
    case(MANAGED)
}

#[test]
fn keys_of_both_ends_are_valid_and_not_in_the_status() {
    let case = managed();
    let verdict = case.verdict("CredentialsValid");
    assert_eq!(
        (verdict.holds, verdict.code),
        (Some(true), Code::KeysCreated)
    );
    assert_eq!(case.verdict("Ready").holds, Some(true));
    let facts = case.facts();
    assert!(
        facts["publicKeys"].is_null() && facts["keys"].is_null(),
        "{facts}"
    );
}

fn own_key(public_key: Option<&str>) -> OwnKey {
    OwnKey {
        status: KeyStatus {
            secret_name: "office-exit-key-1".to_owned(),
            generation: Some(1),
            public_key: public_key.map(str::to_owned),
            origin: match public_key {
                Some(_) => KeyOrigin::Created,
                None => KeyOrigin::Found,
            },
        },
        is_lost: false,
    }
}

fn exit(public_key: Option<&str>, reported: &[&str]) -> Case {
    let mut case = case(EXIT);
    case.certified.keys = vec![own_key(public_key)];
    case.status(End::Exit).public_keys = reported.iter().map(|&key| key.to_owned()).collect();
    case
}

#[test]
fn a_key_that_existed_before_has_the_public_key_that_the_gateways_report() {
    let silent = exit(None, &[]);
    let verdict = silent.verdict("CredentialsValid");
    assert_eq!((verdict.holds, verdict.code), (None, Code::KeyPending));
    assert!(silent.facts()["publicKeys"].is_null());
    let reported = exit(None, &[EXIT_KEY]);
    assert_eq!(reported.facts()["publicKeys"], json!([EXIT_KEY]));
    assert_eq!(reported.verdict("CredentialsValid").holds, Some(true));
    // Anybody in the cluster can answer in place of a gateway that is gone.
    for wrong in ["a word", ENTRY_KEY] {
        let facts = exit(None, &[wrong]).facts();
        assert!(facts["publicKeys"].is_null(), "{wrong}");
    }
}

fn provided(known: Option<&str>, reported: &[&str]) -> Case {
    let mut case = exit(known, reported);
    let status = &mut case.certified.keys[0].status;
    (status.generation, status.origin) = (None, KeyOrigin::Provided);
    status.secret_name = "sealed".to_owned();
    case
}

#[test]
fn changed_content_of_an_own_secret_is_followed_when_all_gateways_have_it() {
    let known = provided(Some("mtx1a"), &[EXIT_KEY]);
    assert_eq!(known.facts()["publicKeys"], json!([EXIT_KEY]));
    assert_eq!(known.facts()["keys"][0]["origin"], "Provided");
    assert!(known.facts()["keys"][0]["generation"].is_null());
    let verdict = known.verdict("CredentialsValid");
    assert_eq!(
        (verdict.holds, verdict.code),
        (Some(true), Code::KeysProvided)
    );
    // A report that is no key of an exit, and a gateway without an answer, change nothing.
    for reported in [&[ENTRY_KEY][..], &["a word"], &[], &[EXIT_KEY, EXIT_KEY]] {
        let facts = provided(Some("mtx1a"), reported).facts();
        assert_eq!(facts["publicKeys"], json!(["mtx1a"]), "{reported:?}");
    }
    let unknown = provided(None, &[]).verdict("CredentialsValid");
    assert_eq!((unknown.holds, unknown.code), (None, Code::KeyPending));
    assert!(unknown.detail.contains("Secret sealed"), "{unknown:?}");
}

#[test]
fn a_missing_own_secret_is_named_with_its_remedy() {
    let mut case = provided(Some(EXIT_KEY), &[EXIT_KEY]);
    case.certified.keys[0].is_lost = true;
    let verdict = case.verdict("CredentialsValid");
    assert_eq!(
        (verdict.holds, verdict.code),
        (Some(false), Code::KeySecretMissing)
    );
    for words in ["Secret sealed of key.secretRefs", "data key `key`"] {
        assert!(verdict.detail.contains(words), "{verdict:?}");
    }
}

/// The role of the key comes from the kind, and not from the name of the Secret.
#[test]
fn an_entry_whose_name_is_like_the_key_of_an_exit_has_a_key_of_an_entry() {
    let mut case = case(ELSEWHERE);
    let mut key = own_key(None);
    key.status.secret_name = "a-exit-key-b-entry-key-1".to_owned();
    case.certified.keys = vec![key];
    case.status(End::Entry).public_keys = vec![ENTRY_KEY.to_owned()];
    assert_eq!(case.facts()["publicKeys"], json!([ENTRY_KEY]));
}

/// The admin port is not authenticated.
#[test]
fn a_report_never_replaces_a_key_that_the_operator_created() {
    let case = exit(Some("mtx1a"), &["mtx1b"]);
    let verdict = case.verdict("CredentialsValid");
    assert_eq!(
        (verdict.holds, verdict.code),
        (Some(false), Code::KeyMismatch)
    );
    assert!(verdict.detail.contains("mtx1b"), "{verdict:?}");
    assert_eq!(case.facts()["publicKeys"], json!(["mtx1a"]));
    // During a rotation, gateways have the older key, the newer key or both.
    let mut case = exit(Some("mtx1a"), &["mtx1a"]);
    let mut newer = own_key(Some("mtx1b"));
    newer.status.generation = Some(2);
    case.certified.keys.push(newer);
    assert_eq!(case.verdict("CredentialsValid").holds, Some(true));
    assert_eq!(case.facts()["publicKeys"], json!(["mtx1b", "mtx1a"]));
}

#[test]
fn a_lost_key_is_named_with_both_remedies() {
    let mut case = exit(Some("mtx1a"), &["mtx1a"]);
    case.certified.keys[0].is_lost = true;
    for type_ in ["CredentialsValid", "Ready"] {
        let verdict = case.verdict(type_);
        assert_eq!((verdict.holds, verdict.code), (Some(false), Code::KeyLost));
        for words in [
            "Secret office-exit-key-1",
            "Restore",
            "key.generations to [2]",
        ] {
            assert!(verdict.detail.contains(words), "{verdict:?}");
        }
    }
}

#[test]
fn an_expired_certificate_and_one_that_is_about_to_expire_are_named() {
    for (more, code, says) in [
        (-3600, Code::CertificateExpired, "expired at"),
        (-3000, Code::CertificateExpiring, "expires at"),
    ] {
        let mut case = managed();
        case.status(End::Entry).certificate = Some(shown("entry", more));
        let verdict = case.verdict("CredentialsValid");
        assert_eq!((verdict.holds, verdict.code), (Some(false), code));
        let words = format!(
            "pod office-entry-0: its certificate {says} {}",
            date(NOW + 3600 + more)
        );
        assert_eq!(verdict.detail, words);
    }
}

#[test]
fn certificates_of_somebody_else_are_judged_by_what_the_gateways_show() {
    let provided = "security: {mode: Certificates, certificates: {entry: {secretRef: {name: a}}, \
                    exit: {secretRef: {name: b}}, entryNames: [x], exitNames: [y]}}";
    let spec = MANAGED.replace("carrier: {protocol: JMUX}", provided);
    let mut silent = case(&spec);
    for end in [End::Entry, End::Exit] {
        silent.pod(end).answer = None;
    }
    assert_eq!(silent.verdict("CredentialsValid").holds, None);
    let mut case = case(&spec);
    case.status(End::Exit).certificate = Some(shown("theirs", 0));
    let verdict = case.verdict("CredentialsValid");
    assert_eq!(
        (verdict.holds, verdict.code),
        (Some(true), Code::CertificatesProvided)
    );
}

#[test]
fn what_keeps_certificates_from_being_issued_is_why_the_tunnel_is_not_ready() {
    let mut case = managed();
    case.certified.problem = Some(Problem {
        code: Code::IssuerMissing,
        detail: "cert-manager is not installed".to_owned(),
    });
    for type_ in ["CredentialsValid", "Ready"] {
        let verdict = case.verdict(type_);
        assert_eq!(
            (verdict.holds, verdict.code),
            (Some(false), Code::IssuerMissing)
        );
        assert_eq!(verdict.detail, "cert-manager is not installed");
    }
}
