//! Files that gateways reject.

use muxtunnel_gateway_config::status::{File, FileUse};

use super::causes::PROVIDED;
use super::*;

/// A file whose newest content the gateway of `end` rejects.
fn rejected(case: &mut Case, end: End, purpose: FileUse) {
    case.status(end).files = Some(vec![
        File {
            path: "/etc/muxgate/config.yaml".to_owned(),
            purpose: FileUse::Configuration,
            error: None,
        },
        File {
            path: "/tls/tls.key".to_owned(),
            purpose,
            error: Some("MT0231: /tls/tls.key: the key does not fit the certificate".to_owned()),
        },
    ]);
}

#[test]
fn a_file_that_a_gateway_rejects_is_a_cause_although_all_gateways_are_ready() {
    let detail =
        "the gateway keeps the last usable content of a file: MT0231: /tls/tls.key: the key";
    for end in [End::Entry, End::Exit] {
        let mut case = case(PROVIDED);
        case.expect(
            "CredentialsValid",
            Some(true),
            Code::CertificatesProvided,
            "",
        );
        rejected(&mut case, end, FileUse::Credentials);
        case.expect("Ready", Some(false), Code::FileRejected, detail);
        case.expect("CredentialsValid", Some(false), Code::FileRejected, detail);
        // Running gateways still take connections.
        case.expect("Available", Some(true), Code::Reconciled, "");
    }
    for purpose in [FileUse::Users, FileUse::Ssh, FileUse::Other] {
        let mut case = case(PROVIDED);
        rejected(&mut case, End::Entry, purpose);
        case.expect("Ready", Some(false), Code::FileRejected, detail);
        case.expect(
            "CredentialsValid",
            Some(true),
            Code::CertificatesProvided,
            "",
        );
    }
}

#[test]
fn the_files_of_an_older_gateway_are_unknown() {
    let mut case = case(PROVIDED);
    case.status(End::Exit).files = None;
    let detail = "pod office-tunnel-exit-0 has version 0.1.0, which does not report whether its files are in force";
    case.expect("CredentialsValid", None, Code::CertificatePending, detail);
    case.expect("Ready", None, Code::CertificatePending, detail);
    case.expect("Available", Some(true), Code::Reconciled, "");
}
