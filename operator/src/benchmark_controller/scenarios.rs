//! Whole runs of a benchmark with a fake API server and the runner's real board (the part that
//! stores its state). Each test is a sequence of reconciliations. Between two reconciliations, the
//! test changes objects as other clients do.

mod world;

use k8s_openapi::jiff::ToSpan;
use kube::runtime::controller::Action;
use muxtunnel_bench_api::result::{Record, Status, Summary};
use muxtunnel_bench_api::runner::{Offer, Phase};
use muxtunnel_crds::{BenchmarkEnvironment, Profile};
use serde_json::json;

use super::test_support::noon;
use crate::testing::benchmark::{NAME, NAMESPACE};
use crate::testing::tunnel::class_json;
use world::World;

const SPEC: &str = "
tunnel: {security: {mode: None}}
connections: [1]
delayMilliseconds: [50]
profiles: [None, WAN]
durationSeconds: 5
warmUpSeconds: 2
";

/// A benchmark of a newer version has not failed: that version can continue it.
#[tokio::test]
async fn a_benchmark_that_cannot_be_decoded_says_so_and_continues_later() {
    let world = World::new(SPEC);
    world.reconcile().await;
    world.start_runner();
    world.reconcile().await;
    let path = format!("muxbenchmarks/{NAME}");
    let known = world.cluster.get(&path).unwrap();
    let mut newer = known.clone();
    newer["spec"]["tool"] = json!("Abacus");
    world.cluster.put(&path, newer);
    world.cluster.take_writes();
    for writes in [1, 0] {
        world.reconcile().await;
        assert_eq!(world.cluster.take_writes().len(), writes);
        let said = world.verdict("Ready").unwrap();
        assert!(
            said.contains("MT0430") && said.contains("spec.tool: "),
            "{said}"
        );
        assert_eq!(world.status().job_name.as_deref(), Some("probe"));
        assert_eq!(world.status().completion_time, None);
    }
    let mut again = world.cluster.get(&path).unwrap();
    again["spec"] = known["spec"].clone();
    world.cluster.put(&path, again);
    world.bring_up(1);
    world.reconcile().await;
    assert_eq!(world.phases(), [Phase::Running, Phase::Waiting]);
}

#[tokio::test]
async fn environments_come_one_after_another_until_the_results_are_safe() {
    let world = World::new(SPEC);
    world.reconcile().await;
    assert_eq!(
        world.cluster.take_writes(),
        [
            "POST secrets",
            "PATCH configmaps/probe-operator",
            "POST jobs",
            "PATCH muxbenchmarks/probe/status"
        ]
    );
    assert_eq!(world.status().job_name.as_deref(), Some("probe"));
    assert_eq!(world.health(), "Progressing");

    world.start_runner();
    world.reconcile().await;
    assert_eq!(
        world.cluster.take_writes(),
        [
            "PATCH services/probe-e1-tunnel-server",
            "PATCH deployments/probe-e1-direct-client",
            "PATCH deployments/probe-e1-direct-server",
            "PATCH deployments/probe-e1-tunnel-client",
            "PATCH deployments/probe-e1-tunnel-server",
            "PATCH muxtunnels/probe-e1-native",
            "PATCH muxbenchmarks/probe/status",
        ]
    );
    assert_eq!(world.phases(), [Phase::Waiting, Phase::Waiting]);

    world.bring_up(1);
    world.reconcile().await;
    assert_eq!(world.phases(), [Phase::Running, Phase::Waiting]);
    let Some(Offer::Ready(addresses)) = world.board().offer_of(0).cloned() else {
        panic!("no environment was offered");
    };
    assert_eq!(addresses.direct.unwrap().host, "10.0.1.2");
    let [tunnel] = &addresses.tunnels[..] else {
        panic!("{:?}", addresses.tunnels);
    };
    assert_eq!(tunnel.protocol, "Native");
    assert_eq!(tunnel.pair.host, "probe-e1-native-entry.site.svc");
    assert_eq!(tunnel.pair.client_url, "http://10.0.1.3:64002");
    assert_eq!(
        tunnel.gateway_status_urls,
        [
            "http://10.0.1.5:64001/status",
            "http://10.0.1.6:64001/status"
        ]
    );
    let environment = BenchmarkEnvironment {
        delay_milliseconds: 50,
        profile: Profile::None,
    };
    assert_eq!(world.status().environment, Some(environment));

    // During the measurement the operator writes nothing.
    world.cluster.take_writes();
    world.reconcile().await;
    assert_eq!(world.cluster.take_writes(), [""; 0]);

    world.measure(0);
    world.reconcile().await;
    assert_eq!(world.names("muxtunnels"), ["probe-e2-native"]);
    assert_eq!(world.names("services"), ["probe-e2-tunnel-server"]);
    assert_eq!(world.names("deployments").len(), 4);
    let cells = world.status().cells.unwrap();
    assert_eq!((cells.ok, cells.total), (2, 4));
    assert_eq!(world.saved().len(), 2);

    world.bring_up(2);
    world.reconcile().await;
    world.measure(1);
    world.end();
    let action = world.reconcile().await;
    assert_eq!(action, Action::await_change());
    assert!(world.board().is_finished());
    assert_eq!(world.names("muxtunnels"), [""; 0]);
    assert_eq!(world.names("deployments"), [""; 0]);
    assert_eq!(world.saved().len(), 5);
    assert_eq!(
        world.verdict("Complete"),
        Some("True MT0502 4 of 4 cells measured, 0 failed, 0 refused".into())
    );
    assert!(world.verdict("Ready").unwrap().starts_with("True MT0502"));
    assert_eq!(world.verdict("Reconciling"), None);
    assert_eq!(world.health(), "Healthy");
    assert_eq!(world.status().best_ratio_percent, Some(100));
    assert!(world.status().completion_time.is_some());
}

