//! Tests of whole reconciliations: the requests to the API server, their order, and the objects
//! that remain after failed requests.

use std::cell::RefCell;
use std::sync::Arc;

use http::Method;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::Event;
use serde_json::json;

use super::*;
use crate::api_server::ApiServer;
use crate::apply::Settled;
use crate::caches::{Cluster, Targets};
use crate::clock::Clock;
use crate::clock::date;
use crate::events::Events;
use crate::grants::Grants;
use crate::grants::tests::{grant, known};
use crate::metrics::tunnels::Tunnels;
use crate::testing::FakeApi;
use crate::testing::kubelet::Healthy;
use crate::testing::watching::Watches;
use crate::tunnel_controller::{Context, Error, PAUSED, Parts, reconcile};

pub(super) const TUNNEL: &str = "muxtunnels/office";

const CHILDREN: [&str; 10] = [
    "PATCH serviceaccounts/office-tunnel-exit",
    "PATCH serviceaccounts/office-entry",
    "PATCH networkpolicies/office-tunnel-exit",
    "PATCH networkpolicies/office-entry",
    "PATCH configmaps/office-tunnel-exit",
    "PATCH configmaps/office-entry",
    "PATCH services/office-tunnel-exit",
    "PATCH services/office-entry",
    "PATCH deployments/office-tunnel-exit",
    "PATCH deployments/office-entry",
];

/// Creation time of all objects, in seconds since 1970, and the default of the operators' clocks.
pub(super) const MADE: i64 = 1_893_499_200;

/// The endpoints of the Service.
fn slice_json(ready: bool) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": "shop-1", "namespace": "site",
            "labels": {"kubernetes.io/service-name": "shop"},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.9.9.9"], "conditions": {"ready": ready}}],
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    })
}

/// One tunnel, the API server, and an operator.
pub(super) struct Bench {
    pub(super) api: FakeApi,
    pub(super) watches: RefCell<Watches>,
    pub(super) context: Arc<Context<Healthy>>,
    grants: Grants,
    pub(super) clock: Clock,
}

/// A clock that shows these seconds since 1970.
pub(super) fn clock(seconds: impl Fn() -> i64 + Send + Sync + 'static) -> Clock {
    Clock::of(move || Timestamp::from_second(seconds()).unwrap())
}

/// A process of the operator that starts with empty caches.
fn operator(
    api: &FakeApi,
    grants: &Grants,
    clock: &Clock,
) -> (RefCell<Watches>, Arc<Context<Healthy>>) {
    let (watches, client) = (Watches::new(), api.client());
    let caches = watches.caches();
    let targets = Targets::new([(None, caches.clone())]);
    let cluster = Cluster {
        client: client.clone(),
        caches,
        settled: Settled::default(),
    };
    let context = Context::new(Parts {
        cluster,
        targets,
        settings: Arc::new(settings()),
        events: Events::new(client, clock.clone()),
        grants: grants.clone(),
        api_server: ApiServer::default(),
        gateways: Healthy(api.clone()),
        figures: Tunnels::default(),
        watches: Arc::default(),
        clock: clock.clone(),
    });
    (RefCell::new(watches), Arc::new(context))
}

impl Bench {
    pub(super) fn new(spec: &str) -> Self {
        Self::with_grants(spec, known([]))
    }

    fn with_grants(spec: &str, grants: Grants) -> Self {
        Self::with(spec, grants, clock(|| MADE))
    }

    pub(super) fn with(spec: &str, grants: Grants, clock: Clock) -> Self {
        let api = FakeApi::default();
        api.put("services/shop", shop_json());
        api.put("endpointslices/shop-1", slice_json(true));
        let mut tunnel = tunnel_json(spec);
        tunnel["metadata"]["creationTimestamp"] = json!(date(MADE));
        api.put(TUNNEL, tunnel);
        Self::on(api, grants, clock)
    }

    /// Another process of the operator with empty caches, at the same API server.
    fn restarted(&self, grants: Grants) -> Self {
        Self::on(self.api.clone(), grants, self.clock.clone())
    }

