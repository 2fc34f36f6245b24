//! The whole operator and the changes of MuxPeers, which one watch delivers to the controllers of
//! exits and of peers.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::super::running::{Process, server, until};
use super::super::{EXIT, condition, object_json};
use super::{ENTRY_KEY, OTHER_KEY, peer};
use crate::testing::FakeApi;

/// An exit, without peers.
fn with_exit() -> FakeApi {
    let api = server();
    api.put("muxexits/office", object_json(EXIT));
    api
}

/// Adds a peer of the exit, and a peer without an exit.
fn put_peers(api: &FakeApi) {
    let mut lost = peer("lost", OTHER_KEY, json!({}));
    lost["spec"]["exitRef"]["name"] = json!("nowhere");
    api.put("muxpeers/lost", lost);
    api.put("muxpeers/near", peer("near", ENTRY_KEY, json!({})));
}

/// Waits until the exit serves one peer, and the other one has its reason.
async fn are_served(api: &FakeApi) {
    let documents = || api.get("configmaps/office-exit").map(|own| own.to_string());
    let is_served = || documents().is_some_and(|text| text.contains(ENTRY_KEY));
    until("the exit's peer", is_served).await;
    let reason =
        || condition(api, "muxpeers/lost", "Accepted").map(|found| found["reason"].clone());
    until("the peer without an exit", || {
        reason() == Some(json!("ExitNotFound"))
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn one_watch_serves_the_controllers_of_exits_and_of_peers() {
    let api = with_exit();
    let _process = Process::alone(&api);
    put_peers(&api);
    are_served(&api).await;
    let lists = api
        .take_requests()
        .into_iter()
        .filter(|request| request.path == "muxpeers" && !request.query.contains("watch="));
    assert_eq!(lists.count(), 1);
}

/// Each controller looks at a MuxPeer or an exit again after half a minute, also without a trigger.
#[tokio::test(start_paused = true)]
async fn peers_in_a_new_list_are_served_at_once() {
    let api = with_exit();
    let _process = Process::alone(&api);
    until("the exit", || api.get("configmaps/office-exit").is_some()).await;
    api.run_pods();
    until("readiness", || {
        let ready = condition(&api, "muxexits/office", "Ready");
        ready.is_some_and(|ready: Value| ready["status"] == "True")
    })
    .await;
    put_peers(&api);
    api.compact();
    let begin = Instant::now();
    are_served(&api).await;
    assert!(begin.elapsed() < Duration::from_secs(20));
}

#[tokio::test(start_paused = true)]
async fn an_edit_that_suspends_a_peer_and_makes_it_undecodable_takes_effect_at_once() {
    let api = with_exit();
    let _process = Process::alone(&api);
    put_peers(&api);
    are_served(&api).await;
    api.run_pods();
    until("readiness", || {
        let ready = condition(&api, "muxexits/office", "Ready");
        ready.is_some_and(|ready: Value| ready["status"] == "True")
    })
    .await;
    let mut near = api.get("muxpeers/near").unwrap();
    near["metadata"]["generation"] = json!(2);
    near["spec"]["suspend"] = json!(true);
    near["spec"]["deny"] = json!([{"host": "a..b"}]);
    let begin = Instant::now();
    api.put("muxpeers/near", near);
    let documents = || api.get("configmaps/office-exit").map(|own| own.to_string());
    until("the suspension", || {
        documents().is_some_and(|text| text.contains("suspend: true"))
    })
    .await;
    assert!(begin.elapsed() < Duration::from_secs(20));
    let reason = || condition(&api, "muxpeers/near", "Accepted").map(|one| one["reason"].clone());
    until("its condition", || reason() == Some(json!("UnknownValue"))).await;
}