#[tokio::test]
async fn an_operator_that_was_restarted_goes_on_where_the_runner_is() {
    let world = World::new(SPEC);
    world.reconcile().await;
    world.start_runner();
    world.reconcile().await;
    world.bring_up(1);
    world.reconcile().await;

    // Another operator process without the state of the first process takes over during the first
    // environment. The new process publishes the hash of its token to the runner, and otherwise
    // writes only the status.
    let world = world.restarted();
    world.cluster.take_writes();
    world.reconcile().await;
    let changes = [
        "PATCH configmaps/probe-operator",
        "PATCH muxbenchmarks/probe/status",
    ];
    assert_eq!(world.cluster.take_writes(), changes);
    assert!(
        world
            .verdict("Reconciling")
            .unwrap()
            .contains("the runner does not know this operator's token yet")
    );
    world.runner.mount(&world.cluster);
    world.reconcile().await;
    assert_eq!(
        world.cluster.take_writes(),
        ["PATCH muxbenchmarks/probe/status"]
    );
    assert_eq!(world.phases(), [Phase::Running, Phase::Waiting]);
    assert_eq!(world.names("muxtunnels"), ["probe-e1-native"]);

    // Another process takes over after the measurement of the first environment.
    world.measure(0);
    let world = world.restarted();
    world.reconcile().await;
    world.runner.mount(&world.cluster);
    world.reconcile().await;
    assert_eq!(world.names("muxtunnels"), ["probe-e2-native"]);
    assert_eq!(world.saved().len(), 2);
}

#[tokio::test]
async fn a_benchmark_that_is_over_is_left_alone_even_when_its_job_is_gone() {
    let world = World::new(SPEC);
    world.reconcile().await;
    world.start_runner();
    for index in 0..2 {
        world.reconcile().await;
        world.bring_up(index + 1);
        world.reconcile().await;
        world.measure(index);
    }
    world.end();
    world.reconcile().await;
    world.cluster.remove(&format!("jobs/{NAME}"));
    world.cluster.take_writes();
    assert_eq!(world.reconcile().await, Action::await_change());
    assert_eq!(world.cluster.take_writes(), [""; 0]);
    assert_eq!(world.names("jobs"), [""; 0]);
    assert!(world.cluster.get("configmaps/probe-results").is_some());
}

#[tokio::test]
async fn a_job_that_is_deleted_before_its_end_is_never_made_again() {
    let world = World::new(SPEC);
    world.reconcile().await;
    world.start_runner();
    world.reconcile().await;
    world.cluster.remove(&format!("jobs/{NAME}"));
    world.cluster.remove("pods/probe-x");
    world.reconcile().await;
    assert_eq!(world.names("jobs"), [""; 0]);
    assert_eq!(world.names("muxtunnels"), [""; 0]);
    assert_eq!(
        world.verdict("Failed"),
        Some("True MT0505 the Job was deleted before its end".into())
    );
}

