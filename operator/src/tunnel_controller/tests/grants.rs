//! Services of other namespaces: permissions that come, go, and are not known yet.

use kube::runtime::watcher::Event;
use serde_json::json;

use super::bench::Bench;
use super::*;
use crate::grants::Grants;
use crate::grants::tests::{grant, known};
use crate::tunnel_controller::Error;

/// [`FAR`] with one forward.
const ONE: &str = "
forwards:
- name: web
  port: 8080
  targets: [{serviceRef: {name: shop, namespace: shops}, port: 80}]
carrier: {protocol: JMUX}
security: {mode: None}
";

/// A tunnel to the Service `shop` of namespace `shops`, and this Service.
fn far(grants: Grants) -> Bench {
    let bench = Bench::with_grants(ONE, grants);
    let mut service = shop_json();
    service["metadata"]["namespace"] = json!("shops");
    bench.api.put("services/shop@shops", service);
    bench
}

fn exits_policy(bench: &Bench) -> String {
    let text = document(&bench.api, "office-tunnel-exit");
    let config = muxtunnel_gateway_config::Config::from_yaml(&text).unwrap();
    let allow: Vec<_> = config.allow.iter().map(ToString::to_string).collect();
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
async fn a_rule_for_another_namespace_needs_its_grant() {
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
        ("NameTaken", |bench| {
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
    assert!(matches!(error, Error::Grants(_)), "{error}");
    assert!(restarted.api.take_writes().is_empty());
    assert_eq!(exits_policy(&restarted), "shop.shops.svc:80");
}
