//! Tests of whole reconciliations against the API server of [`crate::testing`], and tests that need
//! private items. All other tests are in `tests/operator/tunnel`. The fixture is called `office`,
//! not `muxtunnel`. So a test fails if a label has the product's name instead of the object's name.

mod adoption;
mod drift;
mod faults;
mod handover;
mod interruptions;
mod keys;
mod peers;
mod probe;
mod reconcile;
mod refresh;
mod replicas;
mod rollouts;
mod running;
mod scale;
mod skew;
mod triggers;
mod undecoded;
mod waiting;

use muxtunnel_crds::MuxTunnel;
use serde_json::Value;

use crate::testing::FakeApi;
use crate::testing::tunnel::{
    DIRECT, ELSEWHERE, ENTRY_KEY, EXIT_KEY, FAR, MANAGED, NET_A, SMALLEST, settings, shop_json,
    tuned, tunnel_json,
};

/// The configuration with which new pods of the fixture's end start.
fn document(api: &FakeApi, end: &str) -> String {
    let deployment = api.get(&format!("deployments/office-{end}")).unwrap();
    let volume = &deployment["spec"]["template"]["spec"]["volumes"][0];
    let key = volume["configMap"]["items"][0]["key"].as_str().unwrap();
    let config_map = api.get(&format!("configmaps/office-{end}")).unwrap();
    config_map["data"][key].as_str().unwrap().to_owned()
}