    fn on(api: FakeApi, grants: Grants, clock: Clock) -> Self {
        let (watches, context) = operator(&api, &grants, &clock);
        Self {
            api,
            watches,
            context,
            grants,
            clock,
        }
    }

    /// Starts another process of the operator with empty caches. All requests succeed again.
    pub(super) fn restart(&mut self) {
        self.api.heal();
        (self.watches, self.context) = operator(&self.api, &self.grants, &self.clock);
    }

    pub(super) fn edit(&self, spec: &str) {
        let mut object = self.api.get(TUNNEL).unwrap();
        object["spec"] = tunnel_json(spec)["spec"].clone();
        object["metadata"]["generation"] =
            json!(object["metadata"]["generation"].as_i64().unwrap() + 1);
        self.api.put(TUNNEL, object);
    }

    pub(super) fn annotate(&self, key: &str, value: &str) {
        let mut object = self.api.get(TUNNEL).unwrap();
        object["metadata"]["annotations"][key] = json!(value);
        self.api.put(TUNNEL, object);
    }

    fn pause(&self, paused: bool) {
        self.annotate(PAUSED, &paused.to_string());
    }

    /// A reconciliation with current caches.
    pub(super) async fn reconcile(&self) -> Result<(), Error> {
        self.watches.borrow_mut().deliver(&self.api);
        self.reconcile_known().await
    }

    /// A reconciliation with the caches that the watches have filled so far.
    pub(super) async fn reconcile_known(&self) -> Result<(), Error> {
        reconcile(self.known(), self.context.clone())
            .await
            .map(drop)
    }

    /// The tunnel in the operator's cache.
    pub(super) fn known(&self) -> Arc<MuxTunnel> {
        let tunnels = &self.context.access.caches.tunnels;
        let office = ObjectRef::new("office").within("site");
        tunnels.newest(tunnels.store().get(&office).unwrap())
    }

    /// Other controllers and the kubelets act, and the operator follows.
    pub(super) async fn run(&self) {
        for _ in 0..4 {
            self.reconcile().await.unwrap();
            self.api.run_jobs();
            self.api.run_autoscalers();
            self.api.run_pods();
        }
        self.reconcile().await.unwrap();
    }

    pub(super) fn condition(&self, type_: &str) -> Value {
        let object = self.api.get(TUNNEL).unwrap();
        let conditions = object["status"]["conditions"].as_array().unwrap().clone();
        conditions
            .into_iter()
            .find(|condition| condition["type"] == type_)
            .unwrap()
    }
}

#[tokio::test]
async fn children_are_applied_in_the_order_in_which_they_need_each_other() {
    let bench = Bench::new(SMALLEST);
    bench.reconcile().await.unwrap();
    let requests = bench.api.take_requests();
    let writes: Vec<_> = requests
        .iter()
        .filter(|request| request.method != Method::GET && !request.path.starts_with("events"))
        .collect();
    let order: Vec<_> = writes
        .iter()
        .map(|request| format!("{} {}", request.method, request.path))
        .collect();
    assert_eq!(order[..CHILDREN.len()], CHILDREN);
    assert_eq!(order[CHILDREN.len()..], ["PATCH muxtunnels/office/status"]);
    for write in writes {
        assert_eq!(write.content_type, "application/apply-patch+yaml");
        assert!(write.query.contains("fieldManager=muxtunnel-operator"));
        assert!(write.query.contains("force=true"));
        if !write.path.ends_with("/status") {
            let owner = &write.body["metadata"]["ownerReferences"][0];
            assert_eq!(owner["uid"], "uid-office");
            // The chart's admission policies know this key.
            let annotations = &write.body["metadata"]["annotations"];
            assert!(annotations["muxtunnel.dev/applied-hash"].is_string());
        }
    }
}

/// A spec with a name, and the reads without a watch that every reconciliation of this spec
/// repeats.
struct Steady {
    name: &'static str,
    spec: String,
    reads: &'static [&'static str],
}

