//! Tests faults at every request. After the faults, the stored children match the built children,
//! and the writes stop.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::bench::{Bench, TUNNEL};

/// The annotation with the hash of a built object.
const APPLIED_HASH: &str = "muxtunnel.dev/applied-hash";
use super::*;
use crate::failure::Coded;
use crate::testing::Failure;
use crate::tunnel_controller::Error;
use muxtunnel_codes::Code;

/// Reconciles until nothing more is written, while other controllers act. Returns the objects.
async fn settled(bench: &Bench) -> BTreeMap<String, Value> {
    for _ in 0..10 {
        let before = (bench.api.writes(), bench.api.newest());
        let ended = bench.reconcile().await;
        bench.api.run_jobs();
        see_deployments(bench);
        if ended.is_ok() && (bench.api.writes(), bench.api.newest()) == before {
            return without_chance(bench.api.snapshot());
        }
    }
    panic!("writes do not stop: {:?}", bench.api.take_writes());
}

/// Acts as the controller of Deployments, which sees each template.
fn see_deployments(bench: &Bench) {
    for mut deployment in bench.api.list("deployments") {
        let name = deployment["metadata"]["name"].as_str().unwrap().to_owned();
        let seen = deployment["metadata"]["generation"].clone();
        if deployment["status"]["observedGeneration"] != seen {
            deployment["status"] = serde_json::json!({"observedGeneration": seen});
            bench.api.put(&format!("deployments/{name}"), deployment);
        }
    }
}

/// Replaces random values. Keys and the names of their Secrets differ each time, so only the
/// existence of a mounted Secret is compared. An operator that was killed before it wrote the
/// Deployments leaves a Secret that nobody mounts.
fn without_chance(mut objects: BTreeMap<String, Value>) -> BTreeMap<String, Value> {
    let mut pairs = Vec::new();
    for (path, object) in &mut objects {
        if path.starts_with("deployments/") {
            // The generation counts the writes.
            object.as_object_mut().unwrap().remove("status");
            // The hash includes the name of the Secret.
            object["metadata"]["annotations"][APPLIED_HASH] = Value::Null;
            let volumes = &mut object["spec"]["template"]["spec"]["volumes"];
            for volume in volumes.as_array_mut().into_iter().flatten() {
                let name = volume["secret"]["secretName"].take();
                if let Some(name) = name.as_str() {
                    pairs.push(name.to_owned());
                }
            }
        }
    }
    pairs.sort();
    pairs.dedup();
    assert!(pairs.len() <= 1, "{pairs:?}");
    for pair in pairs {
        let secret = objects.get(&format!("secrets/{pair}"));
        assert_eq!(secret.unwrap()["data"].as_object().unwrap().len(), 4);
    }
    objects.retain(|path, _| !path.starts_with("secrets/"));
    objects
}

/// A spec with every kind of child.
fn whole() -> String {
    format!(
        "{MANAGED}{}",
        "entry: {autoscaling: {minReplicas: 2, maxReplicas: 8}, template: {spec: {containers: [{name: gateway, resources: {requests: {cpu: 1}}}]}}}\n\
         exit: {replicas: 3}\n\
         tuning: {allowUnsafe: true, sysctls: [{name: net.a, value: '1'}]}\n"
    )
}

fn native() -> String {
    SMALLEST.replace("protocol: JMUX", "protocol: Native")
}

/// The state before a run, and the change.
#[derive(Debug, Clone, Copy)]
enum Scenario {
    /// A new tunnel.
    New,
    /// Another protocol: configurations and pods change, and a Service is deleted.
    Change,
    /// Children were changed and deleted.
    Drift,
    /// A new tunnel that has children of every kind.
    Whole,
}

impl Scenario {
    const ALL: [Self; 4] = [Self::New, Self::Change, Self::Drift, Self::Whole];

    async fn begin(self) -> Bench {
        match self {
            Self::New => Bench::new(SMALLEST),
            Self::Whole => Bench::new(&whole()),
            Self::Change => {
                let bench = Bench::new(&native());
                settled(&bench).await;
                bench.edit(SMALLEST);
                bench
            }
            Self::Drift => {
                let bench = Bench::new(SMALLEST);
                settled(&bench).await;
                bench.api.remove("serviceaccounts/office-tunnel-exit");
                bench.api.remove("deployments/office-entry");
                let mut service = bench.api.get("services/office-tunnel-exit").unwrap();
                service["spec"]["ports"] = serde_json::json!([]);
                bench.api.put("services/office-tunnel-exit", service);
                let mut deployment = bench.api.get("deployments/office-tunnel-exit").unwrap();
                let selector = serde_json::json!({"of": "an older version"});
                deployment["spec"]["selector"]["matchLabels"] = selector;
                bench.api.put("deployments/office-tunnel-exit", deployment);
                bench
            }
        }
    }

