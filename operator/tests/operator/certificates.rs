//! Tests with real handshakes which gateways accept which certificates. Also tests join bundles
//! that one operator passes to another operator.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::Secret;
use muxtunnel_codes::Code;
use muxtunnel_gateway_config::OFFER_BYTES_MAX;
use muxtunnel_operator::certificates::authority::{Authority, Purpose, Schedule, Seed, Subject};
use muxtunnel_operator::certificates::identity::{identity, trust_domain};
use muxtunnel_operator::certificates::join::{
    Bundle, ENTRY_AUTHORITY, ENTRY_KEY, EXIT_AUTHORITIES, date, is_address,
};
use muxtunnel_operator::certificates::offer::{Kept, accept, offer};
use muxtunnel_testkit::handshake::{Files, shake_hands};
use rustls::{CertificateError, Error};

const MADE: i64 = 1_900_000_000;
const DAY: i64 = 24 * 3600;
const YEAR: i64 = 365 * DAY;

fn seed() -> Seed {
    Seed::of(&[7; 32]).unwrap()
}

fn subject() -> Subject {
    Subject {
        uid: "0f5c".to_owned(),
        created: MADE,
        generation: 0,
        life: YEAR,
    }
}

fn pems(authorities: &[Authority]) -> String {
    authorities.iter().map(|one| one.pem.as_str()).collect()
}

fn name(side: &str) -> String {
    identity("example.org", "site", "office", side)
}

fn ca(subject: &Subject, purpose: Purpose, now: i64) -> String {
    pems(&subject.trusted(&seed(), purpose, now).unwrap())
}

/// The files of a gateway of `subject` at `now`.
fn files(subject: &Subject, purpose: Purpose, now: i64) -> Files {
    let (own, peer, other) = match purpose {
        Purpose::Entry => ("entry", "exit", Purpose::Exit),
        Purpose::Exit => ("exit", "entry", Purpose::Entry),
    };
    let authority = subject.signing(&seed(), purpose, now).unwrap();
    let leaf = authority.issue(&name(own), purpose, now, DAY).unwrap();
    Files {
        certificate: leaf.pem,
        key: leaf.key_pem.to_string(),
        ca: ca(subject, other, now),
        peer: name(peer),
    }
}

fn refused(result: Result<(), Error>) -> CertificateError {
    match result {
        Err(Error::InvalidCertificate(error)) => error,
        other => panic!("{other:?}"),
    }
}

/// Whether the error means an expired certificate. Several errors do.
fn is_expired(error: &CertificateError) -> bool {
    matches!(
        error,
        CertificateError::Expired | CertificateError::ExpiredContext { .. }
    )
}

#[test]
fn both_sides_of_a_tunnel_take_each_other() {
    let (entry, exit) = (
        files(&subject(), Purpose::Entry, MADE),
        files(&subject(), Purpose::Exit, MADE),
    );
    shake_hands(&entry, &exit, MADE).unwrap();
    // The clocks of the gateways may differ.
    shake_hands(&entry, &exit, MADE - 299).unwrap();
    shake_hands(&entry, &exit, MADE + DAY).unwrap();
}

#[test]
fn a_certificate_of_another_tunnel_is_worth_nothing() {
    let other = Subject {
        uid: "1a2b".to_owned(),
        ..subject()
    };
    let (entry, exit) = (
        files(&subject(), Purpose::Entry, MADE),
        files(&subject(), Purpose::Exit, MADE),
    );
    // A certificate of another authority is rejected even if its name is correct.
    let foreign = files(&other, Purpose::Entry, MADE);
    let foreign = Files {
        ca: entry.ca.clone(),
        ..foreign
    };
    assert_eq!(
        refused(shake_hands(&foreign, &exit, MADE)),
        CertificateError::UnknownIssuer
    );
    let foreign = files(&other, Purpose::Exit, MADE);
    let foreign = Files {
        ca: exit.ca.clone(),
        ..foreign
    };
    assert_eq!(
        refused(shake_hands(&entry, &foreign, MADE)),
        CertificateError::UnknownIssuer
    );
}