fn steady() -> Vec<Steady> {
    let steady = |name, spec: String| Steady {
        name,
        spec,
        reads: &[],
    };
    let managed = |extra: &str| format!("{MANAGED}{extra}");
    let issuer = "carrier: {protocol: JMUX}\nsecurity: {mode: MutualTls, issuerRef: {name: ca}}";
    vec![
        steady(
            "amounts that the API server spells in its own way, and a profile",
            format!(
                "{SMALLEST}{}",
                "entry: {template: {spec: {containers: [{name: gateway, resources: {limits: {memory: 1024Mi, cpu: 1000m}}}]}}}\n\
                 exit: {template: {spec: {containers: [{name: gateway, resources: {requests: {memory: 0.5Gi, cpu: '0.1'}}}]}}}\n\
                 tuning: {profile: WAN}\n"
            ),
        ),
        steady("keys of both ends", managed("")),
        steady(
            "several gateways, and an autoscaler",
            managed(
                "entry: {autoscaling: {minReplicas: 2, maxReplicas: 8}, \
                 template: {spec: {containers: [{name: gateway, resources: {requests: {cpu: '0.50'}}}]}}}\nexit: {replicas: 3}\n",
            ),
        ),
        steady(
            "sysctls that are tried",
            managed(
                "tuning: {allowUnsafe: true, sysctls: [{name: net.a, value: '1'}]}\n\
                 exit: {template: {spec: {nodeSelector: {zone: a}}}}\n",
            ),
        ),
        steady("an exit with a key of its own", managed("side: Exit\n")),
        steady(
            "an entry with a key of its own",
            format!("side: Entry\n{ELSEWHERE}"),
        ),
        Steady {
            name: "certificates of cert-manager",
            spec: MANAGED.replace("carrier: {protocol: JMUX}", issuer),
            reads: &["certificates/office-tunnel-exit", "certificates/office-entry"],
        },
    ]
}

#[tokio::test]
async fn nothing_is_written_in_a_hundred_looks_when_nothing_changed() {
    for Steady { name, spec, reads } in steady() {
        let mut bench = Bench::new(&spec);
        bench.run().await;
        if name.contains("cert-manager") {
            for path in reads {
                let mut certificate = bench.api.get(path).unwrap();
                certificate["status"] =
                    json!({"conditions": [{"type": "Ready", "status": "True"}]});
                bench.api.put(path, certificate);
            }
        }
        bench.run().await;
        let ready = bench.condition("Ready");
        assert_eq!(ready["status"], "True", "{name}: {ready}");
        // The second pass is by another process of the operator, which has no memory.
        for _ in 0..2 {
            let begin = bench.api.newest();
            bench.api.take_requests();
            for _ in 0..100 {
                bench.reconcile().await.unwrap();
            }
            assert_eq!(bench.api.newest(), begin, "{name}");
            for request in bench.api.take_requests() {
                assert_eq!(request.method, Method::GET, "{name}: {}", request.path);
                assert!(
                    reads.contains(&request.path.as_str()),
                    "{name}: {}",
                    request.path
                );
            }
            bench.restart();
        }
    }
}

#[tokio::test]
async fn amounts_are_stored_in_the_api_servers_own_spelling() {
    let bench = Bench::new(&steady()[0].spec);
    bench.reconcile().await.unwrap();
    let deployment = bench.api.get("deployments/office-entry").unwrap();
    let limits = "/spec/template/spec/containers/0/resources/limits/memory";
    assert_eq!(deployment.pointer(limits), Some(&json!("1Gi")));
}

#[tokio::test]
async fn what_a_webhook_makes_of_a_child_is_written_once_and_drift_still_comes_back() {
    let bench = Bench::new(&format!("{SMALLEST}exit: {{replicas: 1}}\n"));
    bench
        .api
        .always_sets("deployments", "/spec/minReadySeconds", json!(7));
    bench
        .api
        .always_sets("deployments", "/spec/strategy/type", json!("Recreate"));
    bench.reconcile().await.unwrap();
    bench.api.take_writes();
    for _ in 0..10 {
        bench.reconcile().await.unwrap();
    }
    assert_eq!(bench.api.take_writes(), [""; 0]);
    let mut deployment = bench.api.get("deployments/office-tunnel-exit").unwrap();
    deployment["spec"]["replicas"] = json!(7);
    bench.api.put("deployments/office-tunnel-exit", deployment);
    bench.reconcile().await.unwrap();
    assert_eq!(bench.api.take_writes(), ["PATCH deployments/office-tunnel-exit"]);
}

