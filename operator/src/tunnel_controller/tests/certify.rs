//! Tests certificates in whole reconciliations: which objects are written and when, which objects
//! stay unchanged, and which gateways accept each other.

use std::io::Write;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use muxtunnel_testkit::handshake::{Files, shake_hands};
use serde_json::json;
use tracing_subscriber::fmt::MakeWriter;

use super::reconcile::{MADE, SEED, TUNNEL};
use super::*;
use crate::certificates::join::date;
use crate::grants::tests::known;
use crate::testing::Failure;
use crate::testing::kubelet::OFFER;
use crate::tunnel_controller::PAUSED;
use crate::tunnel_controller::build::certificates::due;
use crate::tunnel_controller::reconcile;

const DAY: i64 = 24 * 3600;
/// A time before the times of the test's clock.
const POD_MADE: i64 = 1_577_836_800;
const UID: &str = "uid-office";

/// A cluster with an operator, and a clock that the test advances.
struct Bench {
    bench: super::reconcile::Bench,
    now: Arc<AtomicI64>,
}

impl std::ops::Deref for Bench {
    type Target = super::reconcile::Bench;

    fn deref(&self) -> &Self::Target {
        &self.bench
    }
}

impl Bench {
    fn new(spec: &str) -> Self {
        let now = Arc::new(AtomicI64::new(MADE));
        let clock = now.clone();
        let clock = super::reconcile::clock(move || clock.load(Relaxed));
        let bench = super::reconcile::Bench::with(spec, known([]), clock);
        Self { bench, now }
    }

    fn restart(&mut self) {
        self.bench.restart();
    }

    fn at(&self, now: i64) {
        self.now.store(now, Relaxed);
    }

    /// Reconciles, and returns the writes.
    async fn writes(&self) -> Vec<String> {
        self.api.take_requests();
        self.reconcile().await.unwrap();
        self.api.take_writes()
    }

    /// Reconciles, and returns the Secrets that were written.
    async fn secrets(&self) -> Vec<String> {
        let mut writes = self.writes().await;
        writes.retain(|write| write.contains(" secrets/"));
        writes
    }

    fn certificate(&self, end: &str) -> Value {
        self.api.get(TUNNEL).unwrap()["status"]["certificates"][end].clone()
    }

    fn secret(&self, name: &str) -> Option<Value> {
        self.api.get(&format!("secrets/{name}"))
    }

    fn text(&self, secret: &str, key: &str) -> String {
        let secret = self.secret(secret).unwrap();
        let bytes = STANDARD
            .decode(secret["data"][key].as_str().unwrap())
            .unwrap();
        String::from_utf8(bytes).unwrap()
    }

    fn files(&self, secret: &str, peer: &str) -> Files {
        Files {
            certificate: self.text(secret, "tls.crt"),
            key: self.text(secret, "tls.key"),
            ca: self.text(secret, "ca.crt"),
            peer: peer.to_owned(),
        }
    }

    fn annotate(&self, key: &str, value: Option<&str>) {
        let mut object = self.api.get(TUNNEL).unwrap();
        match value {
            Some(value) => object["metadata"]["annotations"][key] = json!(value),
            None => object["metadata"]["annotations"] = json!({}),
        }
        self.api.put(TUNNEL, object);
    }

    /// Adds a pod of `end`. The containers of this pod have not started.
    fn waiting_pod(&self, end: &str) {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": "p", "labels": crate::labels::child("office", end),
                "creationTimestamp": date(POD_MADE),
            },
            "spec": {"containers": []},
            "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]},
        });
        let deployment = format!("office-{end}");
        self.api.put_pod_of(&deployment, "pods/p", pod);
    }
}

const ENTRY: &str = "spiffe://example.org/ns/site/mt/office/entry";
const EXIT: &str = "spiffe://example.org/ns/site/mt/office/exit";
const BOTH_ISSUED: [&str; 2] = [
    "PATCH secrets/office-exit-tls",
    "PATCH secrets/office-entry-tls",
];

#[tokio::test]
async fn a_tunnel_gets_its_certificates_before_its_pods_and_keeps_them() {
    let mut bench = Bench::new(MANAGED);
    let writes = bench.writes().await;
    assert_eq!(writes[0], "PUT secrets/authorities@operators");
    assert_eq!(writes[1..3], BOTH_ISSUED);
    let status = "PATCH muxtunnels/office/status".to_owned();
    assert_eq!(writes.last(), Some(&status));
    for (end, identity) in [("entry", ENTRY), ("exit", EXIT)] {
        let secret = bench.secret(&format!("office-{end}-tls")).unwrap();
        assert_eq!(secret["type"], "kubernetes.io/tls");
        assert_eq!(secret["metadata"]["ownerReferences"][0]["uid"], UID);
        let keys: Vec<_> = secret["data"].as_object().unwrap().keys().collect();
        assert_eq!(keys, ["ca.crt", "tls.crt", "tls.key"]);
        let record = bench.certificate(end);
        assert_eq!(record["identity"], identity);
        assert_eq!(record["issuedAt"], date(MADE));
        assert_eq!(record["notAfter"], date(MADE + DAY));
    }
    let (entry, exit) = (
        bench.files("office-entry-tls", EXIT),
        bench.files("office-exit-tls", ENTRY),
    );
    shake_hands(&entry, &exit, MADE).unwrap();
    for _ in 0..100 {
        assert!(bench.writes().await.is_empty());
    }
    bench.restart();
    assert!(bench.writes().await.is_empty());
    assert_eq!(
        bench.condition("CertificatesValid")["reason"],
        "CertificatesIssued"
    );
}

#[tokio::test]
async fn secrets_are_never_read_nor_forced_but_the_one_of_the_authorities() {
    let bench = Bench::new(MANAGED);
    bench.reconcile().await.unwrap();
    bench.waiting_pod("exit");
    for now in [MADE, MADE + 100, MADE + DAY] {
        bench.at(now);
        bench.reconcile().await.unwrap();
    }
    for request in bench.api.take_requests() {
        if request.path.starts_with("secrets") && request.path != SEED {
            assert_eq!(request.method, http::Method::PATCH, "{}", request.path);
            assert!(!request.query.contains("force=true"), "{}", request.path);
        }
    }
}

