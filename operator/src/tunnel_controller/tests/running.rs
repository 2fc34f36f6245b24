//! Tests the whole controller against the API server in memory, including its watches and its
//! leader election.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tower::Layer;

use super::*;
use crate::api_server::ApiServer;
use crate::apply::Settled;
use crate::caches::{Cluster, Feeds, Targets};
use crate::class_controller::{self, Planner};
use crate::classes::tests::{Known, known as known_classes};
use crate::clock::Clock;
use crate::events::Events;
use crate::grants::tests::known;
use crate::interceptor::InterceptorLayer;
use crate::leader::{Elector, Leadership, WriteGate};
use crate::metrics::Metrics;
use crate::peer_controller;
use crate::testing::kubelet::Healthy;
use crate::testing::{FakeApi, Trouble};
use crate::tunnel_controller::access::{Access, Memory, Outputs};
use crate::tunnel_controller::observe::Gateways;
use crate::tunnel_controller::{Context, run};
use crate::upgrades::turns::Turns;
use crate::watch_clock::WatchClock;
use crate::watches;

/// One process of the operator.
pub(super) struct Process {
    pub(super) controller: JoinHandle<()>,
    election: Option<JoinHandle<()>>,
    planner: Option<Planner>,
    planning: Option<JoinHandle<()>>,
    peers: JoinHandle<()>,
    pub(super) leadership: Leadership,
    pub(super) metrics: Metrics,
    pub(super) clock: Arc<WatchClock>,
    pub(super) classes: Mutex<Known>,
}

impl Process {
    /// A process that does not compete for the Lease.
    pub(super) fn alone(api: &FakeApi) -> Self {
        Self::with(api, Leadership::always())
    }

    /// A process that competes with others for the Lease.
    pub(super) fn competing(api: &FakeApi, identity: &str) -> Self {
        let name = "muxtunnel-operator".to_owned();
        let mut elector = Elector::new(
            api.client(),
            "mux",
            name,
            identity.to_owned(),
            Clock::system(),
        );
        let mut process = Self::with(api, elector.leadership());
        process.election = Some(tokio::spawn(async move { elector.run().await }));
        process
    }

    fn with(api: &FakeApi, leadership: Leadership) -> Self {
        Self::of(api.client(), Healthy(api.clone()), leadership)
    }

    /// A process with this API server and these gateways.
    pub(super) fn of(api: kube::Client, gateways: impl Gateways, leadership: Leadership) -> Self {
        let clock = Arc::new(WatchClock::default());
        let metrics = Metrics::new(leadership.clone(), clock.clone());
        let service = tower::service_fn(move |request| {
            let api = api.clone();
            async move { api.send(request).await }
        });
        let service = InterceptorLayer(clock.clone()).layer(service);
        let service = InterceptorLayer(metrics.clone()).layer(service);
        let service = InterceptorLayer(WriteGate(leadership.clone())).layer(service);
        let client = kube::Client::new(service, "default");
        let all = Feeds::default();
        let caches = all.caches();
        let targets = Targets::new([(None, caches.clone())]);
        let cluster = Cluster {
            client: client.clone(),
            caches,
            settled: Settled::default(),
        };
        let classes = known_classes([class_json()]);
        let planner = Planner {
            client: client.clone(),
            scopes: vec![cluster.caches.clone()],
            classes: classes.classes.clone(),
            turns: Turns::default(),
            figures: metrics.classes.clone(),
            clock: Clock::system(),
        };
        let memory = Memory::new(client.clone());
        let access = Access {
            caches: cluster.caches.clone(),
            reader: cluster.reader(),
            targets,
            grants: known([]),
            classes: classes.classes.clone(),
            turns: planner.turns.clone(),
            api_server: ApiServer::default(),
            memory: memory.clone(),
            watches: clock.clone(),
            settings: Arc::new(settings()),
        };
        let outputs = Outputs {
            cluster: cluster.clone(),
            memory,
            figures: metrics.tunnels.clone(),
            refreshes_volumes: settings().refresh_volumes,
        };
        let events = Events::new(client, Clock::system());
        let context = Context::new((access, outputs), gateways, events, Clock::system());
        let (changed, queued) = watches::queue();
        let served = (cluster, classes.classes.clone());
        let (term, figures) = (leadership.clone(), metrics.clone());
        let peers = peer_controller::run(served, Clock::system(), queued, term, figures);
        let (term, figures) = (leadership.clone(), metrics.clone());
        let controller = run(context, None, (all, changed), term, figures);
        Self {
            controller: tokio::spawn(controller),
            election: None,
            planner: Some(planner),
            planning: None,
            peers: tokio::spawn(peers),
            leadership,
            metrics,
            clock,
            classes: Mutex::new(classes),
        }
    }