#[tokio::test]
async fn while_paused_nothing_but_the_status_is_written() {
    let bench = Bench::new(SMALLEST);
    bench.reconcile().await.unwrap();
    let before = bench.condition("Ready");
    let available = bench.condition("Available");
    bench.pause(true);
    bench.edit(&SMALLEST.replace("port: 443", "port: 444"));
    bench.api.remove("deployments/office-tunnel-exit");
    bench.api.take_requests();
    bench.reconcile().await.unwrap();
    bench.reconcile().await.unwrap();
    let requests = bench.api.take_requests();
    let (events, writes): (Vec<_>, Vec<_>) = requests
        .iter()
        .partition(|request| request.path.starts_with("events"));
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].body["reason"], "Paused");
    // The operator sends no other request, not even a read.
    assert_eq!(writes.len(), 1, "{writes:?}");
    assert_eq!(writes[0].path, "muxtunnels/office/status");
    let ready = bench.condition("Ready");
    assert_eq!(ready["status"], before["status"]);
    assert_eq!(ready["reason"], "Paused");
    let generation = &ready["observedGeneration"];
    assert_eq!(
        *generation, before["observedGeneration"],
        "the new spec was not applied"
    );
    assert_eq!(bench.condition("Available"), available);

    bench.pause(false);
    bench.reconcile().await.unwrap();
    assert!(bench.api.get("deployments/office-tunnel-exit").is_some());
    let ready = bench.condition("Ready");
    assert_ne!(ready["reason"], "Paused");
    assert_ne!(ready["observedGeneration"], before["observedGeneration"]);
}

#[tokio::test]
async fn a_tunnel_that_is_paused_from_the_start_says_so() {
    let bench = Bench::new(SMALLEST);
    bench.pause(true);
    bench.reconcile().await.unwrap();
    let ready = bench.condition("Ready");
    assert_eq!(ready["status"], "Unknown");
    assert_eq!(ready["reason"], "Paused");
    assert_eq!(bench.api.take_writes(), ["PATCH muxtunnels/office/status"]);
}

#[tokio::test]
async fn a_changed_forward_writes_configurations_and_who_reaches_the_entry_alone() {
    let bench = Bench::new(SMALLEST);
    bench.reconcile().await.unwrap();
    bench.api.take_requests();
    bench.edit(&SMALLEST.replace("port: 443", "port: 444"));
    bench.reconcile().await.unwrap();
    assert_eq!(
        bench.api.take_writes(),
        [
            "PATCH networkpolicies/office-entry",
            "PATCH configmaps/office-entry",
            "PATCH services/office-entry",
            "PATCH muxtunnels/office/status",
        ]
    );
}

const FAR: &str = "
forwards:
- name: web
  port: 8080
  targets: [{serviceRef: {name: shop, namespace: shops}, port: 80}]
carrier: {protocol: JMUX}\nsecurity: {mode: None}
";

/// A tunnel to the Service `shop` of namespace `shops`, and this Service.
fn far(grants: Grants) -> Bench {
    let bench = Bench::with_grants(FAR, grants);
    let mut service = shop_json();
    service["metadata"]["namespace"] = json!("shops");
    bench.api.put("services/shop@shops", service);
    bench
}

fn exits_policy(bench: &Bench) -> String {
    let text = document(&bench.api, "exit");
    let config = muxtunnel_gateway_config::Config::from_yaml(&text).unwrap();
    let allow: Vec<_> = config
        .policy
        .allow
        .iter()
        .map(ToString::to_string)
        .collect();
    allow.join(" ")
}