#[tokio::test]
async fn certificates_are_renewed_once_two_thirds_of_their_life_are_over() {
    let mut bench = Bench::new(MANAGED);
    bench.reconcile().await.unwrap();
    let before = bench.files("office-exit-tls", ENTRY);
    let due = due(UID, MADE, MADE + DAY);
    assert!(due <= MADE + DAY / 3 * 2 && due > MADE + DAY / 3 * 2 - DAY / 20);
    bench.at(due - 1);
    assert!(bench.writes().await.is_empty());
    bench.restart();
    bench.at(due);
    let writes = bench.writes().await;
    assert_eq!(
        writes,
        [&BOTH_ISSUED[..], &["PATCH muxtunnels/office/status"]].concat()
    );
    assert_eq!(bench.certificate("exit")["notAfter"], date(due + DAY));
    assert!(bench.writes().await.is_empty());
    // Gateways with old certificates and gateways with new certificates accept each other, because
    // not all gateways change at the same time.
    let entry = bench.files("office-entry-tls", EXIT);
    shake_hands(&entry, &before, due).unwrap();
    assert_ne!(before.key, bench.files("office-exit-tls", ENTRY).key);
}

/// Cases: a pause, a spec that a newer version rejects, each of them after an edit, and an edit
/// with an obstacle.
#[tokio::test]
async fn certificates_of_gateways_that_run_are_renewed_whatever_the_spec_says() {
    let pause = |bench: &Bench| bench.annotate(PAUSED, Some("true"));
    let refuse = |bench: &Bench| {
        let labels = json!({"template": {"labels": {"example.com/refused": "yes"}}});
        let mut object = bench.api.get(TUNNEL).unwrap();
        object["spec"]["exit"] = labels;
        object["metadata"]["generation"] = json!(2);
        bench.api.put(TUNNEL, object);
    };
    let unsecure = |bench: &Bench| {
        let mut object = bench.api.get(TUNNEL).unwrap();
        object["spec"]["carrier"]["security"] = json!({"mode": "None"});
        bench.api.put(TUNNEL, object);
    };
    let be_in_the_way = |bench: &Bench| {
        let mut account = bench.api.get("serviceaccounts/office-exit").unwrap();
        account["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "theirs", "uid": "uid-theirs"}]);
        bench.api.put("serviceaccounts/office-exit", account);
    };
    type Change<'a> = &'a dyn Fn(&Bench);
    let cases: [(&str, &[Change<'_>], &str); 4] = [
        ("paused", &[&pause], "Paused"),
        ("refused", &[&refuse], "InvalidSpec"),
        ("paused and edited", &[&pause, &unsecure], "Paused"),
        (
            "in the way and edited",
            &[&be_in_the_way, &unsecure],
            "OwnedByOther",
        ),
    ];
    for (case, changes, reason) in cases {
        let mut bench = Bench::new(MANAGED);
        bench.reconcile().await.unwrap();
        for change in changes {
            change(&bench);
        }
        let mut peer = None;
        // Many certificate lifetimes pass, with a restart in between.
        for step in 1..=20 {
            bench.at(MADE + step * 2 * DAY / 3);
            if step == 10 {
                bench.restart();
            }
            assert_eq!(bench.secrets().await, BOTH_ISSUED, "{case}: {step}");
            let ready = bench.condition("Ready");
            assert_eq!(ready["reason"], reason, "{case}");
            // Each end accepts the newest certificate of the other.
            let (entry, exit) = (
                bench.files("office-entry-tls", EXIT),
                bench.files("office-exit-tls", ENTRY),
            );
            assert!(peer.replace(entry.certificate.clone()) != Some(entry.certificate.clone()));
            shake_hands(&entry, &exit, MADE + step * 2 * DAY / 3).unwrap();
            // No certificate is issued twice.
            assert_eq!(bench.secrets().await, [""; 0], "{case}: {step}");
        }
        // Without gateways, no certificate is renewed.
        for end in ["entry", "exit"] {
            bench.api.remove(&format!("deployments/office-{end}"));
        }
        bench.at(MADE + 100 * DAY);
        assert_eq!(bench.secrets().await, [""; 0], "{case}");
    }
}

#[tokio::test]
async fn a_paused_entry_is_renewed_by_the_bundle_that_it_joined_by_and_says_where_that_is_gone() {
    let (_exit, bundle) = published(DIRECT).await;
    let entry = joining(Some(&bundle));
    entry.reconcile().await.unwrap();
    entry.annotate(PAUSED, Some("true"));
    entry.at(MADE + 2 * DAY / 3);
    assert_eq!(entry.secrets().await, ["PATCH secrets/office-entry-tls"]);
    entry.api.remove("secrets/far");
    entry.at(MADE + 2 * DAY);
    assert_eq!(entry.secrets().await, [""; 0]);
    let valid = entry.condition("CertificatesValid");
    assert_eq!(valid["reason"], "JoinBundleMissing");
    assert_eq!(entry.condition("Ready")["reason"], "Paused");
}

#[tokio::test]
async fn what_the_status_does_not_say_yet_is_not_issued_again() {
    let bench = Bench::new(MANAGED);
    // The seed and two certificates are written, then the write of the status fails.
    bench.api.fail_write(11, Failure::Before(500));
    bench.reconcile().await.unwrap_err();
    assert!(bench.certificate("exit").is_null());
    assert_eq!(bench.secrets().await, [""; 0]);
    assert_eq!(bench.certificate("exit")["issuedAt"], date(MADE));
    // The watch is outdated, so the operator sees the object without the status.
    let mut stale = bench.api.get(TUNNEL).unwrap();
    stale["status"] = Value::Null;
    let stale = serde_json::from_value(stale).unwrap();
    bench.api.take_requests();
    reconcile(Arc::new(stale), bench.context.clone())
        .await
        .unwrap();
    let writes = bench.api.take_writes();
    assert!(
        !writes.iter().any(|write| write.contains("-tls")),
        "{writes:?}"
    );
}

#[tokio::test]
async fn an_operator_that_died_between_certificate_and_status_issues_anew_into_its_own_secret() {
    let mut bench = Bench::new(MANAGED);
    bench.api.fail_write(11, Failure::Before(500));
    bench.reconcile().await.unwrap_err();
    bench.restart();
    assert_eq!(bench.secrets().await, BOTH_ISSUED);
    assert!(bench.writes().await.is_empty());
}

#[tokio::test]
async fn a_secret_that_pods_wait_for_is_issued_anew_once_a_minute_at_most_and_ever_more_rarely() {
    let bench = Bench::new(MANAGED);
    bench.at(POD_MADE - 1000);
    bench.reconcile().await.unwrap();
    bench.api.remove("secrets/office-exit-tls");
    bench.waiting_pod("exit");
    // A pod that waits for another reason keeps waiting after the certificate is issued.
    for (second, is_issued) in [
        (10, true),
        (69, false),
        (70, true),
        (139, false),
        (140, true),
        (200, false),
        (279, false),
        (280, true),
        (559, false),
        (560, true),
    ] {
        bench.at(POD_MADE + second);
        let written: &[&str] = match is_issued {
            true => &["PATCH secrets/office-exit-tls"],
            false => &[],
        };
        assert_eq!(bench.secrets().await, written, "{second}");
        assert!(bench.secret("office-exit-tls").is_some());
    }
}

#[tokio::test]
async fn a_secret_of_somebody_else_is_left_alone_and_no_pod_mounts_it() {
    let bench = Bench::new(MANAGED);
    let theirs = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
        "metadata": {"name": "office-exit-tls"}, "data": {"tls.crt": "YQ==", "tls.key": "Yg=="},
    });
    bench.api.put("secrets/office-exit-tls", theirs);
    let before = bench.secret("office-exit-tls");
    bench.reconcile().await.unwrap();
    assert_eq!(bench.secret("office-exit-tls"), before);
    assert!(bench.api.get("deployments/office-exit").is_none());
    for other in [
        "secrets/office-entry-tls",
        "deployments/office-entry",
        "configmaps/office-exit",
    ] {
        assert!(bench.api.get(other).is_some(), "{other} is not affected");
    }
    for type_ in ["CertificatesValid", "Ready"] {
        let condition = bench.condition(type_);
        assert_eq!(
            (&condition["status"], &condition["reason"]),
            (&json!("False"), &json!("CertificateSecretTaken"))
        );
        let message = condition["message"].as_str().unwrap();
        assert!(
            message.contains("Secret office-exit-tls exists"),
            "{message}"
        );
    }
    bench.api.remove("secrets/office-exit-tls");
    bench.reconcile().await.unwrap();
    assert_eq!(bench.condition("CertificatesValid")["status"], "True");
    assert!(bench.api.get("deployments/office-exit").is_some());
}

#[tokio::test]
async fn gateways_that_run_stay_where_their_secret_becomes_somebody_elses() {
    let bench = Bench::new(MANAGED);
    bench.reconcile().await.unwrap();
    let before = bench.api.get("deployments/office-exit").unwrap();
    bench.api.remove("secrets/office-exit-tls");
    let theirs = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
        "metadata": {"name": "office-exit-tls"}, "data": {"tls.crt": "YQ=="},
    });
    bench.api.put("secrets/office-exit-tls", theirs);
    // A certificate is due, and the template changes.
    let mut tunnel = bench.api.get(TUNNEL).unwrap();
    tunnel["status"]["certificates"] = json!({});
    bench.api.put(TUNNEL, tunnel);
    bench.at(MADE + 3600);
    bench.edit(&format!("{MANAGED}tuning: {{profile: Wan}}\n"));
    bench.reconcile().await.unwrap();
    assert_eq!(bench.condition("Ready")["reason"], "CertificateSecretTaken");
    assert_eq!(bench.api.get("deployments/office-exit").unwrap(), before);
    let entry = bench.api.get("deployments/office-entry").unwrap();
    assert!(
        entry.to_string().contains("tcp_rmem"),
        "the entry is rolled out"
    );
}

