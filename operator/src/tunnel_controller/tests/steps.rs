//! Tests roll-outs in steps: many objects, a class, and an operator.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use kube::runtime::reflector::ObjectRef;
use muxtunnel_crds::{MuxClassStatus, MuxTunnel};
use serde_json::{Value, json};

use super::bench::{MADE, clock, operator, slice_json};
use super::rollouts::refuse_pod_of;
use super::running::{Process, is_ready, put_tunnel, server, until};
use super::*;
use crate::class_controller::Planner;
use crate::classes::tests::{Known, known as known_classes, known_by};
use crate::clock::Now;
use crate::grants::tests::known;
use crate::settings::Images;
use crate::testing::kubelet::Healthy;
use crate::testing::watching::Watches;
use crate::tunnel_controller::rollouts::UNTUNED;
use crate::tunnel_controller::{Context, reconcile};
use crate::upgrades::plan::Plan;
use crate::upgrades::turns::OCCUPIES_FOR;
use crate::upgrades::{REVISION, TURN};

/// The objects of a class, and an operator.
struct Fleet {
    api: FakeApi,
    classes: RefCell<Known>,
    watches: RefCell<Watches>,
    context: Arc<Context<Healthy>>,
    planner: Planner,
    count: usize,
}

fn name(number: usize) -> String {
    format!("t{number:02}")
}

impl Fleet {
    /// Tunnels whose gateways run.
    async fn new(count: usize) -> Self {
        let api = server();
        api.put("endpointslices/shop-1", slice_json(true));
        for number in 0..count {
            put_tunnel(&api, &name(number));
        }
        let classes = RefCell::new(known_classes([class_json()]));
        let (watches, context, planner) = operator(&api, (&known([]), &classes), &clock(|| MADE));
        let fleet = Self {
            api,
            classes,
            watches,
            context,
            planner,
            count,
        };
        fleet.step().await;
        fleet.api.run_pods();
        fleet.step().await;
        fleet
    }

    /// Starts another process of the operator, perhaps of another version.
    fn restart(&mut self, images: Images, class: Value) {
        self.classes = RefCell::new(known_by(images, [class]));
        (self.watches, self.context, self.planner) =
            operator(&self.api, (&known([]), &self.classes), &clock(|| MADE));
    }

    /// The time, after a pause.
    fn now(after: std::time::Duration) -> Now {
        Now {
            time: Timestamp::from_second(MADE).unwrap(),
            instant: tokio::time::Instant::now() + after,
        }
    }

    fn plan(&self) -> Plan {
        self.watches.borrow_mut().deliver(&self.api);
        let now = self.context.clock.now();
        let mut planned = self.planner.plan(now).unwrap();
        planned.pop().unwrap().1
    }

    /// One plan, and the reconciliation of each object, the last first.
    async fn step(&self) -> Plan {
        let plan = self.plan();
        for number in (0..self.count).rev() {
            self.reconcile(number).await;
        }
        plan
    }

    async fn reconcile(&self, number: usize) {
        self.watches.borrow_mut().deliver(&self.api);
        let cache = &self.context.access.caches.tunnels;
        let tunnel = ObjectRef::<MuxTunnel>::new(&name(number)).within("site");
        let tunnel = cache.newest(cache.store().get(&tunnel).unwrap());
        // Some tests refuse requests.
        let _result = reconcile(tunnel.into(), self.context.clone()).await;
    }

    /// Changes the gateways' image of the class.
    fn use_image(&self, image: &str) {
        self.classes.borrow_mut().put(with_image(image));
    }

    fn deployments(&self, number: usize) -> [Value; 2] {
        ["entry", "tunnel-exit"].map(|end| {
            let path = format!("deployments/{}-{end}", name(number));
            self.api.get(&path).unwrap()
        })
    }

    /// The objects with a Deployment that does not have its pods.
    fn rolling(&self) -> BTreeSet<usize> {
        let rolls = |number: &usize| {
            let mut deployments = self.deployments(*number).into_iter();
            deployments
                .any(|one| one["status"]["observedGeneration"] != one["metadata"]["generation"])
        };
        (0..self.count).filter(rolls).collect()
    }

