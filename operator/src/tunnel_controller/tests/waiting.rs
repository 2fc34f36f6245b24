//! Waits of the controller: for lists that never come, and for obstacles that no watch shows.

use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, sleep};

use super::running::{Process, is_ready, put_tunnel, server, until};
use super::*;
use crate::testing::{FakeApi, Trouble};

fn reason(api: &FakeApi, name: &str) -> Value {
    let ready = condition(api, &format!("muxtunnels/{name}"), "Ready");
    ready.map_or(Value::Null, |ready| ready["reason"].clone())
}

/// Waits until the tunnel `name` has the children, and returns the time.
async fn children_after(api: &FakeApi, name: &str) -> Duration {
    let begin = Instant::now();
    until("children", || {
        api.get(&format!("deployments/{name}-entry")).is_some()
    })
    .await;
    begin.elapsed()
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_is_never_listed_is_waited_for_once() {
    let api = server();
    api.trouble("pods", Some(Trouble::Hangs));
    let _process = Process::alone(&api);
    put_tunnel(&api, "first");
    children_after(&api, "first").await;
    for name in ["second", "third", "fourth"] {
        put_tunnel(&api, name);
        let took = children_after(&api, name).await;
        assert!(took < Duration::from_secs(1), "{name}: {took:?}");
    }
}

/// The time from the end of an obstacle, which lasted for an hour, until the tunnel is ready, and
/// the number of requests for the path of the obstacle in this hour.
async fn ended(api: &FakeApi, (path, code): (&str, &str), end: impl Fn()) -> (Duration, usize) {
    let _process = Process::alone(api);
    put_tunnel(api, "office");
    until("its condition", || {
        let tunnel = api.get("muxtunnels/office").unwrap();
        !tunnel["status"]["conditions"].is_null()
    })
    .await;
    assert_eq!(reason(api, "office"), code);
    api.take_requests();
    sleep(Duration::from_hours(1)).await;
    assert_eq!(reason(api, "office"), code);
    let requests = api.take_requests().into_iter();
    let requests = requests.filter(|request| request.path == path).count();
    end();
    let begin = Instant::now();
    until("the children", || {
        api.run_pods();
        is_ready(api, "office")
    })
    .await;
    (begin.elapsed(), requests)
}

#[tokio::test(start_paused = true)]
async fn an_object_of_another_owner_that_goes_is_noticed_within_a_minute() {
    let api = server();
    let path = "configmaps/office-tunnel-exit";
    api.put(
        path,
        json!({"metadata": {"name": "office-tunnel-exit"}, "data": {}}),
    );
    let (after, reads) = ended(&api, (path, "NameTaken"), || api.remove(path)).await;
    assert!(after < Duration::from_mins(1), "{after:?}");
    // A retry reads the object to adopt it, and to name all obstacles.
    assert!((60..=400).contains(&reads), "{reads} reads in an hour");
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_goes_is_noticed_within_a_minute() {
    let api = server();
    let path = "services/office-entry";
    api.deny(path, 403);
    let (after, requests) = ended(&api, (path, "ApiRefused"), || api.permit(path)).await;
    assert!(after < Duration::from_mins(1), "{after:?}");
    // A retry reads the object and tries to write it.
    assert!(
        (60..=400).contains(&requests),
        "{requests} requests in an hour"
    );
}

/// Many tunnels with the same obstacle retry in turn.
#[tokio::test(start_paused = true)]
async fn many_tunnels_with_one_obstacle_do_not_flood_the_api_server() {
    let api = server();
    for number in 0..100 {
        let path = format!("configmaps/t{number}-tunnel-exit");
        api.put(
            &path,
            json!({"metadata": {"name": format!("t{number}-tunnel-exit")}}),
        );
        put_tunnel(&api, &format!("t{number}"));
    }
    let _process = Process::alone(&api);
    until("all conditions", || {
        (0..100).all(|number| reason(&api, &format!("t{number}")) == "NameTaken")
    })
    .await;
    sleep(Duration::from_mins(2)).await;
    for _ in 0..60 {
        api.take_requests();
        sleep(Duration::from_secs(1)).await;
        let requests = api.take_requests().into_iter();
        let reads = requests.filter(|request| request.path.starts_with("configmaps/t"));
        let reads = reads.count();
        assert!(reads <= 80, "{reads} reads in a second");
    }
}