#[tokio::test]
async fn another_conflict_of_a_secret_stops_nothing_else_and_is_over_with_the_next_look() {
    let bench = Bench::new(MANAGED);
    // The seed is written first.
    bench
        .api
        .fail_write(1, crate::testing::Failure::Before(409));
    bench.reconcile().await.unwrap();
    assert!(bench.secret("office-exit-tls").is_none());
    assert!(bench.secret("office-entry-tls").is_some());
    assert!(bench.api.get("deployments/office-exit").is_some());
    assert_eq!(
        bench.condition("CertificatesValid")["reason"],
        "WriteConflict"
    );
    bench.reconcile().await.unwrap();
    assert!(bench.secret("office-exit-tls").is_some());
    assert_eq!(bench.condition("CertificatesValid")["status"], "True");
}

#[tokio::test]
async fn two_operators_that_make_the_seed_at_once_agree_on_one() {
    let bench = Bench::new(MANAGED);
    let seed = || async {
        let client = bench.api.client();
        let keeper = crate::certificates::seed::SeedKeeper::new(client, "operators", "authorities");
        keeper.seed().await.unwrap().bytes().to_vec()
    };
    let (one, two) = tokio::join!(seed(), seed());
    assert_eq!(one, two);
    let puts = bench.api.take_writes();
    assert_eq!(
        puts,
        [
            "PUT secrets/authorities@operators",
            "PUT secrets/authorities@operators"
        ],
        "the two operators did not write at the same time"
    );
    assert_eq!(
        bench.secret("authorities@operators").unwrap()["data"]["seed"],
        STANDARD.encode(one)
    );
}