    /// The objects whose templates have this image.
    fn with_image(&self, image: &str) -> BTreeSet<usize> {
        let has = |number: &usize| {
            let deployments = self.deployments(*number);
            deployments
                .iter()
                .all(|one| one["spec"]["template"]["spec"]["containers"][0]["image"] == image)
        };
        (0..self.count).filter(has).collect()
    }

    /// All pods of the object become ready.
    fn become_ready(&self, number: usize) {
        self.set_status(number, |deployment| {
            json!({
                "observedGeneration": deployment["metadata"]["generation"],
                "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1,
            })
        });
    }

    /// The new pods of the object do not become ready within the progress deadline.
    fn fail(&self, number: usize) {
        self.set_status(number, |deployment| {
            json!({
                "observedGeneration": deployment["metadata"]["generation"],
                "replicas": 2, "updatedReplicas": 1, "readyReplicas": 1,
                "conditions": [{
                    "type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded",
                }],
            })
        });
    }

    fn set_status(&self, number: usize, status: impl Fn(&Value) -> Value) {
        for mut deployment in self.deployments(number) {
            deployment["status"] = status(&deployment);
            let name = deployment["metadata"]["name"].as_str().unwrap().to_owned();
            self.api.put(&format!("deployments/{name}"), deployment);
        }
    }

    /// Changes the spec of an object, as a person does.
    fn change(&self, number: usize, change: impl FnOnce(&mut Value)) {
        let path = format!("muxtunnels/{}", name(number));
        let mut tunnel = self.api.get(&path).unwrap();
        change(&mut tunnel["spec"]);
        let generation = tunnel["metadata"]["generation"].as_i64().unwrap();
        tunnel["metadata"]["generation"] = json!(generation + 1);
        self.api.put(&path, tunnel);
    }
}

const FIRST: &str = "example.com/gateway:1";
const SECOND: &str = "example.com/gateway:2";

/// The class with this image.
fn with_image(image: &str) -> Value {
    let mut class = class_json();
    class["spec"]["images"] = json!({"gateway": image});
    class
}

fn of_tag(tag: &str) -> Images {
    let image = |name: &str| format!("example.com/{name}:{tag}");
    Images {
        gateway: image("gateway"),
        wan: image("netem"),
        bench: image("bench"),
    }
}

fn numbers(numbers: impl IntoIterator<Item = usize>) -> BTreeSet<usize> {
    numbers.into_iter().collect()
}

#[tokio::test]
async fn a_new_image_reaches_three_objects_at_a_time_in_the_order_of_their_names() {
    let fleet = Fleet::new(20).await;
    assert_eq!(fleet.with_image(FIRST).len(), 20);
    fleet.use_image(SECOND);
    fleet.step().await;
    assert_eq!(fleet.with_image(SECOND), numbers(0..3));
    fleet.step().await;
    assert_eq!(fleet.rolling(), numbers(0..3), "they are not ready");
    fleet.become_ready(1);
    fleet.step().await;
    assert_eq!(fleet.rolling(), numbers([0, 2, 3]));
    while !fleet.rolling().is_empty() {
        let rolling = fleet.rolling();
        assert!(rolling.len() <= 3, "{rolling:?}");
        rolling
            .into_iter()
            .for_each(|number| fleet.become_ready(number));
        fleet.step().await;
    }
    let plan = fleet.step().await;
    assert_eq!((plan.total, plan.current, plan.rolling), (20, 20, 0));
    assert_eq!(fleet.with_image(SECOND).len(), 20);
    for deployment in fleet.deployments(0) {
        let annotations = &deployment["metadata"]["annotations"];
        assert!(annotations[TURN].is_null(), "{annotations}");
        assert!(annotations[REVISION].as_str().unwrap().contains(SECOND));
    }
    fleet.api.take_requests();
    fleet.step().await;
    assert_eq!(fleet.api.take_writes(), [""; 0]);
}