#[tokio::test]
async fn a_service_of_another_namespace_is_not_even_read_before_that_one_permits_it() {
    let bench = far(known([]));
    bench.reconcile().await.unwrap();
    let requests = bench.api.take_requests();
    assert!(
        requests
            .iter()
            .all(|request| request.path != "services/shop@shops")
    );
    let refused = bench.condition("Ready");
    assert_eq!(refused["reason"], "TargetNotPermitted");
    // The message is the same if the Service does not exist.
    bench.api.remove("services/shop@shops");
    bench.reconcile().await.unwrap();
    assert_eq!(bench.condition("Ready"), refused);
    assert_eq!(exits_policy(&bench), "");
}

#[tokio::test]
async fn a_permission_that_is_taken_back_takes_the_forward_from_running_gateways() {
    let bench = far(known([]));
    let permission = grant("shops", "site", "shop");
    bench.grants.handle(0, Event::Apply(permission.clone()));
    bench.reconcile().await.unwrap();
    assert_eq!(exits_policy(&bench), "shop.shops.svc:80");
    assert_eq!(bench.condition("Ready")["reason"], "GatewaysNotReady");
    bench.api.take_requests();
    bench.grants.handle(0, Event::Delete(permission));
    bench.reconcile().await.unwrap();
    assert_eq!(exits_policy(&bench), "");
    assert_eq!(
        bench.api.take_writes(),
        [
            "PATCH configmaps/office-tunnel-exit",
            "PATCH configmaps/office-entry",
            "PATCH muxtunnels/office/status",
        ]
    );
    assert_eq!(bench.condition("Ready")["reason"], "TargetNotPermitted");
}

/// Targets that clients may name follow the grant, as targets of forwards do.
#[tokio::test]
async fn a_rule_of_the_policy_for_another_namespace_needs_its_grant() {
    let spec = format!("allow: [{{host: '*.shops.svc', port: 80}}]\n{SMALLEST}");
    let bench = Bench::with_grants(&spec, known([]));
    let has_rule = |bench: &Bench| exits_policy(bench).contains("*.shops.svc:80");
    bench.reconcile().await.unwrap();
    assert!(!has_rule(&bench));
    assert_eq!(bench.condition("Ready")["reason"], "TargetNotPermitted");
    let (one, mut every) = (
        grant("shops", "site", "shop"),
        grant("shops", "site", "any"),
    );
    every.metadata.name = Some("every".to_owned());
    every.data["spec"]["to"][0]["name"] = Value::Null;
    bench.grants.handle(0, Event::Apply(one));
    bench.reconcile().await.unwrap();
    assert!(
        !has_rule(&bench),
        "a grant for one Service does not permit all"
    );
    bench.grants.handle(0, Event::Apply(every.clone()));
    bench.reconcile().await.unwrap();
    assert!(has_rule(&bench));
    assert_ne!(bench.condition("Ready")["reason"], "TargetNotPermitted");
    // A revoked permission takes effect even while the tunnel is paused.
    bench.pause(true);
    bench.grants.handle(0, Event::Delete(every));
    bench.reconcile().await.unwrap();
    assert!(!has_rule(&bench));
}