#[test]
fn a_side_cannot_play_the_other_one() {
    let (entry, exit) = (
        files(&subject(), Purpose::Entry, MADE),
        files(&subject(), Purpose::Exit, MADE),
    );
    let posing = Files {
        ca: exit.ca.clone(),
        peer: exit.peer.clone(),
        ..entry.clone()
    };
    let error = refused(shake_hands(&entry, &posing, MADE));
    assert!(format!("{error:?}").contains("Purpose"), "{error:?}");
    // A holder of a bundle has the authority of entries, and may issue any certificate with it.
    let authority = subject().signing(&seed(), Purpose::Entry, MADE).unwrap();
    let leaf = authority.issue(&name("exit"), Purpose::Exit, MADE, DAY);
    let leaf = leaf.unwrap();
    let posing = Files {
        certificate: leaf.pem,
        key: leaf.key_pem.to_string(),
        ..posing
    };
    assert_eq!(
        refused(shake_hands(&entry, &posing, MADE)),
        CertificateError::UnknownIssuer
    );
}

#[test]
fn a_name_that_is_not_the_other_sides_is_refused() {
    let (entry, exit) = (
        files(&subject(), Purpose::Entry, MADE),
        files(&subject(), Purpose::Exit, MADE),
    );
    let entry = Files {
        peer: identity("example.org", "site", "office2", "exit"),
        ..entry
    };
    assert_eq!(
        refused(shake_hands(&entry, &exit, MADE)),
        CertificateError::NotValidForName
    );
}

#[test]
fn an_expired_certificate_is_refused() {
    let (entry, exit) = (
        files(&subject(), Purpose::Entry, MADE),
        files(&subject(), Purpose::Exit, MADE + DAY),
    );
    let error = refused(shake_hands(&entry, &exit, MADE + DAY + 1));
    assert!(is_expired(&error), "{error:?}");
}

#[test]
fn a_raised_generation_shuts_out_the_entries_of_former_ones_and_no_exit() {
    let raised = Subject {
        generation: 1,
        ..subject()
    };
    let (before, exit) = (
        files(&subject(), Purpose::Entry, MADE),
        files(&raised, Purpose::Exit, MADE),
    );
    assert_eq!(
        refused(shake_hands(&before, &exit, MADE)),
        CertificateError::UnknownIssuer
    );
    shake_hands(&files(&raised, Purpose::Entry, MADE), &exit, MADE).unwrap();
    let exits = |subject: &Subject| ca(subject, Purpose::Exit, MADE);
    assert_eq!(exits(&raised), exits(&subject()));
}

/// These values must never change: an operator with other values would invalidate every bundle, and
/// its gateways would not accept gateways with earlier certificates.
#[test]
fn what_is_derived_from_a_seed_is_the_same_for_ever() {
    let entry = subject().signing(&seed(), Purpose::Entry, MADE).unwrap();
    let exit = subject().signing(&seed(), Purpose::Exit, MADE).unwrap();
    let again = subject()
        .signing(&seed(), Purpose::Entry, MADE + 1)
        .unwrap();
    assert_eq!((&again.pem, &*again.key_pem), (&entry.pem, &*entry.key_pem));
    assert_eq!(
        [entry.fingerprint.as_str(), &exit.fingerprint],
        [ENTRY_FINGERPRINT, EXIT_FINGERPRINT]
    );
}

const ENTRY_FINGERPRINT: &str = "4ec499c881608f067ce1d1d2e1caff16e772e1d4a4b64aa0573d28ca6b4c9d1d";
const EXIT_FINGERPRINT: &str = "dffb13406acb20a286e7150aeea7767083d02689d90c5aeb509b8b90e0739965";

