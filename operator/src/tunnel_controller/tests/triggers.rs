//! Which tunnels a changed object concerns.

use k8s_openapi::api::core::v1::Service;
use kube::runtime::watcher::Event;
use muxtunnel_crds::MuxTunnel;
use serde_json::json;

use super::*;
use crate::caches::{Feed, Group};
use crate::tunnel_controller::triggers::{groups, naming};
use crate::watches::ObjectId;

fn tunnel(name: &str, spec: &str) -> MuxTunnel {
    let mut tunnel: MuxTunnel = serde_json::from_value(object_json(spec)).unwrap();
    tunnel.metadata.name = Some(name.to_owned());
    tunnel
}

fn known_tunnels() -> Feed<MuxTunnel> {
    let mut feed = Feed::default().grouped(groups);
    let by_address = FAR.replace(
        "[{serviceRef: {name: shop, namespace: shops}, port: 80}]",
        "[{host: db, port: 80}]",
    );
    for (name, spec) in [
        ("far", FAR),
        ("near", SMALLEST),
        ("by-address", &by_address),
    ] {
        feed.take(Event::Apply(tunnel(name, spec)));
    }
    feed
}

fn names<T: Into<ObjectId>>(references: Vec<T>) -> Vec<String> {
    let triggers = references.into_iter().map(Into::into);
    triggers.map(|found: ObjectId| found.name).collect()
}

#[test]
fn a_changed_service_is_a_matter_of_the_tunnels_that_name_it() {
    let feed = known_tunnels();
    let known = feed.cache();
    let changed = |namespace: &str, name: &str| {
        let mut service = shop_json();
        service["metadata"]["namespace"] = json!(namespace);
        service["metadata"]["name"] = json!(name);
        let service: Service = serde_json::from_value(service).unwrap();
        names(naming(&known, name, &service))
    };
    assert_eq!(changed("shops", "shop"), ["far"]);
    assert_eq!(changed("site", "shop"), ["near"]);
    assert_eq!(changed("site", "db"), ["by-address"]);
    assert!(changed("site", "other").is_empty());
    assert!(changed("other", "shop").is_empty());
}

#[test]
fn a_changed_grant_is_a_matter_of_the_tunnels_that_leave_their_namespace() {
    let mut feed = known_tunnels();
    let concerned = |feed: &Feed<MuxTunnel>| names(feed.cache().references_of(&Group::Granted));
    assert_eq!(concerned(&feed), ["far"]);
    // The gateways of such a tunnel may have targets that its spec does not show.
    let mut paused = tunnel("near", SMALLEST);
    paused.spec.paused = true;
    feed.take(Event::Apply(paused));
    assert_eq!(concerned(&feed), ["far", "near"]);
}

#[test]
fn what_a_tunnel_named_before_concerns_it_no_more() {
    let mut feed = known_tunnels();
    let concerned = |feed: &Feed<MuxTunnel>, namespace: &str| {
        let group = Group::Service(namespace.to_owned(), "shop".to_owned());
        names(feed.cache().references_of(&group))
    };
    feed.take(Event::Apply(tunnel("far", SMALLEST)));
    assert_eq!(concerned(&feed, "shops"), [""; 0]);
    assert_eq!(concerned(&feed, "site"), ["far", "near"]);
    feed.take(Event::Delete(tunnel("near", SMALLEST)));
    assert_eq!(concerned(&feed, "site"), ["far"]);
    // A new list replaces everything that was known.
    feed.take(Event::Init);
    feed.take(Event::InitApply(tunnel("new", FAR)));
    feed.take(Event::InitDone);
    assert_eq!(concerned(&feed, "site"), [""; 0]);
    assert_eq!(concerned(&feed, "shops"), ["new"]);
}