#[tokio::test]
async fn a_seed_that_cannot_be_had_is_said_and_what_runs_goes_on() {
    for (spoil, says) in [
        ("missing", "cannot be read; install the chart again"),
        ("denied", "cannot be read; install the chart again"),
        ("short", "has a key seed that is not 32 bytes long"),
    ] {
        let bench = Bench::new(MANAGED);
        match spoil {
            "missing" => bench.api.remove(SEED),
            "denied" => bench.api.deny(SEED, 403),
            _ => bench.api.put(
                SEED,
                json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "authorities"}, "data": {"seed": "YQ=="}}),
            ),
        }
        bench.reconcile().await.unwrap();
        let condition = bench.condition("CertificatesValid");
        assert_eq!(condition["reason"], "AuthorityUnavailable", "{spoil}");
        let message = condition["message"].as_str().unwrap();
        assert!(
            message.contains("Secret authorities of namespace operators"),
            "{message}"
        );
        assert!(message.contains(says), "{message}");
        assert!(
            bench.api.get("deployments/office-exit").is_some(),
            "{spoil}"
        );
    }
}

#[tokio::test]
async fn an_exchanged_seed_makes_all_certificates_new() {
    let mut bench = Bench::new(MANAGED);
    bench.reconcile().await.unwrap();
    let before = bench.files("office-entry-tls", EXIT);
    let mut secret = bench.api.get(SEED).unwrap();
    secret["data"]["seed"] = json!(STANDARD.encode([9; 32]));
    bench.api.put(SEED, secret);
    bench.restart();
    assert_eq!(bench.secrets().await, BOTH_ISSUED);
    let (entry, exit) = (
        bench.files("office-entry-tls", EXIT),
        bench.files("office-exit-tls", ENTRY),
    );
    shake_hands(&entry, &exit, MADE).unwrap();
    shake_hands(&before, &exit, MADE).unwrap_err();
}

#[tokio::test]
async fn the_pods_mount_what_is_issued_and_take_the_other_side_of_their_own_tunnel_alone() {
    let bench = Bench::new(MANAGED);
    bench.reconcile().await.unwrap();
    for (end, peer) in [("entry", EXIT), ("exit", ENTRY)] {
        let deployment = bench.api.get(&format!("deployments/office-{end}")).unwrap();
        let volumes = deployment["spec"]["template"]["spec"]["volumes"]
            .as_array()
            .unwrap()
            .clone();
        let secrets: Vec<_> = volumes
            .iter()
            .filter_map(|volume| volume["secret"]["secretName"].as_str())
            .collect();
        assert_eq!(secrets, [format!("office-{end}-tls")]);
        let config: Value = serde_yaml::from_str(&document(&bench.api, end)).unwrap();
        assert_eq!(config["security"]["mode"], "MutualTls");
        assert_eq!(config["security"]["peers"], json!([peer]));
    }
}

/// An exit's cluster, and the bundle that its operator has published.
async fn published(spec: &str) -> (Bench, Value) {
    let bench = Bench::new(&format!("side: Exit\n{spec}"));
    bench.reconcile().await.unwrap();
    // The next reconciliation offers the published bundle.
    bench.reconcile().await.unwrap();
    let mut secret = bench.secret("office-join").unwrap();
    secret["metadata"] = json!({"name": "far"});
    (bench, secret)
}

/// An entry's cluster: another operator, with another seed.
fn joining(bundle: Option<&Value>) -> Bench {
    let bench = Bench::new(&format!(
        "side: Entry\ncarrier: {{joinFrom: {{secretName: far}}}}\n{DIRECT}"
    ));
    if let Some(bundle) = bundle {
        bench.api.put("secrets/far", bundle.clone());
    }
    bench
}

#[tokio::test]
async fn an_entry_elsewhere_joins_by_a_copied_bundle_and_both_sides_renew_by_themselves() {
    let (exit, bundle) = published(DIRECT).await;
    assert_eq!(bundle["type"], "muxtunnel.dev/join");
    assert_eq!(
        exit.text("office-join", "address"),
        "office-exit.site.svc:64000"
    );
    let join = exit.certificate("join");
    assert_eq!(join["secretName"], "office-join");
    assert_eq!(join["expires"], date(MADE + 365 * DAY));
    assert!(exit.writes().await.is_empty());

    let entry = joining(Some(&bundle));
    assert_eq!(entry.secrets().await, ["PATCH secrets/office-entry-tls"]);
    assert!(entry.writes().await.is_empty());
    assert_eq!(entry.condition("CertificatesValid")["status"], "True");
    assert_eq!(entry.certificate("entry")["identity"], ENTRY);
    let config: Value = serde_yaml::from_str(&document(&entry.api, "entry")).unwrap();
    assert_eq!(config["connect"], "office-exit.site.svc:64000");
    assert_eq!(config["security"]["peers"], json!([EXIT]));

    let mut days = 0;
    while days < 364 {
        for bench in [&entry, &exit] {
            bench.at(MADE + days * DAY);
            bench.reconcile().await.unwrap();
        }
        let (near, far) = (
            entry.files("office-entry-tls", EXIT),
            exit.files("office-exit-tls", ENTRY),
        );
        shake_hands(&near, &far, MADE + days * DAY)
            .unwrap_or_else(|error| panic!("day {days}: {error}"));
        days += 13;
    }
    let condition = entry.condition("CertificatesValid");
    assert_eq!(
        (&condition["status"], &condition["reason"]),
        (&json!("True"), &json!("CertificateExpiring"))
    );
    // The exit's operator has published the next bundle long before this time.
    let join = exit.certificate("join");
    assert_ne!(join["expires"], date(MADE + 365 * DAY));
    let mut newer = exit.secret("office-join").unwrap();
    newer["metadata"] = json!({"name": "far"});
    entry.api.put("secrets/far", newer);
    entry.reconcile().await.unwrap();
    assert_eq!(
        entry.condition("CertificatesValid")["reason"],
        "CertificatesIssued"
    );
    let (near, far) = (
        entry.files("office-entry-tls", EXIT),
        exit.files("office-exit-tls", ENTRY),
    );
    shake_hands(&near, &far, MADE + (days - 13) * DAY).unwrap();
}