#[tokio::test]
async fn nor_does_a_tunnel_keep_it_that_is_not_applied() {
    type Hinder = fn(&Bench);
    let hindrances: [(&str, Hinder); 4] = [
        ("Paused", |bench| bench.pause(true)),
        ("Paused", |bench| {
            bench.pause(true);
            bench.edit(SMALLEST);
        }),
        ("InvalidSpec", |bench| {
            bench.edit(&SMALLEST.replace("443", "8080"));
        }),
        ("OwnedByOther", |bench| {
            let mut account = bench.api.get("serviceaccounts/office-tunnel-exit").unwrap();
            account["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "theirs", "uid": "uid-theirs"}]);
            bench.api.put("serviceaccounts/office-tunnel-exit", account);
        }),
    ];
    for (reason, hinder) in hindrances {
        let bench = far(known([]));
        let permission = grant("shops", "site", "shop");
        bench.grants.handle(0, Event::Apply(permission.clone()));
        bench.reconcile().await.unwrap();
        hinder(&bench);
        bench.reconcile().await.unwrap();
        assert_eq!(bench.condition("Ready")["reason"], reason);
        assert_eq!(exits_policy(&bench), "shop.shops.svc:80", "{reason}");
        bench.api.take_requests();
        bench.grants.handle(0, Event::Delete(permission));
        bench.reconcile().await.unwrap();
        assert_eq!(exits_policy(&bench), "", "{reason}");
        let writes = bench.api.take_writes();
        let of_config_maps = [
            "PATCH configmaps/office-tunnel-exit",
            "PATCH configmaps/office-entry",
        ];
        let others = writes
            .iter()
            .filter(|write| !of_config_maps.contains(&write.as_str()));
        assert_eq!(others.count(), 0, "{reason}: {writes:?}");
        bench.reconcile().await.unwrap();
        assert_eq!(bench.api.take_writes(), [""; 0], "{reason}");
    }
}

#[tokio::test]
async fn what_other_namespaces_permit_is_waited_for_and_children_stay_as_they_are() {
    let permitted = known([grant("shops", "site", "shop")]);
    let bench = far(permitted);
    bench.reconcile().await.unwrap();
    // The operator restarts, and no watch has answered yet.
    let restarted = bench.restarted(Grants::of_sources(1));
    restarted.api.take_requests();
    let error = restarted.reconcile().await.unwrap_err();
    assert!(matches!(error, Error::Dereference(_)), "{error}");
    assert!(restarted.api.take_writes().is_empty());
    assert_eq!(exits_policy(&restarted), "shop.shops.svc:80");
}

#[tokio::test]
async fn what_somebody_else_changed_is_put_back() {
    let bench = Bench::new(&format!("{SMALLEST}exit: {{replicas: 1}}\n"));
    bench.reconcile().await.unwrap();
    let mut deployment = bench.api.get("deployments/office-tunnel-exit").unwrap();
    deployment["spec"]["replicas"] = json!(7);
    bench.api.put("deployments/office-tunnel-exit", deployment);
    bench.api.take_requests();
    bench.reconcile().await.unwrap();
    assert_eq!(bench.api.take_writes(), ["PATCH deployments/office-tunnel-exit"]);
}

#[tokio::test]
async fn children_no_longer_asked_for_are_deleted_by_uid() {
    let bench = Bench::new(&format!("side: Exit\n{SMALLEST}"));
    let stale = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": "office-entry",
            "labels": crate::labels::child("office", "entry"),
            "uid": "uid-stale",
            "ownerReferences": [{
                "apiVersion": "muxtunnel.dev/v1alpha1", "kind": "MuxTunnel",
                "name": "office", "uid": "uid-office", "controller": true,
            }],
        },
    });
    bench.api.put("services/office-entry", stale);
    bench.reconcile().await.unwrap();
    let requests = bench.api.take_requests();
    let delete = requests
        .iter()
        .find(|request| request.method == Method::DELETE)
        .unwrap();
    assert_eq!(delete.path, "services/office-entry");
    assert_eq!(delete.body["preconditions"]["uid"], "uid-stale");
    assert!(bench.api.get("services/office-entry").is_none());
    assert!(bench.api.get("services/shop").is_some());
}

#[tokio::test]
async fn an_object_that_belongs_to_something_else_is_never_touched() {
    let bench = Bench::new(SMALLEST);
    let foreign = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "office-entry", "uid": "uid-foreign"},
        "data": {"own": "data"},
    });
    bench.api.put("configmaps/office-entry", foreign);
    bench.reconcile().await.unwrap();
    let found = bench.api.get("configmaps/office-entry").unwrap();
    assert_eq!(found["data"], json!({"own": "data"}));
    let ready = bench.condition("Ready");
    assert_eq!(ready["reason"], "OwnedByOther");
    let message = ready["message"].as_str().unwrap();
    let begin = "MT0310 ConfigMap office-entry exists and belongs to no MuxTunnel or MuxBenchmark. What to do: ";
    assert!(message.starts_with(begin), "{message}");
}

