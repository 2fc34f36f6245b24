//! Whole reconciliations: which requests reach the API server, in which order, and what is left there
//! when requests fail.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::Method;
use kube::runtime::watcher::Event;
use serde_json::json;

use super::*;
use crate::api_server::ApiServer;
use crate::events::Events;
use crate::grants::Grants;
use crate::grants::tests::{grant, known};
use crate::testing::{Failure, FakeApi};
use crate::tunnel_controller::{Context, Error, PAUSED, reconcile};

const TUNNEL: &str = "muxtunnels/office";

const CHILDREN: [&str; 10] = [
    "PATCH serviceaccounts/office-exit",
    "PATCH serviceaccounts/office-entry",
    "PATCH networkpolicies/office-exit",
    "PATCH networkpolicies/office-entry",
    "PATCH configmaps/office-exit",
    "PATCH configmaps/office-entry",
    "PATCH services/office-exit",
    "PATCH services/office-entry",
    "PATCH deployments/office-exit",
    "PATCH deployments/office-entry",
];

pub(super) struct Bench {
    pub(super) api: FakeApi,
    grants: Grants,
    context: Arc<Context>,
}

impl Bench {
    pub(super) fn new(spec: &str) -> Self {
        Self::with_grants(spec, known([]))
    }

    fn with_grants(spec: &str, grants: Grants) -> Self {
        let api = FakeApi::default();
        api.put("services/shop", shop_json());
        api.put(TUNNEL, tunnel_json(spec));
        Self::on(api, grants)
    }

    /// An operator that knows nothing, at the same API server.
    fn restarted(&self, grants: Grants) -> Self {
        Self::on(self.api.clone(), grants)
    }

    fn on(api: FakeApi, grants: Grants) -> Self {
        let client = api.client();
        let events = Events::new(client.clone());
        let settings = Arc::new(settings());
        let server = ApiServer::default();
        let context = Context::new(client, settings, events, grants.clone(), server);
        Self {
            api,
            grants,
            context: Arc::new(context),
        }
    }

    pub(super) fn edit(&self, spec: &str) {
        let mut object = self.api.get(TUNNEL).unwrap();
        object["spec"] = tunnel_json(spec)["spec"].clone();
        object["metadata"]["generation"] =
            json!(object["metadata"]["generation"].as_i64().unwrap() + 1);
        self.api.put(TUNNEL, object);
    }

    fn pause(&self, paused: bool) {
        let mut object = self.api.get(TUNNEL).unwrap();
        object["metadata"]["annotations"] = json!({PAUSED: paused.to_string()});
        self.api.put(TUNNEL, object);
    }

    pub(super) async fn reconcile(&self) -> Result<(), Error> {
        let tunnel = serde_json::from_value(self.api.get(TUNNEL).unwrap()).unwrap();
        reconcile(Arc::new(tunnel), self.context.clone())
            .await
            .map(drop)
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
        }
    }
}

#[tokio::test]
async fn nothing_is_written_when_nothing_changed() {
    let bench = Bench::new(SMALLEST);
    bench.reconcile().await.unwrap();
    bench.api.take_requests();
    bench.reconcile().await.unwrap();
    let requests = bench.api.take_requests();
    assert!(requests.iter().all(|request| request.method == Method::GET));
}

#[tokio::test]
async fn while_paused_nothing_but_the_status_is_written() {
    let bench = Bench::new(SMALLEST);
    bench.reconcile().await.unwrap();
    let before = bench.condition("Ready");
    let available = bench.condition("Available");
    bench.pause(true);
    bench.edit(&SMALLEST.replace("port: 443", "port: 444"));
    bench.api.remove("deployments/office-exit");
    bench.api.take_requests();
    bench.reconcile().await.unwrap();
    bench.reconcile().await.unwrap();
    let requests = bench.api.take_requests();
    let (events, writes): (Vec<_>, Vec<_>) = requests
        .iter()
        .partition(|request| request.path.starts_with("events"));
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].body["reason"], "Paused");
    // Nothing is even read.
    assert_eq!(writes.len(), 1, "{writes:?}");
    assert_eq!(writes[0].path, "muxtunnels/office/status");
    let ready = bench.condition("Ready");
    assert_eq!(ready["status"], before["status"]);
    assert_eq!(ready["reason"], "Paused");
    let generation = &ready["observedGeneration"];
    assert_eq!(
        *generation, before["observedGeneration"],
        "the new spec was not looked at"
    );
    assert_eq!(bench.condition("Available"), available);

    bench.pause(false);
    bench.reconcile().await.unwrap();
    assert!(bench.api.get("deployments/office-exit").is_some());
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
    bench.edit(&SMALLEST.replace("listen: {port: 443}", "listen: {port: 444}"));
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
  listen: {port: 8080}
  target: {service: {name: shop, namespace: shops, port: http}}