#[test]
fn seeds_tunnels_sides_generations_and_turns_all_have_keys_of_their_own() {
    let other = Seed::of(&[8; 32]).unwrap();
    let signing =
        |seed: &Seed, subject: &Subject, purpose, now| subject.signing(seed, purpose, now).unwrap();
    let keys = [
        signing(&seed(), &subject(), Purpose::Entry, MADE),
        signing(&seed(), &subject(), Purpose::Exit, MADE),
        signing(&other, &subject(), Purpose::Entry, MADE),
        signing(
            &seed(),
            &Subject {
                uid: "1a2b".to_owned(),
                ..subject()
            },
            Purpose::Entry,
            MADE,
        ),
        signing(
            &seed(),
            &Subject {
                generation: 1,
                ..subject()
            },
            Purpose::Entry,
            MADE,
        ),
        signing(&seed(), &subject(), Purpose::Entry, MADE + YEAR),
        // Longer lifetimes do not bring back an earlier authority.
        signing(
            &seed(),
            &Subject {
                life: 3 * YEAR,
                ..subject()
            },
            Purpose::Entry,
            MADE + YEAR,
        ),
        signing(
            &seed(),
            &Subject {
                life: 3 * YEAR,
                ..subject()
            },
            Purpose::Exit,
            MADE,
        ),
    ];
    let distinct: std::collections::BTreeSet<_> =
        keys.iter().map(|one| one.key_pem.to_string()).collect();
    assert_eq!(distinct.len(), keys.len());
}

#[test]
fn the_next_authority_is_trusted_before_it_signs_and_the_last_one_for_as_long_as_it_lives() {
    let schedule = Schedule::new(0, 300);
    for (now, signing, trusted) in [
        (-5, 0, vec![0]),
        (0, 0, vec![0]),
        (169, 0, vec![0]),
        (170, 0, vec![0, 1]),
        (199, 0, vec![0, 1]),
        (200, 1, vec![0, 1]),
        (299, 1, vec![0, 1]),
        (300, 1, vec![1]),
        (370, 1, vec![1, 2]),
        (400, 2, vec![1, 2]),
        (500, 2, vec![2]),
    ] {
        assert_eq!(
            (schedule.signing(now), schedule.trusted(now)),
            (signing, trusted),
            "{now}"
        );
    }
}

#[test]
fn whoever_is_trusted_at_any_moment_takes_whoever_signed_within_the_last_day() {
    // Gateways get new files at different times, at most two thirds of a certificate's lifetime
    // apart.
    let short = Subject {
        life: 10 * DAY,
        ..subject()
    };
    for hour in (0..40 * 24).step_by(7) {
        let now = MADE + hour * 3600;
        for before in [0, DAY * 2 / 3] {
            let entry = files(&short, Purpose::Entry, (now - before).max(MADE));
            let exit = files(&short, Purpose::Exit, now);
            shake_hands(&entry, &exit, now).unwrap_or_else(|error| panic!("hour {hour}: {error}"));
        }
    }
}

/// A valid bundle.
pub(crate) fn any_bundle() -> Bundle {
    bundle(&subject(), MADE)
}

fn bundle(subject: &Subject, now: i64) -> Bundle {
    Bundle {
        address: Some("exit.example.com:64000".to_owned()),
        exit_authorities: ca(subject, Purpose::Exit, now),
        entry_authority: subject.signing(&seed(), Purpose::Entry, now).unwrap(),
        exit_identity: name("exit"),
        entry_identity: name("entry"),
    }
}

fn secret(bundle: &Bundle) -> Secret {
    Secret {
        type_: Some("muxtunnel.dev/join".to_owned()),
        data: Some(bundle.data()),
        ..Secret::default()
    }
}

#[test]
fn an_entry_signs_for_itself_by_a_bundle_that_was_copied() {
    let written = bundle(&subject(), MADE);
    let read = Bundle::read(&secret(&written)).unwrap();
    assert_eq!(read.data(), written.data());
    assert_eq!(
        (read.digest(), read.expires()),
        (written.digest(), MADE + YEAR)
    );
    let leaf = read
        .entry_authority
        .issue(&read.entry_identity, Purpose::Entry, MADE, DAY)
        .unwrap();
    let entry = Files {
        certificate: leaf.pem,
        key: leaf.key_pem.to_string(),
        ca: read.exit_authorities,
        peer: read.exit_identity,
    };
    shake_hands(&entry, &files(&subject(), Purpose::Exit, MADE), MADE).unwrap();
}

