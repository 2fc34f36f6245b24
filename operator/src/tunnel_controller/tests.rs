//! YAML -> validate -> build -> assert, judgements of made-up facts, and whole reconciliations against
//! the API server of [`crate::testing`]. The fixture is called `office`, not `muxtunnel`, so that a
//! label that is mixed up with another shows.

mod build;
mod carriers;
mod certify;
mod drift;
mod faults;
mod handover;
mod listeners;
mod network_policy;
pub(crate) mod privileges;
mod probe;
mod reconcile;
mod references;
mod replicas;
mod rollouts;
mod running;
mod scale;
mod verdicts;

use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use muxtunnel_crds::MuxTunnel;
use serde_json::{Value, json};

use super::build::{Resources, build};
use super::dereference::Dereferenced;
use super::hindrance::Hindrance;
use super::references::ServiceName;
use super::validate::{ValidatedTunnel, validate};
use crate::settings::{AdminPeers, Settings};

const SMALLEST: &str = "
forwards:
- name: web
  listen: {port: 8080}
  target: {service: {name: shop, port: http}}
- name: db
  listen: {port: 443}
  target: {address: {host: DB.example.com, port: 5432}}
carrier: {protocol: Jmux, security: {mode: None}}
";

/// The same, with certificates that the operator issues.
const MANAGED: &str = "
forwards:
- name: web
  listen: {port: 8080}
  target: {service: {name: shop, port: http}}
- name: db
  listen: {port: 443}
  target: {address: {host: DB.example.com, port: 5432}}
carrier: {protocol: Jmux}
";

fn settings() -> Settings {
    Settings {
        gateway_image: "example.com/gateway:1".to_owned(),
        netem_image: "example.com/netem:1".to_owned(),
        bench_image: "example.com/bench:1".to_owned(),
        image_pull_policy: "IfNotPresent".to_owned(),
        wan_emulation: true,
        pod_metadata: crate::settings::default_pod_metadata(),
        network_policy: Some(AdminPeers {
            operator_namespace: "mux".to_owned(),
            operator_labels: [("app".to_owned(), "operator".to_owned())].into(),
            metrics_namespace_labels: [("metrics".to_owned(), "yes".to_owned())].into(),
        }),
        namespace: "operators".to_owned(),
        service_account: "operator".to_owned(),
        ca_secret: "authorities".to_owned(),
        trust_domain: "example.org".to_owned(),
        certificate_life: Duration::from_secs(24 * 3600),
        authority_life: Duration::from_secs(365 * 24 * 3600),
    }
}

fn tunnel_json(spec: &str) -> Value {
    let spec: Value = serde_yaml::from_str(spec).unwrap();
    json!({
        "apiVersion": "muxtunnel.dev/v1alpha1",
        "kind": "MuxTunnel",
        "metadata": {"name": "office", "namespace": "site", "uid": "uid-office", "generation": 1},
        "spec": spec,
    })
}

fn tunnel(spec: &str) -> MuxTunnel {
    serde_json::from_value(tunnel_json(spec)).unwrap()
}

fn shop_json() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "shop", "namespace": "site", "uid": "uid-shop"},
        "spec": {"ports": [
            {"name": "dns", "port": 80, "protocol": "UDP"},
            {"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080},
        ]},
    })
}

/// What is behind it.
fn slice_json(ready: bool) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": "shop-1", "namespace": "site",
            "labels": {"kubernetes.io/service-name": "shop"},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.9.9.9"], "conditions": {"ready": ready}}],
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    })
}

fn named(namespace: &str, name: &str) -> ServiceName {
    ServiceName {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}

fn shop() -> Dereferenced {
    let service: Service = serde_json::from_value(shop_json()).unwrap();
    Dereferenced {
        services: [(named("site", "shop"), service)].into(),
        ..Dereferenced::default()
    }
}

fn valid_with(spec: &str, named: &Dereferenced, settings: &Settings) -> ValidatedTunnel {
    match validate(&tunnel(spec), named, settings) {
        Ok(valid) => *valid,
        Err(hindrance) => panic!("{hindrance:?}"),
    }
}

fn valid(spec: &str) -> ValidatedTunnel {
    valid_with(spec, &shop(), &settings())
}

fn built(spec: &str) -> Resources {
    build(&valid(spec), &settings()).unwrap()
}

/// The child of that name, as JSON.
fn child<K: serde::Serialize>(children: &[K], name: &str) -> Value {
    children
        .iter()
        .map(|child| serde_json::to_value(child).unwrap())
        .find(|child| child["metadata"]["name"] == name)
        .unwrap_or_else(|| panic!("no child {name}"))
}