#[tokio::test]
async fn a_tunnel_that_is_being_deleted_is_left_to_the_garbage_collector() {
    let bench = Bench::new(SMALLEST);
    let mut object = bench.api.get(TUNNEL).unwrap();
    object["metadata"]["deletionTimestamp"] = json!("2030-01-01T00:00:00Z");
    bench.api.put(TUNNEL, object);
    bench.reconcile().await.unwrap();
    assert!(bench.api.take_requests().is_empty());
}

#[tokio::test]
async fn the_status_says_what_is_missing_and_for_which_generation() {
    let bench = Bench::new(&SMALLEST.replace("name: shop", "name: shed"));
    bench.reconcile().await.unwrap();
    let ready = bench.condition("Ready");
    assert_eq!(ready["status"], "False");
    assert_eq!(ready["reason"], "TargetServiceNotFound");
    let message = ready["message"].as_str().unwrap();
    let begin = "MT0105 forward web: Service shed does not exist. What to do: Create the Service";
    assert!(message.starts_with(begin), "{message}");
    assert_eq!(ready["observedGeneration"], 1);
    let object = bench.api.get(TUNNEL).unwrap();
    assert_eq!(object["status"]["observedGeneration"], 1);
    assert_eq!(
        object["status"]["exit"]["address"],
        "office-tunnel-exit.site.svc:64000"
    );
}

