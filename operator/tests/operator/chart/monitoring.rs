//! Checks the form of alerts, dashboard and monitors, and that the metrics and headings in them
//! exist.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{golden, of_kind, read};

/// The fields of the Prometheus operator's kinds (`monitoring.coreos.com/v1`) that the chart uses. Other
/// fields are an error.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Object<Spec> {
    api_version: String,
    kind: String,
    metadata: Metadata,
    spec: Spec,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Metadata {
    name: String,
    namespace: String,
    labels: BTreeMap<String, String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct PodMonitorSpec {
    namespace_selector: NamespaceSelector,
    selector: Value,
    pod_metrics_endpoints: Vec<Endpoint>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct ServiceMonitorSpec {
    namespace_selector: NamespaceSelector,
    selector: Value,
    endpoints: Vec<Endpoint>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct NamespaceSelector {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    any: Option<bool>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    match_names: Vec<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Endpoint {
    port: String,
    path: String,
    interval: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    honor_labels: Option<bool>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    relabelings: Vec<Relabeling>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Relabeling {
    source_labels: Vec<String>,
    target_label: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RuleSpec {
    groups: Vec<Group>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    name: String,
    rules: Vec<Alert>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Alert {
    alert: String,
    expr: String,
    r#for: String,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
}

/// A PodMonitor as the chart renders it.
#[derive(Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct PodMonitor(Object<PodMonitorSpec>);

/// A ServiceMonitor as the chart renders it.
#[derive(Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct ServiceMonitor(Object<ServiceMonitorSpec>);

/// A PrometheusRule as the chart renders it.
#[derive(Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct PrometheusRule(Object<RuleSpec>);

fn alerts() -> Vec<Alert> {
    let spec: RuleSpec = serde_yaml::from_str(&read("charts/muxtunnel/files/alerts.yaml")).unwrap();
    let alerts: Vec<_> = spec
        .groups
        .into_iter()
        .flat_map(|group| group.rules)
        .collect();
    assert!(alerts.len() >= 5);
    alerts
}

fn dashboard() -> Value {
    serde_json::from_str(&read("charts/muxtunnel/files/dashboard.json")).unwrap()
}

/// The queries of the dashboard's panels and variables.
fn queries() -> Vec<String> {
    let dashboard = dashboard();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let variables = dashboard["templating"]["list"].as_array().unwrap().iter();
    let expressions = targets.map(|target| &target["expr"]);
    let all = expressions.chain(variables.map(|variable| &variable["query"]));
    all.map(|text| text.as_str().unwrap().to_owned()).collect()
}

/// The names of metrics in `text` that begin with `prefix`.
fn metrics<'a>(text: &'a str, prefix: &str) -> BTreeSet<&'a str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
        .filter(|word| word.starts_with(prefix))
        .collect()
}

/// Whether `name` is a metric of `registered`, or a series of such a metric. Counters and
/// histograms add suffixes.
fn is_of(name: &str, registered: &BTreeSet<&str>) -> bool {
    let suffixes = ["", "_total", "_bucket", "_count", "_sum"];
    let mut own = suffixes
        .iter()
        .filter_map(|suffix| name.strip_suffix(suffix));
    own.any(|name| registered.contains(name))
}

#[test]
fn alerts_and_dashboard_ask_for_metrics_that_there_are() {
    let asked: Vec<String> = alerts()
        .into_iter()
        .map(|alert| alert.expr)
        .chain(queries())
        .collect();
    // The gateway's source contains every metric name as a whole word in quotes.
    let files = ["metrics.rs", "metrics/carriers.rs"];
    let source = files
        .map(|file| read(&format!("gateway/src/observe/{file}")))
        .concat();
    let of_gateways = metrics(&source, "muxgate_");
    let page = read("docs/metrics.md");
    let of_operator = metrics(&page, "muxtunnel_");
    let mut names = 0;
    for expression in &asked {
        for name in metrics(expression, "muxgate_") {
            names += 1;
            assert!(is_of(name, &of_gateways), "{name}: in {expression}");
        }
        for name in metrics(expression, "muxtunnel_") {
            assert!(is_of(name, &of_operator), "{name}: in {expression}");
        }
    }
    assert!(names > 15, "only {names}");
}

#[test]
fn the_alert_on_stale_watches_does_not_fire_for_a_back_off() {
    /// The longest back-off of a watch.
    const BACKOFF: u64 = 30;
    let alerts = alerts();
    let of_age = alerts
        .iter()
        .filter(|alert| alert.expr.contains("muxtunnel_operator_watch_age_seconds"));
    let mut found = 0;
    for alert in of_age {
        found += 1;
        let (_, threshold) = alert.expr.rsplit_once("> ").unwrap();
        let threshold: u64 = threshold.parse().unwrap();
        let quiet = u64::from(muxtunnel_operator::watches::WATCH_SECONDS) + BACKOFF;
        assert!(threshold >= quiet, "{}: fires for a back-off", alert.alert);
    }
    assert_eq!(found, 1);
}

#[test]
fn every_alert_says_what_it_means_and_where_it_is_said_what_to_do() {
    for alert in alerts() {
        let name = &alert.alert;
        assert!(
            ["critical", "warning"].contains(&alert.labels["severity"].as_str()),
            "{name}"
        );
        assert!(
            alert.r#for.ends_with('m') && !alert.annotations["summary"].is_empty(),
            "{name}"
        );
        let (page, anchor) = alert.annotations["page"].split_once('#').unwrap();
        if anchor.contains("{{") {
            assert_eq!(
                (page, anchor),
                ("docs/codes.md", "{{ $labels.code | toLower }}"),
                "{name}"
            );
            continue;
        }
        let headings = read(page);
        let mut headings = headings.lines().filter_map(|line| line.strip_prefix("## "));
        let slug = |heading: &str| heading.to_lowercase().replace(' ', "-");
        assert!(
            headings.any(|heading| slug(heading) == anchor),
            "{name}: {page}#{anchor}"
        );
    }
}

/// The alerts whose expression contains `text`.
fn alerts_on(text: &str) -> Vec<Alert> {
    let mut alerts = alerts();
    alerts.retain(|alert| alert.expr.contains(text));
    alerts
}

#[test]
fn a_tunnel_that_no_connection_passes_pages_unless_nobody_knows() {
    use muxtunnel_codes::Code;
    use muxtunnel_crds::condition::{AVAILABLE, CREDENTIALS_VALID};
    let [unavailable] = alerts_on(&format!("condition=\"{AVAILABLE}\""))
        .try_into()
        .ok()
        .unwrap();
    assert_eq!(unavailable.labels["severity"], "critical");
    let unobserved = format!("code!=\"{}\"", Code::InvalidSpec);
    assert!(unavailable.expr.contains(&unobserved), "{unobserved}");
    let of_credentials = alerts_on(&format!("condition=\"{CREDENTIALS_VALID}\""));
    let said = |text: String| of_credentials.iter().any(|one| one.expr.contains(&text));
    assert!(said(format!("code=\"{}\"", Code::CertificateExpiring)));
    assert_eq!(alerts_on("muxgate_session_panics_total").len(), 1);
}

#[test]
fn every_panel_of_the_dashboard_has_a_place_and_a_query() {
    let dashboard = dashboard();
    let mut ids = BTreeSet::new();
    let mut places = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        assert!(ids.insert(panel["id"].as_i64().unwrap()));
        let side = |name: &str| panel["gridPos"][name].as_i64().unwrap();
        let (left, top) = (side("x"), side("y"));
        let place = (left, top, left + side("w"), top + side("h"));
        assert!(place.2 <= 24, "{place:?}");
        let meets = |other: &(i64, i64, i64, i64)| {
            place.0 < other.2 && other.0 < place.2 && place.1 < other.3 && other.1 < place.3
        };
        assert!(!places.iter().any(meets), "{}", panel["title"]);
        places.push(place);
        let is_row = panel["type"] == "row";
        let targets = panel["targets"].as_array().map_or(0, Vec::len);
        assert_eq!(targets == 0, is_row, "{}", panel["title"]);
    }
}

#[test]
fn a_share_on_the_dashboard_is_divided_by_its_total() {
    let dashboard = dashboard();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let shares = panels.filter(|panel| panel["fieldConfig"]["defaults"]["unit"] == "percentunit");
    let mut found = 0;
    for panel in shares {
        found += 1;
        let expression = panel["targets"][0]["expr"].as_str().unwrap();
        let (part, total) = expression.split_once(" / ").expect(expression);
        let rate = |text: &str| text[text.find("(rate(").expect(expression)..].to_owned();
        assert_eq!(rate(part), rate(total), "{}", panel["title"]);
    }
    assert_eq!(found, 1);
}

#[test]
fn monitors_name_ports_that_pods_and_services_have() {
    let documents = golden("all-values");
    let deployment = of_kind(&documents, "Deployment")[0];
    let ports = &deployment["spec"]["template"]["spec"]["containers"][0]["ports"];
    let service = of_kind(&documents, "Service")
        .into_iter()
        .find(|service| {
            service["metadata"]["name"]
                .as_str()
                .unwrap()
                .ends_with("-metrics")
        })
        .unwrap();
    let port = &service["spec"]["ports"][0];
    assert!(
        ports
            .as_array()
            .unwrap()
            .iter()
            .any(|own| own["name"] == port["targetPort"])
    );
    let monitor = of_kind(&documents, "ServiceMonitor")[0];
    assert_eq!(monitor["spec"]["endpoints"][0]["port"], port["name"]);
    let labels = &service["metadata"]["labels"];
    for (key, value) in monitor["spec"]["selector"]["matchLabels"]
        .as_object()
        .unwrap()
    {
        assert_eq!(labels[key], *value);
    }
    // The name that the operator gives the gateways' admin port.
    let monitor = of_kind(&documents, "PodMonitor")[0];
    assert_eq!(monitor["spec"]["podMetricsEndpoints"][0]["port"], "admin");
    let labels = muxtunnel_operator::labels::child("MuxTunnel", "t", "entry");
    for (key, value) in monitor["spec"]["selector"]["matchLabels"]
        .as_object()
        .unwrap()
    {
        assert_eq!(labels[key], value.as_str().unwrap());
    }
}