#[tokio::test]
async fn a_runner_that_ended_unseen_is_judged_by_its_last_words() {
    let world = World::new(SPEC);
    world.reconcile().await;
    world.start_runner();
    let words = Summary {
        cells: 4,
        ok: 3,
        failed: 1,
        first_code: Some("MT0507".into()),
        first_reason: Some("iperf said no".into()),
        ..Summary::default()
    };
    let message = serde_json::to_string(&Record::Summary(words)).unwrap();
    world.set_status(
        "jobs",
        NAME,
        json!({"conditions": [{"type": "Failed", "status": "True"}]}),
    );
    world.set_status(
        "pods",
        "probe-x",
        json!({
            "phase": "Failed",
            "containerStatuses": [{
                "name": "runner", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"terminated": {"exitCode": 1, "message": message}},
            }],
        }),
    );
    world.reconcile().await;
    assert_eq!(
        world.verdict("Failed"),
        Some("True MT0503 3 of 4 cells measured, 1 failed, 0 refused; the first reason: MT0507 iperf said no".into())
    );
}

#[tokio::test]
async fn an_environment_that_is_never_ready_fails_its_cells_and_the_next_one_comes() {
    let mut world = World::new(SPEC);
    world.reconcile().await;
    world.start_runner();
    world.reconcile().await;
    assert_eq!(world.phases(), [Phase::Waiting, Phase::Waiting]);
    let mut tunnel = world.cluster.get("muxtunnels/probe-e1-native").unwrap();
    tunnel["metadata"]["creationTimestamp"] = json!(noon());
    world.cluster.put("muxtunnels/probe-e1-native", tunnel);
    world.now = || noon() + 181.seconds();
    world.reconcile().await;
    let Some(Offer::Unavailable(why)) = world.board().offer_of(0).cloned() else {
        panic!("nothing was offered");
    };
    assert_eq!((why.status, why.code.as_str()), (Status::Failed, "MT0504"));
    assert_eq!(
        why.reason,
        "not ready within 180 s: the pod of the agent direct-client does not exist yet"
    );
    world.board().end_environment(0);
    world.reconcile().await;
    assert_eq!(world.names("muxtunnels"), ["probe-e2-native"]);
}

#[tokio::test]
async fn a_pod_that_cannot_be_created_is_the_reason_why_the_benchmark_waits() {
    let world = World::new(SPEC);
    world.reconcile().await;
    world.reconcile().await;
    let said = || world.verdict("Reconciling").unwrap();
    assert!(said().contains("the Job has no pod yet"), "{}", said());
    let note =
        "Error creating: pods \"probe-x\" is forbidden: minimum cpu usage per Container is 50m";
    let job = world.cluster.get(&format!("jobs/{NAME}")).unwrap();
    let event = json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "probe.1"},
        "eventTime": null, "reason": "FailedCreate", "note": note,
        "regarding": {"uid": job["metadata"]["uid"]},
    });
    world.cluster.put("events/probe.1", event);
    world.reconcile().await;
    let expected = format!("the pod of the Job probe cannot be created: {note}");
    assert!(said().contains(&expected), "{}", said());

    world.start_runner();
    world.reconcile().await;
    let refused = json!({"conditions": [{
        "type": "ReplicaFailure", "status": "True", "message": "exceeded quota: small",
    }]});
    world.set_status("deployments", "probe-e1-direct-client", refused);
    world.reconcile().await;
    assert!(said().contains("exceeded quota: small"), "{}", said());
}

#[tokio::test]
async fn an_environment_is_offered_when_the_tunnels_of_all_protocols_are_ready() {
    let world = World::new(&format!("{SPEC}protocols: [JMUX, Native]\n"));
    world.reconcile().await;
    world.start_runner();
    world.reconcile().await;
    assert_eq!(
        world.names("muxtunnels"),
        ["probe-e1-jmux", "probe-e1-native"]
    );
    world.bring_agents_up(1);
    world.bring_tunnel_up(1, "jmux", 5);
    world.reconcile().await;
    assert_eq!(world.phases(), [Phase::Waiting, Phase::Waiting]);
    let waits = world.verdict("Reconciling").unwrap();
    assert!(waits.contains("MuxTunnel probe-e1-native"), "{waits}");

    world.bring_tunnel_up(1, "native", 7);
    world.reconcile().await;
    let Some(Offer::Ready(addresses)) = world.board().offer_of(0).cloned() else {
        panic!("no environment was offered");
    };
    let tunnels = addresses.tunnels.iter().map(|tunnel| {
        let (host, gateways) = (&tunnel.pair.host, &tunnel.gateway_status_urls);
        (
            tunnel.protocol.as_str(),
            host.as_str(),
            gateways[0].as_str(),
        )
    });
    assert_eq!(
        tunnels.collect::<Vec<_>>(),
        [
            (
                "JMUX",
                "probe-e1-jmux-entry.site.svc",
                "http://10.0.1.5:64001/status"
            ),
            (
                "Native",
                "probe-e1-native-entry.site.svc",
                "http://10.0.1.7:64001/status"
            )
        ]
    );
}

