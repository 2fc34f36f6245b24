//! Compares the API server in memory with the known behaviour of the real API server.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Namespace, Node};
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::FakeApi;

fn deployments(api: &FakeApi) -> Api<Deployment> {
    Api::namespaced(api.client(), "site")
}

async fn apply(
    api: &FakeApi,
    manager: &str,
    force: bool,
    spec: Value,
) -> Result<Deployment, kube::Error> {
    let mut params = PatchParams::apply(manager);
    params.force = force;
    let body = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x"}, "spec": spec,
    });
    deployments(api)
        .patch("x", &params, &Patch::Apply(body))
        .await
}

fn spec(api: &FakeApi, pointer: &str) -> Option<Value> {
    let object = api.get("deployments/x").unwrap();
    object.pointer(&format!("/spec{pointer}")).cloned()
}

#[tokio::test]
async fn a_field_goes_when_its_only_manager_leaves_it_out_and_stays_while_another_has_it() {
    let api = FakeApi::default();
    let both = json!({"paused": true, "minReadySeconds": 5, "replicas": 3});
    apply(&api, "one", false, both).await.unwrap();
    apply(&api, "two", false, json!({"minReadySeconds": 5}))
        .await
        .unwrap();
    apply(&api, "one", false, json!({})).await.unwrap();
    assert_eq!(spec(&api, "/paused"), None);
    assert_eq!(spec(&api, "/minReadySeconds"), Some(json!(5)));
    assert_eq!(spec(&api, "/replicas"), Some(json!(1)), "the default");
}

#[tokio::test]
async fn another_managers_value_is_a_conflict_unless_forced() {
    let api = FakeApi::default();
    apply(&api, "one", false, json!({"replicas": 3}))
        .await
        .unwrap();
    let error = apply(&api, "two", false, json!({"replicas": 4}))
        .await
        .unwrap_err();
    let kube::Error::Api(status) = error else {
        panic!("{error}");
    };
    let causes = status.details.unwrap().causes;
    assert_eq!(
        (status.code, causes[0].reason.as_str()),
        (409, "FieldManagerConflict")
    );
    apply(&api, "two", true, json!({"replicas": 4}))
        .await
        .unwrap();
    // The first manager no longer owns the field.
    apply(&api, "one", false, json!({})).await.unwrap();
    assert_eq!(spec(&api, "/replicas"), Some(json!(4)));
}

#[tokio::test]
async fn who_scales_takes_the_field_from_those_who_applied_it() {
    let api = FakeApi::default();
    apply(&api, "one", false, json!({"replicas": 3}))
        .await
        .unwrap();
    scale(&api, 7).await;
    apply(&api, "one", false, json!({})).await.unwrap();
    assert_eq!(spec(&api, "/replicas"), Some(json!(7)));
}

/// Scales like an autoscaler.
async fn scale(api: &FakeApi, replicas: i32) {
    let scale = json!({"metadata": {"name": "x"}, "spec": {"replicas": replicas}});
    let request = http::Request::put("/apis/apps/v1/namespaces/site/deployments/x/scale")
        .body(serde_json::to_vec(&scale).unwrap())
        .unwrap();
    let _: Value = api.client().request(request).await.unwrap();
}

#[tokio::test]
async fn items_of_a_list_with_keys_are_managed_one_by_one() {
    let api = FakeApi::default();
    let template = |containers: Value| json!({"template": {"spec": {"containers": containers}}});
    let own = json!([{"name": "a", "image": "1"}, {"name": "b", "image": "1"}]);
    apply(&api, "one", false, template(own)).await.unwrap();
    let side = json!([{"name": "c", "image": "2"}]);
    apply(&api, "two", false, template(side)).await.unwrap();
    let fewer = json!([{"name": "a", "image": "3"}]);
    apply(&api, "one", false, template(fewer)).await.unwrap();
    let names = spec(&api, "/template/spec/containers").unwrap();
    let images: Vec<_> = names
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["image"].clone())
        .collect();
    assert_eq!(images, [json!("3"), json!("2")]);
}