/// Copies the exit's offer to the entry's operator, as the tunnel between both clusters does.
fn carry_offer(exit: &Bench, entry: &Bench) {
    let config = document(&exit.api, "exit");
    let config: Value = serde_yaml::from_str(&config).unwrap();
    entry.api.put(OFFER, json!({"offer": config["offer"]}));
}

const KEPT: &str = "configmaps/office-join";

/// A running entry that joined two thirds of a year ago, and whose next bundle arrived through the
/// tunnel.
async fn renewed() -> (Bench, Bench, Value) {
    let (exit, bundle) = published(DIRECT).await;
    let entry = joining(Some(&bundle));
    entry.run().await;
    for bench in [&exit, &entry] {
        bench.at(MADE + 250 * DAY);
    }
    exit.run().await;
    carry_offer(&exit, &entry);
    entry.run().await;
    assert_eq!(entry.certificate("joined")["renewed"], true);
    (exit, entry, bundle)
}

#[tokio::test]
async fn bundles_follow_each_other_through_the_tunnel_and_nobody_copies_anything() {
    let (exit, bundle) = published(DIRECT).await;
    let mut entry = joining(Some(&bundle));
    entry.run().await;
    let mut rolled = 0;
    for day in (0..5 * 365).step_by(20) {
        for bench in [&exit, &entry] {
            bench.at(MADE + day * DAY);
        }
        exit.run().await;
        carry_offer(&exit, &entry);
        entry.run().await;
        let (near, far) = (
            entry.files("office-entry-tls", EXIT),
            exit.files("office-exit-tls", ENTRY),
        );
        shake_hands(&near, &far, MADE + day * DAY)
            .unwrap_or_else(|error| panic!("day {day}: {error}"));
        assert_eq!(
            entry.condition("CertificatesValid")["reason"],
            "CertificatesIssued",
            "day {day}"
        );
        let joined = entry.certificate("joined");
        assert_eq!(joined["secretName"], "far");
        assert_eq!(joined["renewed"], day > 243, "day {day}: {joined}");
        assert!(entry.writes().await.is_empty(), "day {day}");
        assert!(exit.writes().await.is_empty(), "day {day}");
        // Long after the copy has expired, another process of the operator uses the kept bundle.
        if day == 3 * 365 / 20 * 20 {
            entry.restart();
            rolled += 1;
        }
    }
    assert_eq!(rolled, 1);
    assert_eq!(entry.secret("far").unwrap()["data"], bundle["data"]);
}

#[tokio::test]
async fn an_offer_that_changes_rolls_no_exit() {
    let (exit, _) = published(DIRECT).await;
    exit.run().await;
    let offer = |exit: &Bench| exit.api.get("configmaps/office-exit").unwrap()["data"].clone();
    let before = offer(&exit);
    assert!(before.to_string().contains("offer:"));
    exit.at(MADE + 250 * DAY);
    let writes = exit.writes().await;
    assert!(
        writes.contains(&"PATCH configmaps/office-exit".to_owned()),
        "{writes:?}"
    );
    assert!(
        !writes.iter().any(|write| write.contains("deployments")),
        "{writes:?}"
    );
    assert_ne!(before, offer(&exit));
}

#[tokio::test]
async fn another_copy_counts_at_once_and_what_was_kept_for_the_former_does_not() {
    let (exit, entry, _) = renewed().await;
    exit.annotate("muxtunnel.dev/join-generation", Some("1"));
    exit.run().await;
    let mut newer = exit.secret("office-join").unwrap();
    newer["metadata"] = json!({"name": "far"});
    entry.api.put("secrets/far", newer);
    entry.reconcile().await.unwrap();
    assert_eq!(entry.certificate("joined")["renewed"], false);
    let near = entry.files("office-entry-tls", EXIT);
    shake_hands(
        &near,
        &exit.files("office-exit-tls", ENTRY),
        MADE + 250 * DAY,
    )
    .unwrap();
}

#[tokio::test]
async fn what_was_kept_serves_its_own_operator_alone() {
    let (_, mut entry, _) = renewed().await;
    let kept = entry.api.get(KEPT).unwrap();
    assert_eq!(kept["metadata"]["ownerReferences"][0]["uid"], UID);
    // The entry's operator loses its seed.
    entry.api.put(
        SEED,
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "authorities"}}),
    );
    entry.restart();
    entry.run().await;
    // The operator has stored the exit's offer to the holders of the copy again.
    assert_eq!(entry.certificate("joined")["renewed"], true);
    assert_ne!(entry.api.get(KEPT).unwrap()["data"], kept["data"]);
    entry.api.put(
        SEED,
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "authorities"}}),
    );
    entry.at(MADE + 366 * DAY);
    entry.restart();
    entry.reconcile().await.unwrap();
    assert_eq!(
        entry.condition("CertificatesValid")["reason"],
        "JoinBundleExpired"
    );
}

#[tokio::test]
async fn a_config_map_of_somebody_else_is_left_alone() {
    let (exit, bundle) = published(DIRECT).await;
    let entry = joining(Some(&bundle));
    let theirs = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {
            "name": "office-join", "labels": crate::labels::child("office", "join"),
        },
        "data": {"bundle": "theirs"},
    });
    entry.api.put(KEPT, theirs);
    for bench in [&exit, &entry] {
        bench.at(MADE + 250 * DAY);
    }
    exit.run().await;
    carry_offer(&exit, &entry);
    entry.run().await;
    assert_eq!(entry.api.get(KEPT).unwrap()["data"]["bundle"], "theirs");
    assert_eq!(entry.certificate("joined")["renewed"], false);
    let condition = entry.condition("CertificatesValid");
    assert_eq!(condition["reason"], "CertificateExpiring");
    let message = condition["message"].as_str().unwrap();
    assert!(
        message.contains("ConfigMap office-join exists and does not belong to the tunnel"),
        "{message}"
    );
}