#[tokio::test]
async fn a_failure_pauses_the_roll_out_until_the_object_is_ready() {
    let mut fleet = Fleet::new(8).await;
    fleet.use_image(SECOND);
    fleet.step().await;
    fleet.fail(1);
    fleet.become_ready(0);
    fleet.become_ready(2);
    for _ in 0..3 {
        let plan = fleet.step().await;
        assert!(plan.is_paused);
        let failed: Vec<_> = plan.failed.iter().map(|id| id.name.as_str()).collect();
        assert_eq!(failed, ["t01"]);
        assert_eq!(fleet.with_image(SECOND), numbers(0..3));
    }
    // The owner changes the object, whose pods start again. Another process of the operator knows that
    // the object has failed.
    fleet.change(1, |spec| spec["entry"] = json!({"drainSeconds": 60}));
    fleet.set_status(
        1,
        |_| json!({"replicas": 2, "updatedReplicas": 1, "readyReplicas": 1}),
    );
    fleet.restart(of_tag("1"), with_image(SECOND));
    assert!(fleet.step().await.is_paused);
    assert_eq!(fleet.with_image(SECOND), numbers(0..3));
    fleet.become_ready(1);
    fleet.step().await;
    assert_eq!(fleet.with_image(SECOND), numbers(0..6));
}

#[tokio::test]
async fn a_change_of_the_class_resumes_with_the_object_that_failed() {
    let fleet = Fleet::new(8).await;
    fleet.use_image(SECOND);
    fleet.step().await;
    (0..2).for_each(|number| fleet.become_ready(number));
    fleet.fail(2);
    assert!(fleet.step().await.is_paused);
    fleet.use_image("example.com/gateway:3");
    let plan = fleet.step().await;
    assert!(!plan.is_paused);
    assert_eq!(
        fleet.with_image("example.com/gateway:3"),
        numbers([0, 1, 2])
    );
    // A failure of this image counts, too.
    fleet.fail(2);
    assert!(fleet.step().await.is_paused);
}

#[tokio::test]
async fn after_a_failure_the_class_may_go_on() {
    let fleet = Fleet::new(8).await;
    let mut class = with_image(SECOND);
    class["spec"]["rollout"] = json!({"maxConcurrent": 2, "onFailure": "Continue"});
    fleet.classes.borrow_mut().put(class);
    fleet.step().await;
    assert_eq!(fleet.rolling(), numbers(0..2));
    fleet.fail(0);
    let plan = fleet.step().await;
    assert_eq!((plan.failed.len(), plan.is_paused), (1, false));
    assert_eq!(fleet.with_image(SECOND), numbers(0..3));
}

#[tokio::test]
async fn another_process_of_the_operator_goes_on_where_the_first_one_ended() {
    let mut fleet = Fleet::new(20).await;
    fleet.use_image(SECOND);
    fleet.step().await;
    fleet.become_ready(0);
    // The process ends between the plan and the reconciliations.
    fleet.plan();
    fleet.reconcile(3).await;
    for _ in 0..4 {
        fleet.restart(of_tag("1"), with_image(SECOND));
        fleet.step().await;
        assert_eq!(fleet.rolling(), numbers(1..4));
    }
}

#[tokio::test]
async fn a_change_of_an_object_reaches_its_gateways_before_its_turn_and_takes_no_image_with_it() {
    let fleet = Fleet::new(8).await;
    fleet.use_image(SECOND);
    fleet.step().await;
    fleet.change(7, |spec| {
        spec["forwards"][0]["port"] = json!(9090);
        spec["entry"] = json!({"drainSeconds": 60});
    });
    fleet.step().await;
    assert_eq!(fleet.with_image(SECOND), numbers(0..3));
    let [entry, _] = fleet.deployments(7);
    let pod = &entry["spec"]["template"]["spec"];
    assert_eq!(pod["terminationGracePeriodSeconds"], 65);
    assert!(document(&fleet.api, "t07-entry").contains("9090"));
    // The roll-out of the object itself takes no place.
    fleet.become_ready(0);
    fleet.step().await;
    assert_eq!(fleet.with_image(SECOND), numbers(0..4));
    // A new object has the newest image.
    put_tunnel(&fleet.api, "t08");
    let fleet = Fleet { count: 9, ..fleet };
    fleet.step().await;
    assert_eq!(fleet.with_image(SECOND), numbers([0, 1, 2, 3, 8]));
}