    /// Starts the controller of classes.
    pub(super) fn plan(&mut self) {
        let planner = self.planner.take().unwrap();
        let planning = class_controller::run(planner, self.leadership.clone());
        self.planning = Some(tokio::spawn(planning));
    }

    /// Ends the process without cleanup, like SIGKILL.
    fn kill(&self) {
        self.controller.abort();
        self.peers.abort();
        for task in [&self.planning, &self.election].into_iter().flatten() {
            task.abort();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

pub(super) fn put_tunnel(api: &FakeApi, name: &str) {
    let mut tunnel = object_json(SMALLEST);
    tunnel["metadata"]["name"] = json!(name);
    tunnel["metadata"]["uid"] = json!(format!("uid-of-{name}"));
    api.put(&format!("muxtunnels/{name}"), tunnel);
}

pub(super) fn server() -> FakeApi {
    let api = FakeApi::default();
    api.put("services/shop", shop_json());
    api
}

/// Waits until `holds` returns true.
pub(super) async fn until(what: &str, holds: impl Fn() -> bool) {
    let all = async {
        while !holds() {
            sleep(Duration::from_millis(50)).await;
        }
    };
    let waited = timeout(Duration::from_mins(2), all).await;
    assert!(waited.is_ok(), "not within two minutes: {what}");
}

pub(super) fn is_ready(api: &FakeApi, name: &str) -> bool {
    is_ready_at(api, &format!("muxtunnels/{name}"))
}

/// Whether the object at `path` is ready.
pub(super) fn is_ready_at(api: &FakeApi, path: &str) -> bool {
    condition(api, path, "Ready").is_some_and(|ready| ready["status"] == "True")
}

/// The message of the condition on a stale watch.
fn stale_watch(api: &FakeApi, name: &str) -> Option<String> {
    let condition = condition(api, &format!("muxtunnels/{name}"), "Programmed")?;
    let message = condition["message"].as_str().map(str::to_owned);
    message.filter(|_| condition["status"] == "Unknown")
}

/// The other watches continue while the API server refuses one kind, drops the kind's watch, or
/// never answers the watch.
#[tokio::test(start_paused = true)]
async fn one_kind_in_trouble_silences_no_other() {
    for trouble in [Trouble::Status(403), Trouble::Status(500), Trouble::Hangs] {
        // The failure begins either with the process or after a phase without failures.
        for from_the_beginning in [true, false] {
            let api = server();
            let case = format!("{trouble:?}, from the beginning: {from_the_beginning}");
            if from_the_beginning {
                api.trouble("pods", Some(trouble));
            }
            let process = Process::alone(&api);
            put_tunnel(&api, "office");
            until(&case, || api.get("deployments/office-entry").is_some()).await;
            if !from_the_beginning {
                api.run_pods();
                until(&case, || is_ready(&api, "office")).await;
                api.trouble("pods", Some(trouble));
                sleep(Duration::from_secs(90)).await;
            }
            let mut service = api.get("services/office-tunnel-exit").unwrap();
            service["spec"]["ports"] = json!([]);
            api.put("services/office-tunnel-exit", service);
            let is_back = || {
                let service = api.get("services/office-tunnel-exit").unwrap();
                service["spec"]["ports"] != json!([])
            };
            until(&case, is_back).await;
            // A new tunnel is served.
            put_tunnel(&api, "branch");
            until(&case, || {
                api.get("deployments/branch-tunnel-exit").is_some()
            })
            .await;
            // Only the failing watch is stale.
            sleep(Duration::from_secs(200)).await;
            let stale: Vec<_> = process
                .clock
                .ages(Instant::now())
                .into_iter()
                .filter(|(_, age)| *age > Duration::from_secs(180))
                .map(|(path, _)| path)
                .collect();
            assert_eq!(stale, ["/api/v1/pods"], "{case}");
            let names = ["office", "branch"];
            if !from_the_beginning {
                // The operator does not know whether the tunnel still has its configuration.
                let is_told = || stale_watch(&api, "office").is_some_and(|of| of.contains("/pods"));
                until(&case, is_told).await;
            }
            // After an answer, the watch is current again without a restart.
            api.trouble("pods", None);
            api.run_pods();
            until(&case, || {
                let is_well =
                    |name: &str| is_ready(&api, name) && stale_watch(&api, name).is_none();
                names.into_iter().all(is_well)
            })
            .await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_target_that_comes_is_served_at_once() {
    let api = FakeApi::default();
    let _process = Process::alone(&api);
    put_tunnel(&api, "office");
    until("the children", || {
        api.get("deployments/office-entry").is_some()
    })
    .await;
    api.run_pods();
    sleep(Duration::from_secs(10)).await;
    assert!(!is_ready(&api, "office"));
    let begin = Instant::now();
    api.put("services/shop", shop_json());
    let config = || api.get("configmaps/office-entry").unwrap().to_string();
    until("its forward", || config().contains("web")).await;
    assert!(
        begin.elapsed() < Duration::from_secs(2),
        "{:?}",
        begin.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn a_follower_writes_nothing_and_takes_over_all_tunnels_when_the_leader_is_killed() {
    let api = server();
    for number in 0..5 {
        put_tunnel(&api, &format!("t{number}"));
    }
    let leader = Process::competing(&api, "first");
    until("the leader's", || leader.leadership.is_held()).await;
    let follower = Process::competing(&api, "second");
    until("children", || api.get("deployments/t4-entry").is_some()).await;
    api.run_pods();
    until("readiness", || {
        (0..5).all(|number| is_ready(&api, &format!("t{number}")))
    })
    .await;
    assert!(!follower.leadership.is_held());
    let page = follower.metrics.render().unwrap();
    let writes = page.lines().find(|line| {
        ["patch", "create", "delete", "update"]
            .iter()
            .any(|verb| line.contains(&format!("verb=\"{verb}\"")))
    });
    assert_eq!(writes, None, "a follower sends no writes");
    assert!(page.contains("muxtunnel_operator_leader 0"));

    leader.kill();
    // One change of each kind happens while no process leads.
    api.remove("deployments/t0-entry");
    put_tunnel(&api, "new");
    let mut edited = api.get("muxtunnels/t1").unwrap();
    edited["spec"]["forwards"][1]["port"] = json!(444);
    edited["metadata"]["generation"] = json!(2);
    api.put("muxtunnels/t1", edited);
    let killed = Instant::now();
    until("the deleted", || api.get("deployments/t0-entry").is_some()).await;
    until("the new", || api.get("deployments/new-entry").is_some()).await;
    let port = || api.get("services/t1-entry").unwrap()["spec"]["ports"].to_string();
    until("the edited", || port().contains("444")).await;
    assert!(
        killed.elapsed() < Duration::from_secs(20),
        "{:?}",
        killed.elapsed()
    );
    assert!(
        follower
            .metrics
            .render()
            .unwrap()
            .contains("muxtunnel_operator_leader 1")
    );
}

/// The follower knew the peer before it became the leader, and the peer does not change.
#[tokio::test(start_paused = true)]
async fn a_new_leader_deletes_the_expired_peers_that_it_knew_before() {
    let api = server();
    let leader = Process::competing(&api, "first");
    until("the leader's", || leader.leadership.is_held()).await;
    let _follower = Process::competing(&api, "second");
    api.deny("muxpeers/laptop", 403);
    api.put(
        "muxpeers/laptop",
        json!({
            "apiVersion": "muxtunnel.dev/v1alpha1", "kind": "MuxPeer", "metadata": {"uid": "uid-of-laptop"},
            "spec": {
                "exitRef": {"name": "gone"}, "publicKeys": ["mte1..."],
                "expirationTime": "2020-01-01T00:00:00Z", "ttlSecondsAfterExpiration": 0,
            },
        }),
    );
    let tries = || {
        let requests = api.take_requests().into_iter();
        requests
            .filter(|request| request.method == "DELETE" && request.path == "muxpeers/laptop")
            .count()
    };
    until("the leader's try", || tries() > 0).await;
    leader.kill();
    api.permit("muxpeers/laptop");
    until("the deletion", || api.get("muxpeers/laptop").is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_away_for_a_minute_costs_no_more_than_another() {
    let api = server();
    put_tunnel(&api, "office");
    let process = Process::competing(&api, "only");
    until("children", || api.get("deployments/office-entry").is_some()).await;
    api.run_pods();
    until("readiness", || is_ready(&api, "office")).await;
    api.go_away(true);
    sleep(Duration::from_mins(1)).await;
    assert!(!process.leadership.is_held());
    api.remove("deployments/office-entry");
    api.go_away(false);
    let back = Instant::now();
    until("the deleted", || {
        api.get("deployments/office-entry").is_some()
    })
    .await;
    assert!(
        back.elapsed() < Duration::from_secs(60),
        "{:?}",
        back.elapsed()
    );
}

/// The number of reconciliations.
fn reconciliations(process: &Process) -> u64 {
    let page = process.metrics.render().unwrap();
    let counts = page
        .lines()
        .filter(|line| line.starts_with("muxtunnel_operator_reconcile_seconds_count"));
    counts
        .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
        .sum()
}

#[tokio::test(start_paused = true)]
async fn what_only_a_person_can_end_is_looked_at_every_few_minutes() {
    let api = server();
    let process = Process::alone(&api);
    let mut tunnel = object_json(&SMALLEST.replace("443", "8080"));
    tunnel["metadata"]["uid"] = json!("uid-of-office");
    api.put("muxtunnels/office", tunnel.clone());
    sleep(Duration::from_hours(1)).await;
    let reason = || condition(&api, "muxtunnels/office", "Ready").unwrap()["reason"].clone();
    assert_eq!(reason(), "InvalidSpec");
    let reconciliations = reconciliations(&process);
    assert!(
        (5..50).contains(&reconciliations),
        "{reconciliations} reconciliations in an hour"
    );
    // A user's edit takes effect immediately.
    tunnel["spec"] = object_json(SMALLEST)["spec"].clone();
    tunnel["metadata"]["generation"] = json!(2);
    let begin = Instant::now();
    api.put("muxtunnels/office", tunnel);
    until("children", || api.get("deployments/office-entry").is_some()).await;
    assert!(begin.elapsed() < Duration::from_secs(2));
}

#[tokio::test(start_paused = true)]
async fn a_status_that_is_written_is_no_reason_to_look() {
    let api = server();
    put_tunnel(&api, "office");
    let process = Process::alone(&api);
    until("children", || api.get("deployments/office-entry").is_some()).await;
    api.run_pods();
    until("readiness", || is_ready(&api, "office")).await;
    sleep(Duration::from_secs(10)).await;
    let before = reconciliations(&process);
    for number in 0..10 {
        let mut tunnel = api.get("muxtunnels/office").unwrap();
        tunnel["status"]["carriers"]["up"] = json!(number);
        api.put("muxtunnels/office", tunnel);
        sleep(Duration::from_secs(1)).await;
    }
    let after = reconciliations(&process);
    assert!(
        after - before <= 2,
        "{} reconciliations in ten seconds",
        after - before
    );
}

/// All gateways answer, except the gateways of `silent-*`.
struct PartlySilent(FakeApi, Healthy);

impl Gateways for PartlySilent {
    async fn status(
        &self,
        address: &str,
    ) -> Result<muxtunnel_gateway_config::status::Status, String> {
        let pod = self.0.pod_at(address).ok_or("no such pod")?;
        if pod["metadata"]["name"]
            .as_str()
            .unwrap()
            .starts_with("silent")
        {
            // A connection attempt fails after this time.
            sleep(Duration::from_secs(2)).await;
            return Err("no answer within 2 s".to_owned());
        }
        self.1.status(address).await
    }
}

#[tokio::test(start_paused = true)]
async fn gateways_that_do_not_answer_hold_no_other_tunnel_up_and_are_named() {
    let api = server();
    for number in 0..32 {
        let name = format!("silent-{number}");
        let mut tunnel = object_json(&format!("{SMALLEST}exit: {{replicas: 20}}\n"));
        tunnel["metadata"]["name"] = json!(name);
        tunnel["metadata"]["uid"] = json!(format!("uid-of-{name}"));
        api.put(&format!("muxtunnels/{name}"), tunnel);
    }
    let gateways = PartlySilent(api.clone(), Healthy(api.clone()));
    let _process = Process::of(api.client(), gateways, Leadership::always());
    until("children", || {
        (0..32).all(|number| {
            api.get(&format!("deployments/silent-{number}-entry"))
                .is_some()
        })
    })
    .await;
    api.run_pods();
    sleep(Duration::from_secs(20)).await;
    let begin = Instant::now();
    put_tunnel(&api, "good");
    until("children", || api.get("deployments/good-entry").is_some()).await;
    api.run_pods();
    until("readiness", || is_ready(&api, "good")).await;
    assert!(
        begin.elapsed() < Duration::from_secs(4),
        "{:?}",
        begin.elapsed()
    );
    until("what is silent", || {
        let ready = condition(&api, "muxtunnels/silent-7", "Ready");
        ready.is_some_and(|ready| ready["reason"] == "GatewayUnreachable")
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_is_told_to_list_again_misses_nothing() {
    let api = server();
    put_tunnel(&api, "office");
    let _process = Process::alone(&api);
    until("children", || api.get("deployments/office-entry").is_some()).await;
    api.run_pods();
    until("readiness", || is_ready(&api, "office")).await;
    api.remove("deployments/office-entry");
    api.compact();
    until("the deleted", || {
        api.get("deployments/office-entry").is_some()
    })
    .await;
    put_tunnel(&api, "branch");
    until("a new one", || {
        api.get("deployments/branch-entry").is_some()
    })
    .await;
}