#[tokio::test]
async fn a_bundle_that_nothing_follows_is_said_with_the_reason() {
    let (_, bundle) = published(DIRECT).await;
    let entry = joining(Some(&bundle));
    entry.run().await;
    entry.at(MADE + 250 * DAY);
    entry.run().await;
    let condition = entry.condition("CertificatesValid");
    assert_eq!(
        (&condition["status"], &condition["reason"]),
        (&json!("True"), &json!("CertificateExpiring"))
    );
    let message = condition["message"].as_str().unwrap();
    assert!(
        message.contains("no newer bundle has arrived through the tunnel: the exit offers nothing"),
        "{message}"
    );
    // The offer is requested again, and arrives late.
    entry.at(MADE + 300 * DAY);
    let (exit, _) = published(DIRECT).await;
    exit.at(MADE + 300 * DAY);
    exit.run().await;
    entry.api.put(OFFER, json!({"offer": "what is not one"}));
    entry.run().await;
    let message = entry.condition("CertificatesValid")["message"].to_string();
    assert!(
        message.contains("cannot parse the exit's offer"),
        "{message}"
    );
}

#[tokio::test]
async fn a_raised_join_generation_revokes_every_bundle_and_rolls_the_exits() {
    let (exit, bundle) = published(DIRECT).await;
    let entry = joining(Some(&bundle));
    entry.reconcile().await.unwrap();
    let near = entry.files("office-entry-tls", EXIT);
    shake_hands(&near, &exit.files("office-exit-tls", ENTRY), MADE).unwrap();
    exit.annotate("muxtunnel.dev/join-generation", Some("1"));
    let writes = exit.writes().await;
    for write in [
        "PATCH secrets/office-exit-tls",
        "PATCH secrets/office-join",
        "PATCH deployments/office-exit",
    ] {
        assert!(writes.contains(&write.to_owned()), "{write}: {writes:?}");
    }
    assert_eq!(exit.certificate("join")["generation"], 1);
    let offered = "PATCH configmaps/office-exit";
    assert!(writes.contains(&offered.to_owned()), "{writes:?}");
    assert_eq!(exit.writes().await, [offered]);
    assert!(exit.writes().await.is_empty());
    shake_hands(&near, &exit.files("office-exit-tls", ENTRY), MADE).unwrap_err();
    let mut newer = exit.secret("office-join").unwrap();
    newer["metadata"] = json!({"name": "far"});
    entry.api.put("secrets/far", newer);
    entry.reconcile().await.unwrap();
    let near = entry.files("office-entry-tls", EXIT);
    shake_hands(&near, &exit.files("office-exit-tls", ENTRY), MADE).unwrap();

    // The former bundle stays invalid if the annotation has a lower number, and if the annotation
    // is missing.
    let before = exit.text("office-exit-tls", "ca.crt");
    for lower in [Some("0"), None] {
        exit.annotate("muxtunnel.dev/join-generation", lower);
        assert!(exit.writes().await.is_empty(), "{lower:?}");
        assert_eq!(exit.text("office-exit-tls", "ca.crt"), before);
    }
    // The former bundle also stays invalid after a switch to the user's own keys and back to issued
    // keys.
    for security in [
        "exit: {secretName: own, peers: [entry.example.com]}",
        "mode: None",
        "issuerRef: {name: ca}, exit: {peers: [spiffe://example.org/entry]}",
        "mode: MutualTls",
    ] {
        exit.edit(&format!(
            "side: Exit\n{DIRECT}carrier: {{security: {{{security}}}}}"
        ));
        exit.reconcile().await.unwrap();
        assert_eq!(exit.certificate("joinGeneration"), 1, "{security}");
    }
    assert_eq!(exit.certificate("join")["generation"], 1);
    assert_eq!(exit.text("office-exit-tls", "ca.crt"), before);
    exit.annotate("muxtunnel.dev/join-generation", Some("2"));
    exit.reconcile().await.unwrap();
    assert_eq!(exit.certificate("join")["generation"], 2);

    exit.annotate("muxtunnel.dev/join-generation", Some("-1"));
    exit.reconcile().await.unwrap();
    let ready = exit.condition("Ready");
    assert_eq!(ready["reason"], "InvalidSpec");
    assert!(
        ready["message"]
            .as_str()
            .unwrap()
            .contains("join-generation \"-1\""),
        "{ready}"
    );
}

#[tokio::test]
async fn a_bundle_that_is_missing_forbidden_or_broken_is_said_and_nothing_is_made() {
    let (_, bundle) = published(DIRECT).await;
    let mut opaque = bundle.clone();
    opaque["type"] = json!("Opaque");
    let mut keyless = bundle.clone();
    keyless["data"].as_object_mut().unwrap().remove("tls.key");
    let mut unaddressed = bundle.clone();
    unaddressed["data"]
        .as_object_mut()
        .unwrap()
        .remove("address");
    for (bundle, denied, now, reason, says) in [
        (
            None,
            false,
            MADE,
            "JoinBundleMissing",
            "Secret far does not exist",
        ),
        (
            None,
            true,
            MADE,
            "JoinBundleForbidden",
            "kubectl -n site create role muxtunnel-join --verb=get --resource=secrets --resource-name=far",
        ),
        (
            None,
            true,
            MADE,
            "JoinBundleForbidden",
            "--serviceaccount=operators:operator",
        ),
        (
            Some(opaque),
            false,
            MADE,
            "JoinBundleInvalid",
            "is not of type",
        ),
        (
            Some(keyless),
            false,
            MADE,
            "JoinBundleInvalid",
            "Secret far has no key tls.key",
        ),
        (
            Some(unaddressed),
            false,
            MADE,
            "JoinBundleInvalid",
            "has no key address",
        ),
        (
            Some(bundle),
            false,
            MADE + 366 * DAY,
            "JoinBundleExpired",
            "Secret far expired at",
        ),
    ] {
        let bench = joining(bundle.as_ref());
        if denied {
            bench.api.deny("secrets/far", 403);
        }
        bench.at(now);
        assert_eq!(
            bench.writes().await,
            ["PATCH muxtunnels/office/status"],
            "{reason}"
        );
        for type_ in ["CertificatesValid", "Ready"] {
            let condition = bench.condition(type_);
            assert_eq!(
                (&condition["status"], &condition["reason"]),
                (&json!("False"), &json!(reason))
            );
            let message = condition["message"].as_str().unwrap();
            assert!(message.contains(says), "{message}");
        }
        assert!(bench.writes().await.is_empty(), "{reason}");
    }
}

