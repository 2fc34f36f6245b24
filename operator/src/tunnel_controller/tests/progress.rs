//! The conditions `Reconciling` and `Stalled`, which tools read to wait for an object, and
//! `Accepted` and `Programmed`.

use serde_json::json;

use super::bench::Bench;
use super::*;

fn find(bench: &Bench, type_: &str) -> Option<Value> {
    condition(&bench.api, &bench.path(), type_)
}

#[tokio::test]
async fn an_object_is_reconciling_until_its_gateways_have_its_spec() {
    let all = [SMALLEST, ELSEWHERE, EXIT, RENDEZVOUS];
    for spec in all.into_iter() {
        let bench = Bench::new(spec);
        bench.reconcile().await.unwrap();
        assert_eq!(bench.condition("Accepted")["status"], "True");
        assert_eq!(bench.condition("Programmed")["status"], "False");
        assert_eq!(bench.condition("Reconciling")["status"], "True");
        assert_eq!(find(&bench, "Stalled"), None);
        bench.run().await;
        for type_ in ["Accepted", "Programmed", "Ready"] {
            let condition = bench.condition(type_);
            assert_eq!(condition["status"], "True", "{condition}");
            assert_eq!(condition["observedGeneration"], 1, "{type_}");
        }
        for absent in ["Reconciling", "Stalled"] {
            assert_eq!(find(&bench, absent), None, "{spec}");
        }
        let object = bench.object();
        assert_eq!(
            object["status"]["observedGeneration"],
            object["metadata"]["generation"]
        );
    }
}

#[tokio::test]
async fn what_only_a_person_can_end_is_stalled() {
    let far = FAR.replace("security: {mode: None}\n", "");
    for (spec, reason) in [
        (SMALLEST.replace("443", "8080"), "InvalidSpec"),
        (far, "TargetNotPermitted"),
    ] {
        let bench = Bench::new(&spec);
        for _ in 0..2 {
            bench.reconcile().await.unwrap();
        }
        let stalled = bench.condition("Stalled");
        assert_eq!(
            (&stalled["status"], &stalled["reason"]),
            (&json!("True"), &json!(reason))
        );
        let ready = bench.condition("Ready");
        let (why, stalled) = (ready["message"].as_str(), stalled["message"].as_str());
        assert!(why.unwrap().starts_with(stalled.unwrap()), "{ready}");
        if reason == "InvalidSpec" {
            assert_eq!(bench.condition("Accepted")["status"], "False");
            assert_eq!(find(&bench, "Reconciling"), None);
        }
        bench.edit(SMALLEST);
        bench.run().await;
        assert_eq!(find(&bench, "Stalled"), None);
        assert_eq!(bench.condition("Ready")["status"], "True");
    }
}

/// A condition that does not apply is absent, so that nobody has to know which condition applies.
#[tokio::test]
async fn each_kind_has_the_conditions_that_apply_to_it() {
    let all = [
        (
            SMALLEST,
            &[
                "Accepted",
                "Available",
                "Connected",
                "Programmed",
                "Ready",
                "TuningApplied",
            ][..],
        ),
        (
            MANAGED,
            &[
                "Accepted",
                "Available",
                "Connected",
                "CredentialsValid",
                "Programmed",
                "Ready",
                "TuningApplied",
            ],
        ),
        (
            EXIT,
            &[
                "Accepted",
                "Available",
                "CredentialsValid",
                "Programmed",
                "Ready",
                "TuningApplied",
            ],
        ),
        (
            RENDEZVOUS,
            &[
                "Accepted",
                "Available",
                "CredentialsValid",
                "Programmed",
                "Ready",
            ],
        ),
    ];
    for (spec, expected) in all.into_iter() {
        let bench = Bench::new(spec);
        bench.run().await;
        let status = bench.status();
        let conditions = status["conditions"].as_array().unwrap().iter();
        let mut types: Vec<_> = conditions
            .map(|one| one["type"].as_str().unwrap())
            .collect();
        types.sort_unstable();
        assert_eq!(types, expected, "{spec}");
    }
}