carrier: {protocol: Jmux, security: {mode: None}}
";

fn exits_policy(bench: &Bench) -> String {
    let config_map = bench.api.get("configmaps/office-exit").unwrap();
    let text = config_map["data"]["config.yaml"].as_str().unwrap();
    let config = muxtunnel_gateway_config::Config::from_yaml(text).unwrap();
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
    let bench = Bench::new(FAR);
    bench.reconcile().await.unwrap();
    let requests = bench.api.take_requests();
    assert!(
        requests
            .iter()
            .all(|request| request.path != "services/shop")
    );
    let refused = bench.condition("Ready");
    assert_eq!(refused["reason"], "TargetNotPermitted");
    // The same is said where there is no such Service.
    bench.api.remove("services/shop");
    bench.reconcile().await.unwrap();
    assert_eq!(bench.condition("Ready"), refused);
    assert_eq!(exits_policy(&bench), "");
}

#[tokio::test]
async fn a_permission_that_is_taken_back_takes_the_forward_from_running_gateways() {
    let bench = Bench::new(FAR);
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
            "PATCH configmaps/office-exit",
            "PATCH configmaps/office-entry",
            "PATCH muxtunnels/office/status",
        ]
    );
    assert_eq!(bench.condition("Ready")["reason"], "TargetNotPermitted");
}

#[tokio::test]
async fn what_other_namespaces_permit_is_waited_for_and_children_stay_as_they_are() {
    let permitted = known([grant("shops", "site", "shop")]);
    let bench = Bench::with_grants(FAR, permitted);
    bench.reconcile().await.unwrap();
    // The operator begins anew, and has heard nothing yet.
    let restarted = bench.restarted(Grants::of_sources(1));
    restarted.api.take_requests();
    let error = restarted.reconcile().await.unwrap_err();
    assert!(matches!(error, Error::Dereference(_)), "{error}");
    assert!(restarted.api.take_writes().is_empty());
    assert_eq!(exits_policy(&restarted), "shop.shops.svc:80");
}

#[tokio::test]
async fn what_somebody_else_changed_is_put_back() {
    let bench = Bench::new(SMALLEST);
    bench.reconcile().await.unwrap();
    let mut deployment = bench.api.get("deployments/office-exit").unwrap();
    deployment["spec"]["replicas"] = json!(7);
    bench.api.put("deployments/office-exit", deployment);
    bench.api.take_requests();
    bench.reconcile().await.unwrap();
    assert_eq!(bench.api.take_writes(), ["PATCH deployments/office-exit"]);
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
        "office-exit.site.svc:64000"
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

async fn converged(bench: &Bench) -> BTreeMap<String, Value> {
    // One failure is injected; the second look may still find its traces, the third none.
    for _ in 0..2 {
        let _failed_or_not = bench.reconcile().await;
    }
    bench.reconcile().await.unwrap();
    bench.api.snapshot()
}

#[tokio::test]
async fn a_failure_or_a_lost_answer_at_any_write_ends_in_the_same_state() {
    let reference = converged(&Bench::new(SMALLEST)).await;
    for number in 0..CHILDREN.len() + 1 {
        for failure in [
            Failure::Before(500),
            Failure::After(500),
            Failure::Before(409),
        ] {
            let bench = Bench::new(SMALLEST);
            bench.api.fail_write(number, failure);
            let error = bench.reconcile().await;
            assert!(error.is_err(), "write {number}: {failure:?}");
            assert_eq!(
                converged(&bench).await,
                reference,
                "write {number}: {failure:?}"
            );
        }
    }
}