#[tokio::test]
async fn the_bundle_says_where_the_exit_is_reached_from_outside() {
    let with = |exit: &str, carrier: &str| {
        format!("{DIRECT}exit: {{service: {{type: {exit}}}}}\ncarrier: {{{carrier}}}")
    };
    for (spec, service, address) in [
        (
            with("ClusterIP", ""),
            json!({}),
            Ok("office-exit.site.svc:64000"),
        ),
        (
            with("ClusterIP", "address: exit.example.com"),
            json!({}),
            Ok("exit.example.com:64000"),
        ),
        (
            with("ClusterIP", "address: 'exit.example.com:443'"),
            json!({}),
            Ok("exit.example.com:443"),
        ),
        (
            with("NodePort", "address: 192.0.2.1"),
            json!({"nodePort": 30123}),
            Ok("192.0.2.1:30123"),
        ),
        (
            with("NodePort", "address: '[2001:db8::1]'"),
            json!({"nodePort": 30123}),
            Ok("[2001:db8::1]:30123"),
        ),
        (
            with("NodePort", ""),
            json!({"nodePort": 30123}),
            Err("carrier.address"),
        ),
        (
            with("LoadBalancer", ""),
            json!({}),
            Err("no load balancer address yet"),
        ),
        (
            with("LoadBalancer", ""),
            json!({"ingress": {"ip": "192.0.2.9"}}),
            Ok("192.0.2.9:64000"),
        ),
        (
            with("LoadBalancer", ""),
            json!({"ingress": {"ip": "2001:db8::9"}}),
            Ok("[2001:db8::9]:64000"),
        ),
        (
            with("LoadBalancer", ""),
            json!({"ingress": {"hostname": "lb.example.com"}}),
            Ok("lb.example.com:64000"),
        ),
    ] {
        let bench = Bench::new(&format!("side: Exit\n{spec}"));
        bench.reconcile().await.unwrap();
        let mut live = bench.api.get("services/office-exit").unwrap();
        if let Some(port) = service.get("nodePort") {
            live["spec"]["ports"][0]["nodePort"] = port.clone();
        }
        if let Some(ingress) = service.get("ingress") {
            live["status"] = json!({"loadBalancer": {"ingress": [ingress]}});
        }
        bench.api.put("services/office-exit", live);
        bench.reconcile().await.unwrap();
        match address {
            Ok(address) => {
                assert_eq!(bench.text("office-join", "address"), address, "{spec}");
                assert_eq!(
                    bench.condition("CertificatesValid")["status"],
                    "True",
                    "{spec}"
                );
            }
            Err(says) => {
                assert!(bench.secret("office-join").is_none(), "{spec}");
                let condition = bench.condition("CertificatesValid");
                assert_eq!(condition["reason"], "JoinAddressMissing", "{spec}");
                assert!(
                    condition["message"].as_str().unwrap().contains(says),
                    "{condition}"
                );
            }
        }
    }
}

#[tokio::test]
async fn an_exit_that_is_met_at_a_rendezvous_publishes_who_it_is_and_not_where() {
    let meeting = "rendezvous: {address: 'meet.example.com:64000', name: web, secretName: meeting}";
    let (_, bundle) = published(&format!("{DIRECT}carrier: {{{meeting}}}\n")).await;
    assert!(bundle["data"].get("address").is_none());
    let entry = Bench::new(&format!(
        "side: Entry\ncarrier: {{joinFrom: {{secretName: far}}, {meeting}}}\n{DIRECT}"
    ));
    entry.api.put("secrets/far", bundle);
    entry.reconcile().await.unwrap();
    assert_eq!(entry.condition("CertificatesValid")["status"], "True");
    assert!(document(&entry.api, "entry").contains("connect: meet.example.com:64000"));
}

#[tokio::test]
async fn an_entrys_own_address_counts_before_the_bundles() {
    let (_, bundle) = published(DIRECT).await;
    let entry = Bench::new(&format!(
        "side: Entry\ncarrier: {{joinFrom: {{secretName: far}}, address: 'exit.example.com:443'}}\n{DIRECT}"
    ));
    entry.api.put("secrets/far", bundle);
    entry.reconcile().await.unwrap();
    assert!(document(&entry.api, "entry").contains("connect: exit.example.com:443"));
}

const ISSUER: &str = "carrier: {protocol: Jmux, security: {issuerRef: {name: ca}}}";