#[tokio::test]
async fn an_apply_that_changes_nothing_is_no_new_version() {
    let api = FakeApi::default();
    let spec = json!({"template": {"spec": {"containers": [
        {"name": "a", "resources": {"limits": {"memory": "1024Mi"}}},
    ]}}});
    let first = apply(&api, "one", false, spec.clone()).await.unwrap();
    let second = apply(&api, "one", false, spec).await.unwrap();
    assert_eq!(
        first.metadata.resource_version,
        second.metadata.resource_version
    );
    assert_eq!(second.metadata.generation, Some(1));
    let changed = apply(&api, "one", false, json!({"replicas": 2}))
        .await
        .unwrap();
    assert_eq!(changed.metadata.generation, Some(2));
}

#[tokio::test]
async fn objects_of_one_name_in_two_namespaces_are_two() {
    let api = FakeApi::default();
    api.put("configmaps/a", json!({"data": {"of": "site"}}));
    api.put("configmaps/a@far", json!({"data": {"of": "far"}}));
    for namespace in ["site", "far"] {
        let config_maps: Api<ConfigMap> = Api::namespaced(api.client(), namespace);
        let found = config_maps.get("a").await.unwrap();
        assert_eq!(found.data.unwrap()["of"], namespace);
        let listed = config_maps.list(&kube::api::ListParams::default()).await;
        assert_eq!(listed.unwrap().items.len(), 1);
    }
    let all: Api<ConfigMap> = Api::all(api.client());
    let listed = all.list(&kube::api::ListParams::default()).await.unwrap();
    assert_eq!(listed.items.len(), 2);
}

#[tokio::test]
async fn a_write_for_another_version_is_a_conflict() {
    let api = FakeApi::default();
    api.put("configmaps/a", json!({}));
    let old = api.get("configmaps/a").unwrap()["metadata"]["resourceVersion"].clone();
    api.put("configmaps/a", json!({"data": {"b": "c"}}));
    let config_maps: Api<ConfigMap> = Api::namespaced(api.client(), "site");
    let body = json!({"metadata": {"resourceVersion": old}, "data": {"b": "d"}});
    let merge = config_maps
        .patch("a", &PatchParams::default(), &Patch::Merge(&body))
        .await;
    let params = kube::api::DeleteParams {
        preconditions: Some(kube::api::Preconditions {
            resource_version: old.as_str().map(str::to_owned),
            uid: None,
        }),
        ..kube::api::DeleteParams::default()
    };
    let delete = config_maps.delete("a", &params).await.map(drop);
    for refused in [merge.map(drop), delete] {
        let Err(kube::Error::Api(status)) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(status.code, 409);
    }
    assert_eq!(api.get("configmaps/a").unwrap()["data"]["b"], "c");
}

#[tokio::test]
async fn what_has_two_owners_outlives_one() {
    let api = FakeApi::default();
    for owner in ["a", "b"] {
        api.put(
            &format!("configmaps/{owner}"),
            json!({"metadata": {"uid": owner}}),
        );
    }
    let owners = json!([{"uid": "a"}, {"uid": "b"}]);
    api.put(
        "configmaps/c",
        json!({"metadata": {"ownerReferences": owners}}),
    );
    api.remove("configmaps/a");
    let left = api.get("configmaps/c").unwrap();
    assert_eq!(left["metadata"]["ownerReferences"], json!([{"uid": "b"}]));
    api.remove("configmaps/b");
    assert!(api.get("configmaps/c").is_none());
}

#[tokio::test]
async fn what_an_object_owned_goes_with_it() {
    let api = FakeApi::default();
    let owned = |uid: &str| json!({"metadata": {"ownerReferences": [{"uid": uid}]}});
    api.put("configmaps/a", json!({"metadata": {"uid": "a"}}));
    api.put(
        "configmaps/b",
        json!({"metadata": {"uid": "b", "ownerReferences": [{"uid": "a"}]}}),
    );
    api.put("configmaps/c", owned("b"));
    api.put("configmaps/d", owned("x"));
    let config_maps: Api<ConfigMap> = Api::namespaced(api.client(), "site");
    config_maps
        .delete("a", &kube::api::DeleteParams::default())
        .await
        .unwrap();
    let left: Vec<_> = api.snapshot().into_keys().collect();
    assert_eq!(left, ["configmaps/d"]);
}

