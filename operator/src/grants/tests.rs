use super::*;
use crate::testing::FakeApi;
use futures::FutureExt;
use serde_json::json;

fn service(namespace: &str, name: &str) -> ServiceName {
    ServiceName::new(namespace, name)
}

/// A grant for MuxTunnels of `from` to the Service `name` of `namespace`.
pub(crate) fn grant(namespace: &str, from: &str, name: &str) -> DynamicObject {
    serde_json::from_value(json!({
        "apiVersion": "muxtunnel.dev/v1alpha1",
        "kind": "MuxGrant",
        "metadata": {"name": "g", "namespace": namespace},
        "spec": {
            "from": [{"group": "muxtunnel.dev", "kind": "MuxTunnel", "namespace": from}],
            "to": [{"group": "", "kind": "Service", "name": name}],
        },
    }))
    .unwrap()
}

/// Grants whose watches have listed `objects`.
pub(crate) fn known(objects: impl IntoIterator<Item = DynamicObject>) -> Grants {
    let grants = Grants::of_sources(1);
    grants.handle(0, Event::Init);
    for object in objects {
        grants.handle(0, Event::InitApply(object));
    }
    grants.handle(0, Event::InitDone);
    grants
}

/// Whether a MuxTunnel of `from` may refer to the Service.
fn permit(grants: &Grants, from: &str, service: &ServiceName) -> Result<bool, NotKnown> {
    grants.permit(("MuxTunnel", from), service)
}

#[test]
fn a_grant_speaks_of_its_own_namespace_alone() {
    let grants = known([grant("shops", "site", "shop")]);
    assert_eq!(permit(&grants, "site", &service("shops", "shop")), Ok(true));
    assert_eq!(
        permit(&grants, "site", &service("vaults", "shop")),
        Ok(false)
    );
    assert_eq!(
        permit(&grants, "site", &service("shops", "till")),
        Ok(false)
    );
    assert_eq!(
        permit(&grants, "other", &service("shops", "shop")),
        Ok(false)
    );
}

#[test]
fn what_was_not_heard_yet_is_neither_permitted_nor_refused() {
    let grants = Grants::of_sources(2);
    let shop = service("shops", "shop");
    grants.handle(0, Event::Init);
    grants.handle(0, Event::InitApply(grant("shops", "site", "shop")));
    assert_eq!(permit(&grants, "site", &shop), Err(NotKnown::Unlisted));
    grants.handle(0, Event::InitDone);
    assert_eq!(permit(&grants, "site", &shop), Ok(true));
    assert_eq!(permit(&grants, "other", &shop), Err(NotKnown::Unlisted));
    grants.handle_absent(1);
    assert_eq!(permit(&grants, "other", &shop), Ok(false));
}

#[test]
fn a_grant_that_goes_or_is_on_its_way_out_permits_nothing_any_more() {
    let shop = service("shops", "shop");
    let made = grant("shops", "site", "shop");
    for event in [
        Event::Delete(made.clone()),
        Event::Apply(grant("shops", "site", "till")),
        Event::Apply({
            let mut leaving = made.clone();
            leaving.metadata.deletion_timestamp =
                serde_json::from_value(json!("2030-01-01T00:00:00Z")).unwrap();
            leaving
        }),
    ] {
        let grants = known([made.clone()]);
        grants.handle(0, event);
        assert_eq!(permit(&grants, "site", &shop), Ok(false));
    }
    // After an interrupted watch, the new list no longer contains a grant that was deleted
    // meanwhile.
    let grants = known([made]);
    grants.handle_absent(0);
    assert_eq!(permit(&grants, "site", &shop), Ok(false));
}

#[test]
fn a_grant_that_cannot_be_decoded_neither_permits_nor_refuses() {
    let (shop, till) = (service("shops", "shop"), service("shops", "till"));
    let mut newer = grant("shops", "site", "till");
    newer.data["spec"]["from"][0]["namespace"] = json!({"matchLabels": {"team": "a"}});
    newer.metadata.name = Some("newer".to_owned());
    let grants = known([grant("shops", "site", "shop"), newer.clone()]);
    assert_eq!(permit(&grants, "site", &shop), Ok(true));
    assert_eq!(permit(&grants, "site", &till), Err(NotKnown::Undecoded));
    assert_eq!(
        permit(&grants, "site", &service("vaults", "till")),
        Ok(false)
    );
    // What the grant says about other kinds does not matter.
    newer.data["spec"]["from"][0]["kind"] = json!("HTTPRoute");
    grants.handle(0, Event::Apply(newer.clone()));
    assert_eq!(permit(&grants, "site", &till), Ok(false));
    newer.data["spec"] = json!("anybody");
    grants.handle(0, Event::Apply(newer.clone()));
    assert_eq!(permit(&grants, "site", &till), Err(NotKnown::Undecoded));
    grants.handle(0, Event::Delete(newer));
    assert_eq!(permit(&grants, "site", &till), Ok(false));
}