#[tokio::test]
async fn cert_manager_is_asked_once_for_the_certificates_of_each_side() {
    let bench = Bench::new(&MANAGED.replace("carrier: {protocol: Jmux}", ISSUER));
    let writes = bench.writes().await;
    assert_eq!(
        writes[..2],
        [
            "PATCH certificates/office-exit",
            "PATCH certificates/office-entry"
        ]
    );
    assert!(
        !writes.iter().any(|write| write.contains("secrets/")),
        "{writes:?}"
    );
    let asked = bench.api.get("certificates/office-exit").unwrap();
    assert_eq!(asked["apiVersion"], "cert-manager.io/v1");
    assert_eq!(asked["metadata"]["ownerReferences"][0]["uid"], UID);
    assert_eq!(
        asked["spec"],
        json!({
            "secretName": "office-exit-issued-tls", "uris": [EXIT], "usages": ["digital signature", "server auth"],
            "duration": "24h0m0s", "renewBefore": "8h0m0s",
            "issuerRef": {"name": "ca", "kind": "Issuer", "group": "cert-manager.io"},
            "privateKey": {"algorithm": "ECDSA", "size": 256, "rotationPolicy": "Always"},
        })
    );
    let condition = bench.condition("CertificatesValid");
    assert_eq!(condition["reason"], "CertificatePending");
    let mounted = bench
        .api
        .get("deployments/office-exit")
        .unwrap()
        .to_string();
    assert!(mounted.contains("\"office-exit-issued-tls\""), "{mounted}");
    for end in ["exit", "entry"] {
        let path = format!("certificates/office-{end}");
        let mut object = bench.api.get(&path).unwrap();
        object["status"] = json!({"conditions": [{"type": "Ready", "status": "True"}]});
        // The API server and cert-manager may add fields.
        object["spec"]["revisionHistoryLimit"] = json!(1);
        bench.api.put(&path, object);
    }
    bench.reconcile().await.unwrap();
    assert!(bench.writes().await.is_empty());
    // No gateway answers in this test, so the validity is unknown.
    assert_eq!(bench.condition("CertificatesValid")["status"], "Unknown");

    let mut tunnel = bench.api.get(TUNNEL).unwrap();
    tunnel["spec"] = tunnel_json(MANAGED)["spec"].clone();
    bench.api.put(TUNNEL, tunnel);
    bench.reconcile().await.unwrap();
    assert!(bench.api.get("certificates/office-exit").is_none());
    assert!(bench.api.get("certificates/office-entry").is_none());
    assert!(bench.secret("office-exit-tls").is_some());
}

#[tokio::test]
async fn where_cert_manager_is_not_installed_or_not_allowed_the_condition_says_so() {
    for (code, says) in [
        (404, "cert-manager is not installed"),
        (403, "certificates.certManager=true"),
    ] {
        let bench = Bench::new(&MANAGED.replace("carrier: {protocol: Jmux}", ISSUER));
        for end in ["entry", "exit"] {
            bench.api.deny(&format!("certificates/office-{end}"), code);
        }
        bench.reconcile().await.unwrap();
        for type_ in ["CertificatesValid", "Ready"] {
            let condition = bench.condition(type_);
            assert_eq!(condition["reason"], "IssuerMissing");
            assert!(
                condition["message"].as_str().unwrap().contains(says),
                "{condition}"
            );
        }
    }
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

#[tokio::test]
async fn a_seed_that_was_lost_is_said_of_each_tunnel_that_was_there_and_a_first_one_is_not() {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(log.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    // Returns the number of log messages about a lost seed since the last call.
    let said = || {
        let text = String::from_utf8(std::mem::take(&mut *log.0.lock().unwrap())).unwrap();
        text.matches("the seed of the authorities was lost").count()
    };
    let mut bench = Bench::new(&format!("side: Exit\n{DIRECT}"));
    bench.reconcile().await.unwrap();
    // A revocation does not count as a loss of the seed, either.
    bench.annotate("muxtunnel.dev/join-generation", Some("1"));
    bench.reconcile().await.unwrap();
    assert_eq!(said(), 0);
    bench.api.put(
        SEED,
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "authorities", "namespace": "operators"}}),
    );
    bench.restart();
    bench.reconcile().await.unwrap();
    assert_eq!(said(), 1);
    bench.reconcile().await.unwrap();
    assert_eq!(said(), 0);
}

/// Whether `text` has 8 bytes in a row of `secret`, in hexadecimal digits, in decimal digits or in
/// base64.
fn shows(text: &str, secret: &[u8]) -> bool {
    let forms = |part: &[u8]| {
        [
            part.iter()
                .map(|byte| format!("{byte:02x}"))
                .collect::<String>(),
            part.iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(", "),
        ]
    };
    let text = text.to_lowercase();
    secret
        .windows(8)
        .any(|part| forms(part).iter().any(|form| text.contains(form)))
        || secret
            .windows(9)
            .any(|part| text.contains(&STANDARD.encode(part).to_lowercase()))
}

#[tokio::test]
async fn no_byte_of_a_key_is_anywhere_but_in_the_secrets() {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(log.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let (exit, bundle) = published(DIRECT).await;
    let entry = joining(Some(&bundle));
    entry.reconcile().await.unwrap();
    let mut broken = bundle.clone();
    broken["data"]["ca.crt"] = broken["data"]["tls.key"].clone();
    entry.api.put("secrets/far", broken);
    entry.reconcile().await.unwrap();
    let mut keys = vec![
        STANDARD
            .decode(
                exit.secret("authorities@operators").unwrap()["data"]["seed"]
                    .as_str()
                    .unwrap(),
            )
            .unwrap(),
    ];
    for (bench, secret) in [
        (&exit, "office-exit-tls"),
        (&exit, "office-join"),
        (&entry, "office-entry-tls"),
    ] {
        let pem = bench.text(secret, "tls.key");
        let lines: String = pem
            .lines()
            .filter(|line| !line.starts_with("---"))
            .collect();
        let key = STANDARD.decode(&lines).unwrap();
        // The head of PKCS #8 is not secret, and a P-256 key ends with its public key.
        keys.push(
            key[if secret == "office-join" {
                16..48
            } else {
                36..68
            }]
            .to_vec(),
        );
        keys.push(lines.as_bytes()[48..60].to_vec());
    }
    let mut said = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(said.contains("issued a certificate"), "{said}");
    for bench in [&exit, &entry] {
        for request in bench.api.take_requests() {
            if !request.path.starts_with("secrets/") {
                said.push_str(&request.body.to_string());
            }
        }
        said.push_str(&bench.api.get(TUNNEL).unwrap().to_string());
    }
    for key in keys {
        assert!(shows(&format!("{key:?}"), &key));
        assert!(!shows(&said, &key));
        let text = String::from_utf8_lossy(&key).into_owned();
        assert!(text.len() < 12 || !said.contains(&text[..]), "{text}");
    }
}
