//! Compares the metrics page with its documentation, and tests counters that restart from zero.

use kube::runtime::reflector;
use kube::runtime::watcher::Event;
use muxtunnel_codes::Code;
use muxtunnel_crds::MuxTunnel;
use muxtunnel_gateway_config::status::{Limit, Status};
use serde_json::json;
use tower::{Layer, Service};

use super::*;
use crate::caches::Feeds;
use crate::interceptor::InterceptorLayer;
use crate::tunnel_controller::Error;
use crate::upgrades::plan::Plan;
use tunnels::Gateway;

fn tunnel(name: &str) -> MuxTunnel {
    serde_json::from_value(json!({
        "apiVersion": "muxtunnel.dev/v1alpha1", "kind": "MuxTunnel",
        "metadata": {"name": name, "namespace": "site"},
        "spec": {"security": {"mode": "None"}},
    }))
    .unwrap()
}

/// Metrics of caches with one tunnel, `office`.
fn metrics() -> (Metrics, Feeds) {
    let mut feeds = Feeds::default();
    feeds.tunnels.take(Event::Init);
    feeds.tunnels.take(Event::InitApply(tunnel("office")));
    feeds.tunnels.take(Event::InitDone);
    let watches = Arc::new(WatchClock::default());
    watches.expect("/api/v1/pods");
    let metrics = Metrics::new(Leadership::always(), watches);
    metrics.tunnels.follow(feeds.caches());
    (metrics, feeds)
}

/// The object of the figures.
fn office() -> ObjectId {
    let [kind, namespace, name] = ["MuxTunnel", "site", "office"].map(str::to_owned);
    ObjectId {
        namespace,
        kind,
        name,
    }
}

fn status(opened: u64, retransmits: u64) -> Status {
    serde_json::from_value(json!({
        "version": "1", "role": "Entry", "protocol": "Native", "configHash": "h", "ready": true,
        "draining": false, "sysctls": {},
        "streams": {
            "open": 2, "opened": opened, "bytesSent": opened * 10, "bytesReceived": opened * 20,
            "closed": {"completed": opened}, "refused": {"MT0205": opened},
        },
        "credit": {"waits": opened * 2, "waitedSeconds": opened as f64 / 4.0},
        "process": {"cpuSeconds": 0.0, "maxRssBytes": 0, "uptimeSeconds": 0.0},
        "carriers": [{
            "peer": "10.0.0.1:64000", "uptimeSeconds": 1.0, "rttMilliseconds": 100.0,
            "rttMinMilliseconds": 100.0, "congestionControl": "cubic", "bytesSent": 1,
            "bytesReceived": 1, "retransmits": retransmits, "congestionWindow": 10, "streams": 1,
            "receiveBudgetUsed": 4096, "limitedSeconds": {"CongestionWindow": 1.5},
        }],
    }))
    .unwrap()
}

/// The observation of a gateway with this status.
fn seen(status: &Status) -> impl Iterator<Item = Gateway<'_>> {
    let gateway = Gateway {
        end: "entry",
        pod: "office-entry-x",
        status: Some(status),
    };
    [gateway].into_iter()
}

/// The value of a sample.
fn value(page: &str, name: &str, label: &str) -> Option<f64> {
    page.lines()
        .filter(|line| line.starts_with(&format!("muxtunnel_{name}{{")))
        .find(|line| line.contains(label))
        .and_then(|line| line.rsplit(' ').next()?.parse().ok())
}

#[test]
fn counters_go_on_when_a_gateway_or_a_carrier_begins_anew() {
    let (metrics, _feeds) = metrics();
    for (opened, retransmits) in [(5, 7), (8, 3), (2, 1)] {
        let status = status(opened, retransmits);
        metrics.tunnels.seen(office(), seen(&status));
    }
    let page = metrics.render().unwrap();
    // The gateway reports 5, then 3 more, and its next process reports 2.
    assert_eq!(
        value(&page, "tunnel_streams_opened_total", "office"),
        Some(10.0)
    );
    assert_eq!(
        value(&page, "tunnel_payload_bytes_total", "sent"),
        Some(100.0)
    );
    assert_eq!(
        value(&page, "tunnel_opens_refused_total", "MT0205"),
        Some(10.0)
    );
    assert_eq!(
        value(&page, "tunnel_credit_waits_total", "office"),
        Some(20.0)
    );
    assert_eq!(
        value(&page, "tunnel_credit_wait_seconds_total", "office"),
        Some(2.5)
    );
    // The gateway reports 7, then fewer because a carrier ended, and its next process reports 1.
    assert_eq!(
        value(&page, "tunnel_carrier_retransmits_total", "office"),
        Some(8.0)
    );
    assert_eq!(
        value(&page, "tunnel_carrier_rtt_seconds", "entry"),
        Some(0.1)
    );
    assert_eq!(value(&page, "tunnel_streams_open", "entry"), Some(2.0));
}

#[test]
fn what_a_gateway_had_counted_before_it_was_known_is_not_counted() {
    let (metrics, _feeds) = metrics();
    for opened in [1000, 1001] {
        let mut status = status(opened, 0);
        status.process.uptime_seconds = 3600.0;
        metrics.tunnels.seen(office(), seen(&status));
    }
    let page = metrics.render().unwrap();
    assert_eq!(
        value(&page, "tunnel_streams_opened_total", "office"),
        Some(1.0)
    );
}

