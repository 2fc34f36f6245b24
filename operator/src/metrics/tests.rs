//! The page against its documentation.

use std::collections::BTreeSet;

use tower::{Layer, Service};

use super::*;
use crate::tunnel_controller::Error;

#[tokio::test]
async fn the_documentation_has_every_metric_and_no_other() {
    let watches = Arc::new(WatchClock::default());
    watches.expect("/api/v1/pods");
    let metrics = Metrics::new(Leadership::default(), watches);
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