#[test]
fn a_bundle_serves_until_it_expires_whatever_the_exit_does_meanwhile_and_a_newer_one_comes_in_time()
{
    let first = bundle(&subject(), MADE);
    for days in (0..365).step_by(5) {
        let now = MADE + days * DAY;
        let leaf = first
            .entry_authority
            .issue(&first.entry_identity, Purpose::Entry, now, DAY)
            .unwrap();
        let entry = Files {
            certificate: leaf.pem,
            key: leaf.key_pem.to_string(),
            ca: first.exit_authorities.clone(),
            peer: name("exit"),
        };
        shake_hands(&entry, &files(&subject(), Purpose::Exit, now), now)
            .unwrap_or_else(|error| panic!("day {days}: {error}"));
    }
    let read = Bundle::read(&secret(&first)).unwrap();
    let newer = bundle(&subject(), read.renewed_by());
    assert!(newer.expires() > first.expires());
    assert!(read.renewed_by() < first.expires() - 60 * DAY);
}

#[test]
fn a_certificate_by_a_bundle_never_outlives_it() {
    let bundle = bundle(&subject(), MADE);
    let late = bundle.expires() - 60;
    let leaf = bundle
        .entry_authority
        .issue(&name("entry"), Purpose::Entry, late, DAY)
        .unwrap();
    assert_eq!(leaf.not_after, bundle.expires());
}

#[test]
fn a_broken_bundle_is_refused_and_what_is_wrong_is_said_without_its_contents() {
    let good = bundle(&subject(), MADE);
    let other = bundle(
        &Subject {
            generation: 1,
            ..subject()
        },
        MADE,
    );
    let spoilt = |key: &str, value: Option<&[u8]>| {
        let mut secret = secret(&good);
        let data = secret.data.as_mut().unwrap();
        match value {
            Some(value) => data.insert(key.to_owned(), k8s_openapi::ByteString(value.to_vec())),
            None => data.remove(key),
        };
        secret
    };
    let leaf = good
        .entry_authority
        .issue(&name("entry"), Purpose::Entry, MADE, DAY)
        .unwrap();
    let long = vec![b'a'; 1 << 17];
    let invalid = Code::JoinBundleInvalid;
    let opaque = Secret {
        type_: Some("Opaque".to_owned()),
        ..secret(&good)
    };
    let empty = Secret {
        data: None,
        ..secret(&good)
    };
    let none = Secret::default();
    for (secret, now, code, what) in [
        (none, MADE, invalid, "is not of type muxtunnel.dev/join"),
        (opaque, MADE, invalid, "is not of type muxtunnel.dev/join"),
        (empty, MADE, invalid, "has no key ca.crt"),
        (
            spoilt(EXIT_AUTHORITIES, None),
            MADE,
            invalid,
            "has no key ca.crt",
        ),
        (
            spoilt(ENTRY_AUTHORITY, None),
            MADE,
            invalid,
            "has no key tls.crt",
        ),
        (spoilt(ENTRY_KEY, None), MADE, invalid, "has no key tls.key"),
        (
            spoilt("exit-identity", None),
            MADE,
            invalid,
            "has no key exit-identity",
        ),
        (
            spoilt("entry-identity", None),
            MADE,
            invalid,
            "has no key entry-identity",
        ),
        (
            spoilt(EXIT_AUTHORITIES, Some(b"hunter2")),
            MADE,
            invalid,
            "without a valid authority in PEM",
        ),
        (
            spoilt(EXIT_AUTHORITIES, Some(&long)),
            MADE,
            invalid,
            "of more than 65536 bytes",
        ),
        (
            spoilt(EXIT_AUTHORITIES, Some(leaf.pem.as_bytes())),
            MADE,
            invalid,
            "without a valid authority in PEM",
        ),
        (
            spoilt(ENTRY_AUTHORITY, Some(b"hunter2")),
            MADE,
            invalid,
            "not a certificate in PEM",
        ),
        (
            spoilt(ENTRY_AUTHORITY, Some(leaf.pem.as_bytes())),
            MADE,
            invalid,
            "is not an authority",
        ),
        (
            spoilt(ENTRY_KEY, Some(b"hunter2")),
            MADE,
            invalid,
            "is not a private key in PEM",
        ),
        (
            spoilt(ENTRY_KEY, Some(b"hunter2\xff")),
            MADE,
            invalid,
            "that is not UTF-8",
        ),
        (
            spoilt(ENTRY_KEY, Some(other.entry_authority.key_pem.as_bytes())),
            MADE,
            invalid,
            "does not match the certificate",
        ),
        (
            spoilt("exit-identity", Some(b"hunter2")),
            MADE,
            invalid,
            "not a SPIFFE ID",
        ),
        (
            spoilt("entry-identity", Some(b"spiffe://a\nb")),
            MADE,
            invalid,
            "not a SPIFFE ID",
        ),
        (
            spoilt("address", Some(b"hunter2")),
            MADE,
            invalid,
            "not of the form host:port",
        ),
        (
            secret(&good),
            MADE + YEAR,
            Code::JoinBundleExpired,
            "expired at",
        ),
    ] {
        let problem = Bundle::read(&secret).and_then(|bundle| bundle.good_at(now));
        let problem = problem.unwrap_err();
        assert_eq!(problem.code, code, "{problem:?}");
        assert!(problem.what.contains(what), "{what}: {problem:?}");
        assert!(!problem.what.contains("hunter"), "{problem:?}");
    }
    let unaddressed = Bundle::read(&spoilt("address", None)).unwrap();
    assert_eq!(unaddressed.address, None);
}