#[test]
fn a_gateway_that_makes_reasons_up_fills_no_memory() {
    let (metrics, _feeds) = metrics();
    let mut odd = status(1, 0);
    for number in 0..1000 {
        odd.streams.closed.insert(format!("reason-{number:04}"), 1);
    }
    odd.streams.closed.insert("x".repeat(1000), 1);
    metrics.tunnels.seen(office(), seen(&odd));
    let page = metrics.render().unwrap();
    let series = page
        .lines()
        .filter(|line| line.starts_with("muxtunnel_tunnel_streams_closed_total"));
    assert_eq!(series.count(), 32);
    assert!(!page.contains("xxxx"));
}

#[test]
fn the_figures_of_a_tunnel_go_with_it_and_a_follower_has_none() {
    let (metrics, mut feeds) = metrics();
    metrics.tunnels.seen(office(), seen(&status(1, 0)));
    assert!(metrics.render().unwrap().contains("office"));
    feeds.tunnels.take(Event::Delete(tunnel("office")));
    assert!(!metrics.render().unwrap().contains("office"));

    let follower = Metrics::new(Leadership::default(), Arc::default());
    follower.tunnels.follow(feeds.caches());
    feeds.tunnels.take(Event::Apply(tunnel("office")));
    follower.tunnels.seen(office(), seen(&status(1, 0)));
    assert!(!follower.render().unwrap().contains("office"));
}

#[test]
fn an_object_waits_once_until_it_is_reconciled() {
    let (metrics, _feeds) = metrics();
    let depth = || {
        let page = metrics.render().unwrap();
        value(&page, "operator_queue_depth", "MuxTunnel")
    };
    let waiting = |name: &str| ObjectId {
        name: name.to_owned(),
        ..office()
    };
    let queues = [metrics.queue::<MuxTunnel>(), metrics.queue::<MuxTunnel>()];
    for name in ["a", "b", "a"] {
        queues[0].joined(waiting(name));
    }
    queues[1].joined(waiting("of another scope"));
    assert_eq!(depth(), Some(3.0));
    queues[0].left(&waiting("a"));
    queues[0].left(&waiting("c"));
    assert_eq!(depth(), Some(2.0));
    queues[0].left(&waiting("b"));
    assert_eq!(depth(), Some(1.0));
}

fn conditions_of(tunnel: &Arc<MuxTunnel>) -> Vec<Condition> {
    let status = tunnel.status.as_ref();
    status.map_or_else(Vec::new, |status| status.conditions.clone())
}

fn store(tunnels: &[MuxTunnel]) -> Store<MuxTunnel> {
    let (store, mut writer) = reflector::store();
    for tunnel in tunnels {
        writer.apply_watcher_event(&Event::Apply(tunnel.clone()));
    }
    store
}

/// A tunnel that is available but not ready.
fn judged(namespace: &str, name: &str) -> MuxTunnel {
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
        metrics.judge(store(&[judged(namespace, "t")]), conditions_of);
        let _depth = metrics.queue::<MuxTunnel>();
    }
    let page = metrics.render().unwrap();
    let series = page.lines().filter(|line| !line.starts_with('#'));
    let series: Vec<_> = series
        .map(|line| line.rsplit_once(' ').unwrap().0)
        .collect();
    let once: BTreeSet<_> = series.iter().collect();
    assert_eq!(once.len(), series.len(), "{page}");
    assert!(page.contains("operator_watch_age_seconds{resource=\"pods\"} "));
}

#[tokio::test]
async fn the_documentation_has_every_metric_and_no_other() {
    let (metrics, _feeds) = metrics();
    metrics.tunnels.seen(office(), seen(&status(1, 1)));
    let _depth = metrics.queue::<MuxTunnel>();
    metrics.judge(store(&[judged("site", "judged")]), conditions_of);
    let rolls = Plan {
        total: 3,
        rolling: 1,
        ..Plan::default()
    };
    metrics.classes.set([("muxtunnel".to_owned(), &rolls)]);
    let failed = async { Err::<Action, _>(Error::Incomplete("UID")) };
    metrics.timed("MuxTunnel", failed).await.unwrap_err();
    let mut client =
        InterceptorLayer(metrics.clone()).layer(tower::service_fn(|_: http::Request<()>| async {
            Ok::<_, std::io::Error>(http::Response::new(()))
        }));
    let request = http::Request::get("/api/v1/pods").body(()).unwrap();
    client.call(request).await.unwrap();

    let page = metrics.render().unwrap();
    for sample in [
        "muxtunnel_operator_reconcile_seconds_count{kind=\"MuxTunnel\",result=\"error\"} 1",
        "muxtunnel_operator_reconcile_errors_total{kind=\"MuxTunnel\",code=\"MT0343\"} 1",
        "muxtunnel_operator_api_request_seconds_count{verb=\"list\",resource=\"pods\",status=\"2xx\"} 1",
        "muxtunnel_operator_leader 1",
        "muxtunnel_class_objects{class=\"muxtunnel\",state=\"rolling\"} 1",
        "muxtunnel_tunnel_condition{namespace=\"site\",kind=\"MuxTunnel\",name=\"judged\",condition=\"Ready\",code=\"MT0302\"} 0",
        "muxtunnel_tunnel_condition{namespace=\"site\",kind=\"MuxTunnel\",name=\"judged\",condition=\"Available\",code=\"MT0301\"} 1",
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
    let limits = Limit::ALL.map(|limit| format!("`{}`", limit.as_str()));
    assert!(
        limits.iter().all(|limit| text.contains(limit)),
        "{limits:?}"
    );
}