/// Whether the pods of the exit of `number` get the buffers of profile `Auto`, and the stored refusal.
fn tuning_of_exit(fleet: &Fleet, number: usize) -> (bool, bool) {
    let [_, exit] = fleet.deployments(number);
    let sysctls = &exit["spec"]["template"]["spec"]["securityContext"]["sysctls"];
    let refusal = exit["metadata"]["annotations"].get(UNTUNED);
    (sysctls.to_string().contains("tcp_rmem"), refusal.is_some())
}

#[tokio::test]
async fn pods_that_wait_for_their_turn_lose_the_sysctls_that_a_node_refuses() {
    let fleet = Fleet::new(5).await;
    fleet.use_image(SECOND);
    fleet.step().await;
    assert_eq!(tuning_of_exit(&fleet, 4), (true, false));
    refuse_pod_of(&fleet.api, "t04-tunnel-exit", "node-b");
    fleet.step().await;
    fleet.step().await;
    assert_eq!(tuning_of_exit(&fleet, 4), (false, true));
    assert_eq!(fleet.with_image(SECOND), numbers(0..3));
}

#[tokio::test]
async fn a_refusal_is_known_until_the_turn_and_the_new_image_tries_the_sysctls_again() {
    let fleet = Fleet::new(5).await;
    refuse_pod_of(&fleet.api, "t04-tunnel-exit", "node-b");
    fleet.step().await;
    fleet.step().await;
    assert_eq!(tuning_of_exit(&fleet, 4), (false, true));
    fleet.use_image(SECOND);
    fleet.step().await;
    fleet.step().await;
    assert_eq!(fleet.with_image(SECOND), numbers(0..3));
    assert_eq!(tuning_of_exit(&fleet, 4), (false, true));
    (0..3).for_each(|number| fleet.become_ready(number));
    fleet.step().await;
    assert_eq!(fleet.with_image(SECOND), numbers(0..5));
    assert_eq!(tuning_of_exit(&fleet, 4), (true, false));
}

#[tokio::test]
async fn the_class_of_an_object_changes_at_once() {
    let fleet = Fleet::new(4).await;
    let mut canary = with_image(SECOND);
    canary["metadata"]["name"] = json!("canary");
    canary["spec"]["default"] = json!(false);
    fleet.classes.borrow_mut().put(canary);
    fleet.change(3, |spec| spec["className"] = json!("canary"));
    fleet.reconcile(3).await;
    assert_eq!(fleet.with_image(SECOND), numbers([3]));
    fleet.change(3, |spec| spec["className"] = json!("muxtunnel"));
    fleet.reconcile(3).await;
    assert_eq!(fleet.with_image(SECOND), numbers([]));
}

#[tokio::test]
async fn paused_refused_and_broken_objects_do_not_keep_the_others_waiting() {
    let fleet = Fleet::new(8).await;
    fleet.change(0, |spec| spec["paused"] = json!(true));
    fleet.change(1, |spec| spec["className"] = json!("gone"));
    fleet.change(2, |spec| {
        spec["wanEmulation"] = json!({"delayMilliseconds": 10});
    });
    fleet.fail(3);
    fleet.step().await;
    let mut class = with_image(SECOND);
    class["spec"]["permitted"] = Value::Null;
    fleet.classes.borrow_mut().put(class);
    // The objects report that the class does not permit their specs.
    fleet.step().await;
    let plan = fleet.step().await;
    let held: Vec<_> = plan.held.iter().map(|id| id.name.as_str()).collect();
    assert_eq!(held, ["t00", "t02"], "{plan:?}");
    assert!(fleet.with_image(SECOND).is_superset(&numbers(4..6)));
    for _ in 0..6 {
        (4..8).for_each(|number| fleet.become_ready(number));
        fleet.step().await;
    }
    // The object that was not ready before goes last, and its failure is none of the roll-out.
    fleet.fail(3);
    let plan = fleet.step().await;
    assert_eq!(fleet.with_image(SECOND), numbers(3..8));
    assert_eq!((plan.failed.len(), plan.is_paused), (0, false));
}