/// The exit's offer of `subject` at `now`.
fn offered(subject: &Subject, now: i64) -> String {
    let holders = subject.published(&seed(), now).unwrap();
    let signer = subject.signing(&seed(), Purpose::Exit, now).unwrap();
    offer(&bundle(subject, now), &holders, &signer).unwrap()
}

#[test]
fn a_chain_of_offers_leads_from_one_bundle_to_the_next_for_a_hundred_years() {
    let mut own = bundle(&subject(), MADE);
    let mut bundles = 1;
    for day in (0..100 * 365).step_by(30) {
        let now = MADE + day * DAY;
        let offer = offered(&subject(), now);
        assert!(offer.len() < OFFER_BYTES_MAX / 2);
        if let Some(newer) = accept(&offer, &own).unwrap() {
            assert!(newer.expires() >= own.expires());
            bundles += i32::from(newer.expires() > own.expires());
            own = newer;
        }
        assert!(own.good_at(now).is_ok(), "day {day}");
        let leaf = own
            .entry_authority
            .issue(&own.entry_identity, Purpose::Entry, now, DAY)
            .unwrap();
        let entry = Files {
            certificate: leaf.pem,
            key: leaf.key_pem.to_string(),
            ca: own.exit_authorities.clone(),
            peer: own.exit_identity.clone(),
        };
        shake_hands(&entry, &files(&subject(), Purpose::Exit, now), now)
            .unwrap_or_else(|error| panic!("day {day}: {error}"));
    }
    assert!(bundles >= 149, "{bundles}");
}

#[test]
fn an_offer_is_the_same_each_time_and_shows_nothing_of_what_is_in_it() {
    let late = MADE + YEAR * 7 / 10;
    let offer = offered(&subject(), late);
    assert_eq!(offer, offered(&subject(), late));
    let bundle = bundle(&subject(), late);
    for (key, value) in bundle.data() {
        let value = STANDARD.encode(&value.0);
        assert!(!offer.contains(&value[..value.len().min(20)]), "{key}");
    }
    // One signature is for holders of the current bundle, and one for holders of the previous
    // bundle.
    assert_eq!(offer.matches("signature").count(), 2);
}

