//! Tests what the watches of the whole controller do when the API server does not know the
//! operator's account for a while, and with bookmarks. The tests count requests.

use std::collections::BTreeMap;

use http::Method;
use serde_json::json;

use super::running::{Process, is_ready, put_tunnel, server, until};
use crate::testing::FakeApi;

/// The refused starts of each watch before the account exists again. With the back-off of kube,
/// these take more than two minutes.
const REFUSED_STARTS: usize = 6;

/// The requests that the API server got since the last call.
#[derive(Default)]
struct Asked {
    /// The number of starts of each watch, by path.
    watches: BTreeMap<String, usize>,
    /// The paths of collections that were listed.
    lists: Vec<String>,
    /// The deleted objects.
    deleted: Vec<String>,
}

impl Asked {
    fn add(&mut self, api: &FakeApi) {
        for request in api.take_requests() {
            let is_watch = request.query.contains("watch=");
            match request.method {
                Method::DELETE => self.deleted.push(request.path),
                Method::GET if is_watch => *self.watches.entry(request.path).or_default() += 1,
                // Events have no watch.
                Method::GET if !request.path.contains('/') && request.path != "events" => {
                    self.lists.push(request.path);
                }
                _ => {}
            }
        }
    }
}

/// For example, because its ServiceAccount was deleted and created again.
#[tokio::test(start_paused = true)]
async fn an_operator_without_an_account_goes_on_where_it_was_when_it_has_one_again() {
    let api = server();
    put_tunnel(&api, "office");
    let process = Process::competing(&api, "only");
    until("children", || api.get("deployments/office-entry").is_some()).await;
    api.run_pods();
    until("readiness", || is_ready(&api, "office")).await;
    let mut before = Asked::default();
    before.add(&api);
    let watched: Vec<_> = before.watches.into_keys().collect();
    assert!(watched.len() > 10, "{watched:?}");

    api.refuse_all(Some(401));
    let refused = std::cell::RefCell::new(Asked::default());
    until("refused watches", || {
        refused.borrow_mut().add(&api);
        let refused = refused.borrow();
        let starts = |path: &String| refused.watches.get(path).copied().unwrap_or(0);
        let is_refused = |path| starts(path) >= REFUSED_STARTS;
        watched.iter().all(is_refused)
    })
    .await;
    assert!(!process.leadership.is_held());
    // One change of each kind happens meanwhile.
    api.remove("deployments/office-entry");
    put_tunnel(&api, "new");
    api.refuse_all(None);
    until("the deleted", || {
        api.get("deployments/office-entry").is_some()
    })
    .await;
    until("the new", || {
        api.get("deployments/new-tunnel-exit").is_some()
    })
    .await;
    until("leadership", || process.leadership.is_held()).await;
    until("current watches", || process.clock.stale("site").is_empty()).await;
    assert!(!process.controller.is_finished());
    // The watches continue at the version that they had, so nothing is listed again.
    let mut after = refused.into_inner();
    after.add(&api);
    let listed_again = |path: &&String| watched.contains(*path);
    let lists: Vec<_> = after.lists.iter().filter(listed_again).collect();
    assert!(lists.is_empty(), "{lists:?}");
    assert_eq!(after.deleted, [""; 0]);
}

/// A bookmark keeps the version of a watch current while nothing changes for the watch. So a watch
/// that starts again need not list, even if the API server has discarded the version of its last
/// object.
#[tokio::test(start_paused = true)]
async fn a_watch_continues_at_its_last_bookmark() {
    for has_bookmark in [true, false] {
        let api = server();
        put_tunnel(&api, "office");
        let _process = Process::alone(&api);
        until("children", || api.get("deployments/office-entry").is_some()).await;
        api.run_pods();
        until("readiness", || is_ready(&api, "office")).await;
        // Other objects change.
        for number in 0..100 {
            api.put(&format!("leases/other-{number}"), json!({}));
        }
        if has_bookmark {
            api.bookmark();
            // The watches read the bookmark.
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        }
        api.compact();
        let mut before = Asked::default();
        before.add(&api);
        // Each watch ends after its time, and starts again.
        let asked = std::cell::RefCell::new(Asked::default());
        until("restarted watches", || {
            asked.borrow_mut().add(&api);
            let asked = asked.borrow();
            asked.watches.len() > 10 && asked.watches.values().all(|count| *count >= 2)
        })
        .await;
        let lists = asked.into_inner().lists;
        assert_eq!(lists.is_empty(), has_bookmark, "{lists:?}");
        // Nothing is missed.
        api.remove("deployments/office-entry");
        until("the deleted", || {
            api.get("deployments/office-entry").is_some()
        })
        .await;
    }
}