#[tokio::test]
async fn an_object_whose_children_are_refused_gives_its_place_away() {
    let fleet = Fleet::new(8).await;
    for end in ["entry", "tunnel-exit"] {
        fleet.api.deny(&format!("deployments/t00-{end}"), 403);
    }
    fleet.use_image(SECOND);
    fleet.step().await;
    fleet.step().await;
    assert_eq!(fleet.with_image(SECOND), numbers(1..3));
    let later = Fleet::now(OCCUPIES_FOR);
    fleet.watches.borrow_mut().deliver(&fleet.api);
    fleet.planner.plan(later).unwrap();
    for number in 0..8 {
        fleet.reconcile(number).await;
    }
    assert_eq!(fleet.with_image(SECOND), numbers(1..4));
}

#[tokio::test]
async fn another_version_of_the_operator_changes_no_pod_before_the_turn_of_the_object() {
    let mut fleet = Fleet::new(8).await;
    let before = fleet.deployments(7);
    fleet.restart(of_tag("2"), class_json());
    fleet.step().await;
    assert_eq!(fleet.with_image(SECOND), numbers(0..3));
    let after = fleet.deployments(7);
    assert_eq!(after[0]["spec"], before[0]["spec"]);
    let revision = |deployment: &Value| deployment["metadata"]["annotations"][REVISION].clone();
    assert_eq!(revision(&after[0]), revision(&before[0]));
    // The pods that remain keep their configuration, without what the spec no longer permits.
    assert!(document(&fleet.api, "t07-entry").contains("8080"));
    // This version cannot change the pods of the other version, so a change takes the new image.
    fleet.change(7, |spec| spec["forwards"][0]["port"] = json!(9090));
    fleet.step().await;
    assert_eq!(fleet.with_image(SECOND), numbers([0, 1, 2, 7]));
    assert!(document(&fleet.api, "t07-entry").contains("9090"));
    for _ in 0..8 {
        (0..8).for_each(|number| fleet.become_ready(number));
        fleet.step().await;
    }
    assert_eq!(fleet.with_image(SECOND).len(), 8);
}

fn status(api: &FakeApi) -> MuxClassStatus {
    let class = api.get("muxclasses/muxtunnel").unwrap();
    serde_json::from_value(class["status"].clone()).unwrap_or_default()
}

fn is_rolled_out(api: &FakeApi, status_: &str) -> bool {
    let conditions = status(api).conditions;
    conditions
        .iter()
        .any(|one| one.type_ == "RolledOut" && one.status == status_)
}

/// The whole operator, with its watches and queues.
#[tokio::test]
async fn the_status_of_a_class_shows_the_roll_out() {
    let api = server();
    let mut class = class_json();
    class["spec"]["rollout"] = json!({"maxConcurrent": 1});
    api.put("muxclasses/muxtunnel", class);
    for number in 0..3 {
        put_tunnel(&api, &name(number));
    }
    let mut process = Process::alone(&api);
    let deliver = |process: &Process| {
        let class = api.get("muxclasses/muxtunnel").unwrap();
        process.classes.lock().unwrap().put(class);
    };
    deliver(&process);
    process.plan();
    until("the tunnels are ready", || {
        api.run_pods();
        (0..3).all(|number| is_ready(&api, &name(number)))
    })
    .await;
    until("the class is rolled out", || is_rolled_out(&api, "True")).await;
    let mut stored = api.get("muxclasses/muxtunnel").unwrap();
    stored["spec"]["images"] = json!({"gateway": SECOND});
    api.put("muxclasses/muxtunnel", stored);
    deliver(&process);
    until("the class rolls out", || is_rolled_out(&api, "False")).await;
    let page = process.metrics.render().unwrap();
    let line = "muxtunnel_class_objects{class=\"muxtunnel\",state=\"rolling\"} 1";
    assert!(page.contains(line), "{page}");
    until("the class is rolled out again", || {
        api.run_pods();
        is_rolled_out(&api, "True")
    })
    .await;
    let objects = status(&api).objects.unwrap();
    assert_eq!((objects.total, objects.current), (3, 3));
}