#[test]
fn an_offer_is_taken_from_the_own_exit_alone_by_holders_of_a_bundle_that_is_good_alone() {
    let late = MADE + YEAR * 7 / 10;
    let own = bundle(&subject(), MADE);
    let good = offered(&subject(), late);
    assert!(accept(&good, &own).unwrap().is_some());
    assert!(accept(&good, &bundle(&subject(), late)).unwrap().is_none());
    // The offered bundle is older than the entry's own bundle.
    assert!(accept(&offered(&subject(), MADE), &bundle(&subject(), late)).is_err());
    let revoked = Subject {
        generation: 1,
        ..subject()
    };
    let other = Subject {
        uid: "uid-other".to_owned(),
        ..subject()
    };
    for (offer, says) in [
        (String::new(), "cannot parse the exit's offer"),
        (
            "[".repeat(OFFER_BYTES_MAX + 1),
            "cannot parse the exit's offer",
        ),
        (
            "[]".to_owned(),
            "no bundle for entries that joined with this bundle",
        ),
        (
            offered(&revoked, late),
            "no bundle for entries that joined with this bundle",
        ),
        (
            offered(&other, late),
            "no bundle for entries that joined with this bundle",
        ),
        // Two years later, the previous bundle has expired.
        (
            offered(&subject(), MADE + 2 * YEAR),
            "no bundle for entries that joined with this bundle",
        ),
    ] {
        let error = accept(&offer, &own).unwrap_err();
        assert!(error.contains(says), "{says}: {error}");
    }
    // An attacker with the bundle has the sealing key, and signs with the bundle's authority.
    let holders = [subject().signing(&seed(), Purpose::Entry, MADE).unwrap()];
    let forged = offer(&bundle(&other, late), &holders, &holders[0]).unwrap();
    let error = accept(&forged, &own).unwrap_err();
    assert!(
        error.contains("not signed by an authority of exits"),
        "{error}"
    );
    // The exit itself offers the bundle of another tunnel.
    let exit = subject().signing(&seed(), Purpose::Exit, late).unwrap();
    let foreign = Bundle {
        exit_identity: name("elsewhere"),
        ..bundle(&subject(), late)
    };
    let error = accept(&offer(&foreign, &holders, &exit).unwrap(), &own).unwrap_err();
    assert!(error.contains("for another tunnel"), "{error}");
    // A change of any byte is detected.
    let mut sealed: serde_json::Value = serde_json::from_str(&good).unwrap();
    for part in ["bundle", "signature"] {
        let whole = sealed[0][part].clone();
        let mut text = STANDARD.decode(whole.as_str().unwrap()).unwrap();
        text[7] ^= 1;
        sealed[0][part] = STANDARD.encode(text).into();
        assert!(accept(&sealed.to_string(), &own).is_err(), "{part}");
        sealed[0][part] = whole;
    }
    assert!(accept(&sealed.to_string(), &own).unwrap().is_some());
}

#[test]
fn a_kept_bundle_counts_with_its_copy_and_its_operator_alone() {
    let (own, newer) = (
        bundle(&subject(), MADE),
        bundle(&subject(), MADE + YEAR * 7 / 10),
    );
    let key = seed().storage_key("uid-near").unwrap();
    let kept = Kept::seal(&key, &own.digest(), &newer).unwrap();
    assert_eq!(kept, Kept::seal(&key, &own.digest(), &newer).unwrap());
    let read = Kept::open(&key, &own.digest(), &kept).unwrap();
    assert_eq!(read.data(), newer.data());
    assert!(Kept::open(&key, &newer.digest(), &kept).is_none());
    let others = seed().storage_key("uid-far").unwrap();
    assert!(Kept::open(&others, &own.digest(), &kept).is_none());
    assert!(Kept::open(&key, &own.digest(), "aGVsbG8=").is_none());
}

#[test]
fn addresses_are_hosts_with_a_port() {
    for good in [
        "a:1",
        "exit.example.com:64000",
        "192.0.2.1:65535",
        "[2001:db8::1]:443",
    ] {
        assert!(is_address(good), "{good}");
    }
    for bad in [
        "",
        "a",
        ":1",
        "a:0",
        "a:65536",
        "a b:1",
        "2001:db8::1:443",
        "[x]:1",
        "a/b:1",
        "[2001:db8::1]",
    ] {
        assert!(!is_address(bad), "{bad}");
    }
}

#[test]
fn a_trust_domain_is_what_spiffe_takes() {
    assert_eq!(trust_domain("example.org").unwrap(), "example.org");
    for bad in ["", "Example.org", "a/b", "a:1", &"a".repeat(256)] {
        assert!(
            trust_domain(bad)
                .unwrap_err()
                .contains("is not a trust domain")
        );
    }
}

#[test]
fn nothing_shows_a_seed_or_a_key() {
    let bundle = bundle(&subject(), MADE);
    let shown = format!("{:?} {bundle:?} {bundle:#?}", seed());
    let key = bundle.entry_authority.key_pem.lines().nth(1).unwrap();
    assert!(
        !shown.contains(&key[20..40]) && !shown.contains("7, 7"),
        "{shown}"
    );
    assert_eq!(date(MADE), "2030-03-17T17:46:40Z");
}