    /// The objects at the end of a run without faults, and the number of writes.
    async fn reference(self) -> (BTreeMap<String, Value>, usize) {
        let bench = self.begin().await;
        let before = bench.api.writes();
        bench.api.take_requests();
        let objects = settled(&bench).await;
        let writes = bench.api.take_writes();
        match self {
            Self::New => assert_eq!(writes.len(), 11, "{writes:?}"),
            Self::Whole => {
                for kind in [
                    "secrets",
                    "jobs",
                    "networkpolicies",
                    "poddisruptionbudgets",
                    "horizontalpodautoscalers",
                ] {
                    let has = writes.iter().any(|write| write.contains(kind));
                    assert!(has, "{kind}: {writes:?}");
                }
            }
            Self::Change | Self::Drift => {
                let deletes = writes.iter().filter(|write| write.starts_with("DELETE"));
                assert_eq!(deletes.count(), 1, "{writes:?}");
            }
        }
        (objects, bench.api.writes() - before)
    }
}

/// The test omits crashes before a write: for the next process, they equal a crash after the
/// previous write. With `--nocapture` the test prints the number of writes.
#[tokio::test]
async fn an_operator_that_is_killed_at_any_write_is_followed_by_one_that_ends_in_the_same_state() {
    for scenario in Scenario::ALL {
        let (reference, writes) = scenario.reference().await;
        println!("{scenario:?}: killed after each of {writes} writes");
        for number in 0..writes {
            let mut bench = scenario.begin().await;
            bench.api.fail_write(number, Failure::Killed);
            // The result depends on the failed write: a failure to publish the last Event does not
            // fail the reconciliation.
            let _failed_or_not = bench.reconcile().await;
            bench.restart();
            let objects = settled(&bench).await;
            assert_eq!(objects, reference, "{scenario:?}, write {number}");
        }
    }
}

#[tokio::test]
async fn so_do_two_that_are_killed_one_after_the_other() {
    let (reference, writes) = Scenario::New.reference().await;
    for (first, second) in (0..writes).flat_map(|first| (0..writes).map(move |s| (first, s))) {
        let mut bench = Scenario::New.begin().await;
        for number in [first, second] {
            bench.api.fail_write(number, Failure::Killed);
            let _failed_or_not = bench.reconcile().await;
            bench.restart();
        }
        let objects = settled(&bench).await;
        assert_eq!(objects, reference, "after the writes {first} and {second}");
    }
}

#[tokio::test]
async fn a_refused_or_lost_answer_at_any_write_is_an_error_and_ends_in_the_same_state() {
    for scenario in Scenario::ALL {
        let (reference, writes) = scenario.reference().await;
        for number in 0..writes {
            for failure in [Failure::Before(409), Failure::After(500)] {
                let bench = scenario.begin().await;
                bench.api.fail_write(number, failure);
                let ended = bench.reconcile().await;
                if let Err(error) = ended {
                    let expected = [Code::WriteConflict, Code::ApiUnavailable];
                    assert!(expected.contains(&error.code()), "{error}");
                }
                let objects = settled(&bench).await;
                assert_eq!(
                    objects, reference,
                    "{scenario:?}, write {number}: {failure:?}"
                );
            }
        }
    }
}

/// Removes generations, because they count the edits.
fn without_generations(mut objects: BTreeMap<String, Value>) -> BTreeMap<String, Value> {
    let status = &mut objects.get_mut(TUNNEL).unwrap()["status"];
    status["observedGeneration"] = Value::Null;
    let conditions = status["conditions"].as_array_mut();
    for condition in conditions.into_iter().flatten() {
        condition["observedGeneration"] = Value::Null;
    }
    objects
}