#[tokio::test]
async fn objects_that_are_in_no_namespace_are_found_without_one() {
    let api = FakeApi::default();
    for path in ["nodes/a", "namespaces/far"] {
        api.put(path, json!({}));
    }
    let nodes: Api<Node> = Api::all(api.client());
    assert_eq!(nodes.get("a").await.unwrap().metadata.namespace, None);
    let namespaces: Api<Namespace> = Api::all(api.client());
    assert!(namespaces.get("far").await.is_ok());
}

#[tokio::test]
async fn a_selector_of_fields_leaves_others_out() {
    let api = FakeApi::default();
    for (name, of) in [("a", "x"), ("b", "y")] {
        let event = json!({"metadata": {"name": name}, "involvedObject": {"uid": of}});
        api.put(&format!("events/{name}"), event);
    }
    let events: Api<Event> = Api::namespaced(api.client(), "site");
    let params = kube::api::ListParams::default().fields("involvedObject.uid=y");
    let names: Vec<_> = events.list(&params).await.unwrap().items;
    let names: Vec<_> = names
        .iter()
        .map(|event| event.metadata.name.as_deref())
        .collect();
    assert_eq!(names, [Some("b")]);
}

#[tokio::test]
async fn what_is_denied_is_denied_by_its_path_and_below_it() {
    let api = FakeApi::default();
    api.put("configmaps/a", json!({}));
    api.put("configmaps/ab", json!({}));
    api.deny("configmaps/a", 403);
    let config_maps: Api<ConfigMap> = Api::namespaced(api.client(), "site");
    assert!(config_maps.get("a").await.is_err());
    assert!(config_maps.get("ab").await.is_ok());
    api.deny("/api/v1/namespaces/site", 500);
    assert!(config_maps.get("ab").await.is_err());
}

#[tokio::test]
async fn a_new_object_gets_a_name_where_it_has_none() {
    let api = FakeApi::default();
    let config_maps: Api<ConfigMap> = Api::namespaced(api.client(), "site");
    let nameless = ConfigMap {
        metadata: kube::core::ObjectMeta {
            generate_name: Some("a-".to_owned()),
            ..kube::core::ObjectMeta::default()
        },
        ..ConfigMap::default()
    };
    let mut names = Vec::new();
    for _ in 0..2 {
        let made = config_maps
            .create(&kube::api::PostParams::default(), &nameless)
            .await;
        names.push(made.unwrap().metadata.name.unwrap());
    }
    assert!(
        names.iter().all(|name| name.starts_with("a-")) && names[0] != names[1],
        "{names:?}"
    );
}

#[tokio::test]
async fn a_list_has_pages_that_show_one_version() {
    let api = FakeApi::default();
    for name in ["a", "b", "c"] {
        api.put(&format!("configmaps/{name}"), json!({"data": {}}));
    }
    let config_maps: Api<ConfigMap> = Api::namespaced(api.client(), "site");
    let params = kube::api::ListParams::default().limit(2);
    let first = config_maps.list(&params).await.unwrap();
    api.put("configmaps/d", json!({"data": {}}));
    let token = first.metadata.continue_.as_deref().unwrap();
    let rest = config_maps
        .list(&params.continue_token(token))
        .await
        .unwrap();
    let names = |list: &kube::core::ObjectList<ConfigMap>| {
        let items = list.items.iter();
        items
            .filter_map(|item| item.metadata.name.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        (names(&first), names(&rest)),
        (vec!["a".into(), "b".into()], vec!["c".into(), "d".into()])
    );
    assert_eq!(rest.metadata.continue_, None);
    assert_eq!(
        first.metadata.resource_version,
        rest.metadata.resource_version
    );
}
