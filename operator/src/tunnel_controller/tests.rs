//! Tests of whole reconciliations against the API server of [`crate::testing`], and tests that need
//! private items. All other tests are in `tests/operator/tunnel`. The fixture is called `office`,
//! not `muxtunnel`. So a test fails if a label has the product's name instead of the object's name.

mod adoption;
mod auto_tuning;
mod bench;
mod classes;
mod drift;
mod faults;
mod grants;
mod handover;
mod health;
mod interruptions;
mod keys;
mod kinds;
mod mounts;
mod paused;
mod peers;
mod probe;
mod progress;
mod reconcile;
mod refresh;
mod refusals;
mod replicas;
mod rollouts;
mod running;
mod scale;
mod skew;
mod steps;
mod triggers;
mod undecoded;
mod waiting;

use serde_json::{Value, json};

use crate::testing::FakeApi;
use crate::testing::tunnel::{
    ELSEWHERE, ENTRY_KEY, EXIT, EXIT_KEY, FAR, MANAGED, NET_A, OPEN, RENDEZVOUS, SMALLEST,
    class_json, images, object_json, settings, shop_json, tuned,
};

/// The name of the children of an end of the tunnel `office`.
fn child(end: &str) -> String {
    match end {
        "exit" => "office-tunnel-exit".to_owned(),
        _ => format!("office-{end}"),
    }
}

/// The labels of the children of an end of the tunnel `office`.
fn labels_of(end: &str) -> Value {
    json!(crate::labels::child("MuxTunnel", "office", end))
}

/// The configuration with which new pods of the Deployment `name` start.
fn document(api: &FakeApi, name: &str) -> String {
    let deployment = api.get(&format!("deployments/{name}")).unwrap();
    let volume = &deployment["spec"]["template"]["spec"]["volumes"][0];
    let key = volume["configMap"]["items"][0]["key"].as_str().unwrap();
    let config_map = api.get(&format!("configmaps/{name}")).unwrap();
    config_map["data"][key].as_str().unwrap().to_owned()
}

/// The peer `name` of the exit `office`, with further fields of its spec.
fn peer_json(name: &str, key: &str, more: &Value) -> Value {
    let mut spec = json!({"exitRef": {"name": "office"}, "publicKeys": [key]});
    for (field, value) in more.as_object().unwrap() {
        spec[field] = value.clone();
    }
    json!({
        "apiVersion": "muxtunnel.dev/v1alpha1",
        "kind": "MuxPeer",
        "metadata": {"name": name, "namespace": "site", "uid": format!("uid-{name}"), "generation": 1},
        "spec": spec,
    })
}

/// [`SMALLEST`] with certificates of a CSI driver.
fn with_driver() -> String {
    let csi = "csi: {driver: spiffe.csi.cert-manager.io}";
    let sources = format!("entry: {{{csi}}}, exit: {{{csi}}}");
    SMALLEST.replace(
        "{mode: None}",
        &format!("{{mode: Certificates, certificates: {{{sources}, entryNames: [near], exitNames: [far]}}}}"),
    )
}

/// A condition of the object at `path`.
fn condition(api: &FakeApi, path: &str, type_: &str) -> Option<Value> {
    let object = api.get(path)?;
    let mut conditions = object["status"]["conditions"].as_array()?.iter();
    conditions.find(|one| one["type"] == type_).cloned()
}
