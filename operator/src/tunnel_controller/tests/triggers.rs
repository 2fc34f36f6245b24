//! Which tunnels a changed object concerns.

use k8s_openapi::api::core::v1::Service;
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::watcher::Event;
use muxtunnel_crds::MuxTunnel;
use serde_json::json;

use super::*;
use crate::tunnel_controller::triggers::{tunnels_into_other_namespaces, tunnels_naming};

fn known_tunnels() -> Store<MuxTunnel> {
    let (store, mut writer) = reflector::store();
    let by_address = FAR.replace(
        "{service: {name: shop, namespace: shops, port: http}}",
        "{address: {host: db, port: 80}}",
    );
    for (name, spec) in [
        ("far", FAR),
        ("near", SMALLEST),
        ("by-address", &by_address),
    ] {
        let mut tunnel: MuxTunnel = serde_json::from_value(tunnel_json(spec)).unwrap();
        tunnel.metadata.name = Some(name.to_owned());
        writer.apply_watcher_event(&Event::Apply(tunnel));
    }
    store
}

fn names(references: Vec<ObjectRef<MuxTunnel>>) -> Vec<String> {
    references.into_iter().map(|found| found.name).collect()
}

#[test]
fn a_changed_service_is_a_matter_of_the_tunnels_that_name_it() {
    let known = known_tunnels();
    let changed = |namespace: &str, name: &str| {
        let mut service = shop_json();
        service["metadata"]["namespace"] = json!(namespace);
        service["metadata"]["name"] = json!(name);
        let service: Service = serde_json::from_value(service).unwrap();
        names(tunnels_naming(&known, name, &service))
    };
    assert_eq!(changed("shops", "shop"), ["far"]);
    assert_eq!(changed("site", "shop"), ["near"]);
    assert_eq!(changed("site", "db"), ["by-address"]);
    assert!(changed("site", "other").is_empty());
    assert!(changed("other", "shop").is_empty());
}

#[test]
fn a_changed_grant_is_a_matter_of_the_tunnels_that_leave_their_namespace() {
    assert_eq!(
        names(tunnels_into_other_namespaces(&known_tunnels())),
        ["far"]
    );
}