#[tokio::test]
async fn a_delay_that_cannot_be_made_is_refused_at_once() {
    let spec = SPEC.replace("profiles: [None, WAN]", "profiles: [None]\npaths: [Tunnel]");
    let world = World::new(&spec);
    world.reconcile().await;
    world.start_runner();
    world.reconcile().await;
    world.tunnel_condition(
        "probe-e1-native",
        "WANEmulated",
        "False",
        "WanUnsupported",
        "MT0404 no sch_netem, no NFQUEUE",
    );
    world.reconcile().await;
    let Some(Offer::Unavailable(why)) = world.board().offer_of(0).cloned() else {
        panic!("nothing was offered");
    };
    assert_eq!((why.status, why.code.as_str()), (Status::Refused, "MT0404"));
    assert_eq!(
        why.reason,
        "MuxTunnel probe-e1-native: MT0404 no sch_netem, no NFQUEUE"
    );
}

#[tokio::test]
async fn a_delay_that_the_class_does_not_permit_makes_no_environment() {
    let mut world = World::new(SPEC);
    world.class["spec"]["permitted"]["features"] = json!(["Network"]);
    world.reconcile().await;
    world.start_runner();
    world.reconcile().await;
    let Some(Offer::Unavailable(why)) = world.board().offer_of(0).cloned() else {
        panic!("nothing was offered");
    };
    assert_eq!((why.status, why.code.as_str()), (Status::Refused, "MT0372"));
    assert_eq!(world.names("muxtunnels"), [""; 0]);
}

/// The class of a benchmark can come later, so the benchmark has not failed.
#[tokio::test]
async fn a_benchmark_waits_for_its_class_and_belongs_to_the_operator_of_it() {
    let mut world = World::new(&format!("className: canary{SPEC}"));
    world.reconcile().await;
    assert_eq!(
        world.cluster.take_writes(),
        ["PATCH muxbenchmarks/probe/status"]
    );
    let said = world.verdict("Ready").unwrap();
    assert!(
        said.starts_with("False MT0370 no MuxClass canary exists"),
        "{said}"
    );
    assert_eq!(world.status().completion_time, None);
    world.class["metadata"]["name"] = json!("canary");
    world.class["spec"]["controllerName"] = json!("example.com/operator");
    world.reconcile().await;
    assert_eq!(world.cluster.take_writes(), [""; 0]);
    world.class = class_json();
    world.class["metadata"]["name"] = json!("canary");
    world.class["spec"]["images"] = json!({"bench": "own/bench:1"});
    world.class["spec"]["imagePullSecrets"] = json!([{"name": "registry"}]);
    world.class["spec"]["template"] = json!({"spec": {"nodeSelector": {"pool": "mux"}}});
    world.reconcile().await;
    world.start_runner();
    world.reconcile().await;
    let pod = |path: &str| world.cluster.get(path).unwrap()["spec"]["template"]["spec"].clone();
    for path in ["jobs/probe", "deployments/probe-e1-tunnel-client"] {
        let pod = pod(path);
        assert_eq!(pod["containers"][0]["image"], "own/bench:1", "{path}");
        assert_eq!(pod["imagePullSecrets"], json!([{"name": "registry"}]));
        assert_eq!(pod["nodeSelector"], json!({"pool": "mux"}), "{path}");
    }
    let tunnel = world.cluster.get("muxtunnels/probe-e1-native").unwrap();
    assert_eq!(tunnel["spec"]["className"], "canary");
}

#[tokio::test]
async fn a_job_of_that_name_that_is_not_ours_is_not_touched() {
    let world = World::new(SPEC);
    world.cluster.put(
        &format!("jobs/{NAME}"),
        json!({"metadata": {"name": NAME, "namespace": NAMESPACE}}),
    );
    world.reconcile().await;
    assert!(
        world
            .verdict("Failed")
            .unwrap()
            .starts_with("True MT0310 Job probe exists")
    );
}

#[tokio::test]
async fn a_spec_that_cannot_be_run_is_refused_for_good() {
    let world = World::new(&SPEC.replace("durationSeconds: 5", "durationSeconds: 2"));
    world.reconcile().await;
    assert_eq!(
        world.verdict("Failed"),
        Some("True MT0104 warmUpSeconds 2 must be less than durationSeconds 2, which includes the warm-up".into())
    );
    assert!(world.verdict("Ready").unwrap().starts_with("False MT0104"));
    assert!(world.verdict("Stalled").unwrap().starts_with("True MT0104"));
    assert_eq!(world.health(), "Degraded");
    assert_eq!(world.names("jobs"), [""; 0]);
    assert_eq!(world.reconcile().await, Action::await_change());
}