#[test]
fn what_is_kept_of_a_namespace_is_bounded_and_about_tunnels() {
    let mut about_routes = grant("shops", "site", "shop");
    about_routes.data["spec"]["from"][0]["kind"] = json!("HTTPRoute");
    let mut about_both = grant("shops", "site", "shop");
    about_both.metadata.name = Some("both".to_owned());
    let route = about_routes.data["spec"]["from"][0].clone();
    about_both.data["spec"]["from"]
        .as_array_mut()
        .unwrap()
        .push(route);
    let grants = known([about_routes, about_both]);
    {
        let sources = grants.0.sources.lock();
        let known: Vec<_> = sources[0].known.iter().flatten().collect();
        let [((_, name), Some(spec))] = known[..] else {
            panic!("{known:?}");
        };
        assert_eq!((name.as_str(), spec.from.len()), ("both", 1));
    }
    let numbered = |number: usize| {
        let mut object = grant("shops", "site", &format!("shop-{number}"));
        object.metadata.name = Some(format!("g{number:04}"));
        object
    };
    let mut all: Vec<_> = (0..GRANTS_MAX + 10).map(numbered).collect();
    all.push(grant("vaults", "site", "vault"));
    let grants = known(all);
    let permits = |number: usize| {
        let service = service("shops", &format!("shop-{number}"));
        permit(&grants, "site", &service).unwrap()
    };
    assert!(permits(0) && permits(GRANTS_MAX - 1) && !permits(GRANTS_MAX));
    assert_eq!(
        permit(&grants, "site", &service("vaults", "vault")),
        Ok(true)
    );
    // A full cache accepts changes of known grants, and a new grant after a deletion.
    let mut changed = numbered(0);
    changed.data["spec"]["to"][0]["name"] = json!("till");
    grants.handle(0, Event::Apply(changed));
    assert_eq!(permit(&grants, "site", &service("shops", "till")), Ok(true));
    grants.handle(0, Event::Delete(numbered(1)));
    grants.handle(0, Event::Apply(numbered(GRANTS_MAX)));
    assert!(permits(GRANTS_MAX));
}

#[tokio::test]
async fn a_change_is_told_and_a_list_of_the_same_is_none() {
    let grants = known([grant("shops", "site", "shop")]);
    let mut changes = Box::pin(grants.changes());
    let next =
        |changes: &mut std::pin::Pin<Box<_>>| StreamExt::next(changes).now_or_never().flatten();
    grants.handle(0, Event::Delete(grant("shops", "site", "shop")));
    assert_eq!(next(&mut changes), Some(()));
    grants.handle_absent(0);
    assert_eq!(next(&mut changes), None);
}

#[tokio::test]
async fn reference_grants_are_read_in_the_newest_version_that_has_them() {
    let api = FakeApi::default();
    assert!(served(&api.client()).await.unwrap().is_none());
    let put = |version: &str, kinds: &[&str]| {
        let resources = kinds.iter().map(|kind| {
            let name = format!("{}s", kind.to_lowercase());
            json!({"name": name, "singularName": "", "namespaced": true, "kind": kind, "verbs": []})
        });
        let group_version = format!("gateway.networking.k8s.io/{version}");
        let list = json!({
            "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version,
            "metadata": {}, "resources": resources.collect::<Vec<_>>(),
        });
        api.put(&format!("/apis/{group_version}"), list);
    };
    put("v1", &["HTTPRoute"]);
    assert!(served(&api.client()).await.unwrap().is_none());
    let both = ["HTTPRoute", "ReferenceGrant"];
    put("v1beta1", &both);
    let found = served(&api.client()).await.unwrap().unwrap();
    assert_eq!(found.api_version, "gateway.networking.k8s.io/v1beta1");
    put("v1", &both);
    let found = served(&api.client()).await.unwrap().unwrap();
    assert_eq!(found.api_version, "gateway.networking.k8s.io/v1");
    assert_eq!(
        (found.kind.as_str(), found.plural.as_str()),
        ("ReferenceGrant", "referencegrants")
    );
}