/// Random faults: a third of all writes fail, watches lag, the operator sometimes restarts, and the
/// spec changes.
#[tokio::test]
async fn whatever_chance_does_the_end_is_the_same() {
    let (mut failed, mut behind) = (0, 0);
    for (scenario, spec, other, seeds) in [
        (Scenario::New, SMALLEST.to_owned(), native(), 0..30),
        (Scenario::Whole, whole(), SMALLEST.to_owned(), 30..40),
    ] {
        let reference = without_generations(scenario.reference().await.0);
        for seed in seeds {
            let mut chance = StdRng::seed_from_u64(seed);
            let mut bench = Bench::new(&spec);
            bench.watches.borrow_mut().deliver(&bench.api);
            bench.api.fail_by_chance(seed, 0.3);
            for step in 0..30 {
                match chance.random_range(0..12) {
                    0 => {
                        bench.restart();
                        bench.api.fail_by_chance(seed * 100 + step, 0.3);
                        bench.watches.borrow_mut().deliver(&bench.api);
                    }
                    1 => bench.edit(&other),
                    2 => bench.edit(&spec),
                    3 => bench.api.remove("services/office-entry"),
                    4 => bench.api.run_jobs(),
                    _ => {}
                }
                let seen = bench.watches.borrow().seen();
                let until = seen + chance.random_range(0..8);
                bench.watches.borrow_mut().deliver_until(&bench.api, until);
                behind += usize::from(bench.watches.borrow().seen() < bench.api.newest());
                failed += usize::from(bench.reconcile_known().await.is_err());
            }
            bench.edit(&spec);
            bench.api.heal();
            let objects = without_generations(settled(&bench).await);
            assert_eq!(objects, reference, "{scenario:?}, seed {seed}");
        }
    }
    assert!(
        failed > 200 && behind > 200,
        "{failed} failed, {behind} behind"
    );
}

#[tokio::test]
async fn nothing_is_written_twice_while_the_watches_are_silent() {
    // The whole spec needs more writes than the smallest: the Secret with keys and the Job.
    // No Deployment is written before the Job ends.
    for (spec, writes) in [(SMALLEST.to_owned(), 11), (whole(), 11)] {
        let bench = Bench::new(&spec);
        bench.watches.borrow_mut().deliver(&bench.api);
        bench.reconcile_known().await.unwrap();
        assert_eq!(bench.api.take_writes().len(), writes);
        for _ in 0..10 {
            // Reconciles the newest known object, as the controller does.
            let tunnels = &bench.context.access.caches.tunnels;
            assert_eq!(*bench.tunnel(), *tunnels.newest(bench.tunnel()));
            bench.reconcile_known().await.unwrap();
        }
        let mut requests = bench.api.take_requests();
        // Only Events have the reason why a Job has no pod yet.
        requests.retain(|request| request.path != "events");
        assert!(requests.is_empty(), "{requests:?}");
    }
}

#[tokio::test]
async fn an_operator_that_is_behind_deletes_nothing() {
    let bench = Bench::new(SMALLEST);
    bench.reconcile().await.unwrap();
    let behind = bench.known();
    bench.edit(&native());
    bench.reconcile().await.unwrap();
    let path = "services/office-tunnel-exit-headless";
    let uid = bench.api.get(path).unwrap()["metadata"]["uid"].clone();
    // An operator that has just taken over may know newer children than the tunnel.
    let ended = crate::tunnel_controller::reconcile(behind, bench.context.clone()).await;
    let error = ended.unwrap_err();
    assert!(
        matches!(error, Error::Apply(_)) && error.code() == Code::StaleRead,
        "{error}"
    );
    assert_eq!(bench.api.get(path).unwrap()["metadata"]["uid"], uid);
    settled(&bench).await;
    assert_eq!(bench.api.get(path).unwrap()["metadata"]["uid"], uid);
}

#[tokio::test]
async fn nothing_is_made_again_for_a_tunnel_that_is_gone() {
    let bench = Bench::new(&native());
    settled(&bench).await;
    let last_known = bench.known();
    bench.api.remove(TUNNEL);
    let ended = crate::tunnel_controller::reconcile(last_known, bench.context.clone()).await;
    // The caches still contain the tunnel's children, so only the status of the missing tunnel
    // remains to be written.
    assert!(ended.is_ok(), "{ended:?}");
    let left: Vec<_> = bench.api.snapshot().into_keys().collect();
    assert_eq!(left, ["endpointslices/shop-1", "services/shop"]);
}
