//! The page against its documentation.

use std::collections::BTreeSet;

use kube::runtime::reflector::{self, ObjectRef};
use kube::runtime::watcher::Event;
use serde_json::json;
use tower::{Layer, Service};

use super::*;
use crate::tunnel_controller::Error;

fn store(tunnels: &[MuxTunnel]) -> Store<MuxTunnel> {
    let (store, mut writer) = reflector::store();
    for tunnel in tunnels {
        writer.apply_watcher_event(&Event::Apply(tunnel.clone()));
    }
    store
}

/// One that works, and is not as asked.
fn tunnel(namespace: &str, name: &str) -> MuxTunnel {
    let condition = |type_: &str, status: &str, code: Code| {
        json!({
            "type": type_, "status": status, "reason": code.reason(), "message": format!("{code} so it is"),
            "lastTransitionTime": "2030-01-01T00:00:00Z",
        })
    };
    serde_json::from_value(json!({
        "apiVersion": "muxtunnel.dev/v1alpha1",
        "kind": "MuxTunnel",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"forwards": []},
        "status": {"conditions": [
            condition("Ready", "False", Code::GatewaysNotReady),
            condition("Available", "True", Code::Reconciled),
        ]},
    }))
    .unwrap()
}

#[test]
fn with_several_namespaces_no_series_is_there_twice() {
    let watches = Arc::new(WatchClock::default());
    for namespace in ["a", "b"] {
        watches.expect(&format!("/api/v1/namespaces/{namespace}/pods"));
    }
    let metrics = Metrics::new(Leadership::default(), watches);
    for namespace in ["a", "b"] {
        metrics.say_tunnels(store(&[tunnel(namespace, "t")]));
        let waits = ObjectRef::<MuxTunnel>::new("t").within(namespace);
        let queue = metrics.queue::<MuxTunnel>();
        queue.put(&waits);
        queue.put(&waits);
    }
    let page = metrics.render().unwrap();
    let series = page.lines().filter(|line| !line.starts_with('#'));
    let series: Vec<_> = series
        .map(|line| line.rsplit_once(' ').unwrap().0)
        .collect();
    let once: BTreeSet<_> = series.iter().collect();
    assert_eq!(once.len(), series.len(), "{page}");
    assert!(page.contains("operator_watch_age_seconds{resource=\"pods\"} "));
    assert!(page.contains("operator_queue_depth{kind=\"MuxTunnel\"} 2"));
}

#[test]
fn what_is_looked_at_waits_no_longer() {
    let metrics = Metrics::new(Leadership::default(), Arc::default());
    let (queue, one) = (
        metrics.queue::<MuxTunnel>(),
        ObjectRef::<MuxTunnel>::new("t"),
    );
    queue.put(&one);
    assert_eq!(queue.depth(), 1);
    queue.take(&one);
    assert_eq!(queue.depth(), 0);
}

#[tokio::test]
async fn the_documentation_has_every_metric_and_no_other() {
    let watches = Arc::new(WatchClock::default());
    watches.expect("/api/v1/pods");
    let metrics = Metrics::new(Leadership::default(), watches);
    metrics.say_tunnels(store(&[tunnel("site", "office")]));
    metrics
        .queue::<MuxTunnel>()
        .put(&ObjectRef::<MuxTunnel>::new("office"));
    let failed = async { Err::<Action, _>(Error::Incomplete("UID")) };
    metrics.look("MuxTunnel", failed).await.unwrap_err();
    let mut client = requests::RequestLayer(metrics.clone()).layer(tower::service_fn(
        |_: http::Request<()>| async { Ok::<_, std::io::Error>(http::Response::new(())) },
    ));
    let request = http::Request::get("/api/v1/pods").body(()).unwrap();
    client.call(request).await.unwrap();

    let page = metrics.render().unwrap();
    for sample in [
        "muxtunnel_operator_reconcile_seconds_count{kind=\"MuxTunnel\",result=\"error\"} 1",
        "muxtunnel_operator_reconcile_errors_total{kind=\"MuxTunnel\",code=\"MT0343\"} 1",
        "muxtunnel_operator_api_request_seconds_count{verb=\"list\",resource=\"pods\",status=\"2xx\"} 1",
        "muxtunnel_operator_leader 0",
        "muxtunnel_operator_queue_depth{kind=\"MuxTunnel\"} 1",
        "muxtunnel_tunnel_condition{namespace=\"site\",tunnel=\"office\",condition=\"Ready\",code=\"MT0302\"} 0",
        "muxtunnel_tunnel_condition{namespace=\"site\",tunnel=\"office\",condition=\"Available\",code=\"MT0301\"} 1",
    ] {
        assert!(page.contains(sample), "{sample}: not in {page}");
    }
    let described: BTreeSet<_> = page
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
        .map(|line| {
            let (name, kind) = line.split_once(' ').unwrap();
            let total = if kind == "counter" { "_total" } else { "" };
            (format!("{name}{total}"), kind.to_owned())
        })
        .collect();
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md");
    let text = std::fs::read_to_string(file).unwrap();
    let rows = text
        .lines()
        .filter_map(|line| line.strip_prefix("| `muxtunnel_"));
    let documented: BTreeSet<_> = rows
        .map(|line| {
            let mut cells = line.split('|').map(|cell| cell.trim().trim_matches('`'));
            let name = format!("muxtunnel_{}", cells.next().unwrap());
            (name, cells.next().unwrap().to_owned())
        })
        .collect();
    assert_eq!(
        documented, described,
        "docs/metrics.md and the registry differ"
    );
}