#[tokio::test]
async fn an_event_is_published_on_a_transition_and_not_again() {
    let bench = Bench::new(SMALLEST);
    bench.reconcile().await.unwrap();
    let events = |api: &FakeApi| {
        api.take_requests()
            .iter()
            .filter(|request| request.path.starts_with("events"))
            .map(|request| request.body["reason"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let first = events(&bench.api);
    assert!(first.contains(&"GatewaysNotReady".to_owned()), "{first:?}");
    bench.reconcile().await.unwrap();
    assert!(events(&bench.api).is_empty());
}

#[tokio::test]
async fn an_invalid_object_is_said_to_be_so_and_nothing_is_built() {
    let bench = Bench::new(&SMALLEST.replace("443", "8080"));
    bench.reconcile().await.unwrap();
    assert_eq!(bench.api.take_writes(), ["PATCH muxtunnels/office/status"]);
    assert_eq!(bench.condition("Ready")["reason"], "InvalidSpec");
    assert_eq!(bench.condition("Available")["status"], "Unknown");
}

fn reasons_of_events(api: &FakeApi) -> Vec<String> {
    api.take_requests()
        .iter()
        .filter(|request| request.method == Method::POST && request.path == "events")
        .map(|request| request.body["reason"].as_str().unwrap().to_owned())
        .collect()
}

const BANANA: &str = "exit: {template: {spec: {containers: [{name: gateway, resources: {limits: {cpu: banana}}}]}}}\n";

#[tokio::test]
async fn what_the_api_server_refuses_is_in_the_status_and_what_runs_is_judged_all_the_same() {
    for is_new in [true, false] {
        let bench = Bench::new(&match is_new {
            true => format!("{SMALLEST}{BANANA}"),
            false => SMALLEST.to_owned(),
        });
        if !is_new {
            bench.run().await;
            bench.edit(&format!("{SMALLEST}{BANANA}"));
        }
        bench.api.take_requests();
        bench.reconcile().await.unwrap();
        let ready = bench.condition("Ready");
        assert_eq!(ready["status"], "False");
        assert_eq!(ready["reason"], "ApiRefused");
        assert_eq!(ready["observedGeneration"], if is_new { 1 } else { 2 });
        let message = ready["message"].as_str().unwrap();
        assert!(
            message.starts_with("MT0336 cannot apply Deployment office-tunnel-exit: ")
                && message.contains("banana"),
            "{message}"
        );
        let available = if is_new { "False" } else { "True" };
        assert_eq!(bench.condition("Available")["status"], available);
        let events = reasons_of_events(&bench.api);
        assert!(events.contains(&"ApiRefused".to_owned()), "{events:?}");
        bench.reconcile().await.unwrap();
        assert!(reasons_of_events(&bench.api).is_empty());
        bench.edit(SMALLEST);
        bench.run().await;
        assert_eq!(bench.condition("Ready")["status"], "True");
    }
}

#[tokio::test]
async fn what_fails_again_and_again_is_in_the_status_too() {
    let bench = Bench::new(SMALLEST);
    bench.run().await;
    bench.edit(&SMALLEST.replace("443", "444"));
    bench
        .api
        .trouble("configmaps", Some(crate::testing::Trouble::Status(500)));
    for _ in 0..3 {
        let error = bench.reconcile().await.unwrap_err();
        assert_eq!(
            bench.condition("Ready")["status"],
            "True",
            "a single failure is not reported"
        );
        let _later = bench
            .context
            .backoffs
            .failed(bench.known().as_ref(), &error);
    }
    bench.reconcile().await.unwrap();
    let ready = bench.condition("Ready");
    assert_eq!(
        (&ready["status"], &ready["reason"]),
        (&json!("False"), &json!("ApiUnavailable"))
    );
    assert_eq!(ready["observedGeneration"], 2);
}

#[tokio::test]
async fn so_is_what_is_refused_before_anything_is_applied() {
    let bench = Bench::new(MANAGED);
    bench.run().await;
    let available = bench.condition("Available");
    // A key pair of another generation has to be created.
    bench.edit(&format!("{MANAGED}key: {{generations: [2]}}\n"));
    bench.api.deny("secrets", 400);
    bench.reconcile().await.unwrap_err();
    let ready = bench.condition("Ready");
    assert_eq!(
        (&ready["status"], &ready["reason"]),
        (&json!("False"), &json!("ApiRefused"))
    );
    assert_eq!(bench.condition("Available"), available);
}

#[tokio::test]
async fn a_tunnel_is_available_where_a_connection_reaches_a_target() {
    let one = SMALLEST.replace(
        "- name: db
  port: 443
  targets: [{host: DB.example.com, port: 5432}]
",
        "",
    );
    let bench = Bench::new(&one);
    bench.run().await;
    let available = || {
        let condition = bench.condition("Available");
        let texts = ["status", "reason", "message"];
        texts.map(|field| condition[field].as_str().unwrap().to_owned())
    };
    assert_eq!(available()[..2], ["True", "Reconciled"]);
    // There are pods, and no pod is ready.
    bench.api.put("endpointslices/shop-1", slice_json(false));
    bench.reconcile().await.unwrap();
    let [status, reason, message] = available();
    assert_eq!([status, reason], ["False", "TargetNotReady"]);
    assert!(
        message.contains("forward web: Service shop has no ready endpoints"),
        "{message}"
    );
    assert_eq!(
        bench.condition("Ready")["status"],
        "True",
        "the tunnel itself matches its spec"
    );
    // The Service does not exist.
    bench.api.remove("services/shop");
    bench.reconcile().await.unwrap();
    assert_eq!(available()[..2], ["False", "TargetServiceNotFound"]);
    // Another forward reaches its target.
    bench.edit(SMALLEST);
    bench.run().await;
    let [status, _, message] = available();
    assert_eq!(status, "True");
    assert!(
        message.contains("forward web: Service shop does not exist"),
        "{message}"
    );
}

#[tokio::test]
async fn a_pod_that_only_has_the_labels_of_a_gateway_is_none() {
    let bench = Bench::new(SMALLEST);
    bench.run().await;
    let before = bench.api.get(TUNNEL).unwrap()["status"].clone();
    let mut stranger = bench.api.get("pods/office-tunnel-exit-0").unwrap();
    stranger["metadata"] = json!({
        "name": "stranger", "labels": stranger["metadata"]["labels"],
        "ownerReferences": [{
            "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "office-tunnel-exit-x", "uid": "own",
            "controller": true,
        }],
    });
    stranger["status"] = json!({
        "phase": "Failed", "reason": "SysctlForbidden", "message": "forbidden sysctl",
    });
    bench.api.put("pods/stranger", stranger);
    for _ in 0..3 {
        bench.reconcile().await.unwrap();
    }
    assert_eq!(bench.api.get(TUNNEL).unwrap()["status"], before);
    assert!(bench.api.get("deployments/office-tunnel-exit").is_some());
}
